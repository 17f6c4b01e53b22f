"""Products of a convolution or a pooling window that read a real element, not padding or a dilation hole."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

POSITIONS_LIMIT = 1 << 22
"""Of the smaller of kernel and result in one dimension: work of the pass grows with it."""


def valid_positions(
    kernel: int, out: int, base: int, stride: int, low: int, window_dilation: int, base_dilation: int
) -> int | None:
    """Pairs (output, kernel position) that read a real input element, in one dimension.

    The pair (o, k) reads o * stride + k * window_dilation - low. The smaller of the two is tried value by value and
    the other counted: all pairs of a weight gradient over 480 000 samples would be gigabytes. None where even that is
    too much.
    """
    reach = (base - 1) * base_dilation + 1 if base else 0
    (tried, step), (counted, stride_) = sorted(((kernel, window_dilation), (out, stride)))
    if tried > POSITIONS_LIMIT or tried * step + counted * stride_ + abs(low) + reach >= 1 << 62:
        return None
    if min(step, stride_, base_dilation) <= 0:
        return None
    at = np.arange(tried, dtype=np.int64) * step - low
    common = math.gcd(stride_, base_dilation)
    period = base_dilation // common
    first = np.maximum(-(at // stride_), 0)
    last = np.minimum((reach - 1 - at) // stride_, counted - 1)
    # Which of [first, last] fall on an element: those congruent to `hit`, and none where the gcd does not divide.
    hit = (-at // common) % period * pow(stride_ // common, -1, period) % period
    found = (last - hit) // period - (first - 1 - hit) // period
    return int(np.maximum(found, 0)[at % common == 0].sum())


def window_positions(
    kernel: Sequence[int], out: Sequence[int], base: Sequence[int], window: Sequence[Sequence[int]]
) -> int | None:
    """Product over dimensions; `window` rows are [size, stride, low, high, dilation, base dilation]. None: too many,
    or the dimensions do not fit each other."""
    if not len(kernel) == len(out) == len(base) == len(window):
        return None
    positions = 1
    for size, made, read, (_, stride, low, _, dilation, base_dilation) in zip(kernel, out, base, window, strict=True):
        valid = valid_positions(size, made, read, stride, low, dilation, base_dilation)
        if valid is None:
            return None
        positions *= valid
    return positions


def convolution_flops(
    base: Sequence[int], kernel: Sequence[int], out: Sequence[int], detail: dict[str, Any]
) -> int | None:
    """2 x output batch x output features x valid positions x input features of the kernel.

    `kernel`'s input features are those of one feature group; with batch groups the output batch is already smaller
    (operation semantics of conv_general_dilated). `base`, `kernel`, `out` are dimensions in the order of each array.
    """
    conv, window = detail.get("conv"), detail.get("window", [])
    if conv is None:
        return None
    made = [out[d] for d in conv["output_spatial"]]
    positions = window_positions(
        [kernel[d] for d in conv["kernel_spatial"]], made, [base[d] for d in conv["input_spatial"]], window
    )
    if positions is None:
        return None
    spatial = math.prod(made)
    outer = math.prod(out) // spatial if spatial else 0
    return 2 * outer * positions * kernel[int(conv["kernel_in"])]
