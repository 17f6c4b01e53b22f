"""Programs of `hlo_cost.py`, and their FLOPs by hand: products of matrices and convolutions written out from the
layer's definition, with no look at what the compiler makes of them.

A multiply-add is two; a convolution counts the products of a tap with a real input element. Where a layer has
elementwise work worth a tenth of a percent, it is estimated; the budget of 1 % holds the rest.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

F32 = jnp.float32
TRAINING = 3
"""Products of a layer that is trained and passes gradients on: forward, by its input, by its weights."""


@dataclass(frozen=True)
class Case:
    """`expected`: FLOPs of one call; `model`: without recomputation, where that differs."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    expected: int
    model: int | None = None


def of(*dims: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, F32)


def _norm(x: jax.Array) -> jax.Array:
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)


def transformer() -> Case:
    """Pre-norm block, 8 heads: q, k, v and output projections, scores and their product with v, an MLP of width f."""
    b, t, d, f, heads = 2, 128, 512, 2048, 8

    def block(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        h = _norm(x)
        q, k, v = ((h @ p[name]).reshape(b, t, heads, d // heads) for name in "qkv")
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (d // heads) ** -0.5
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(b, t, d)
        x = x + mixed @ p["o"]
        return x + jax.nn.relu(_norm(x) @ p["up"]) @ p["down"]

    weights = {name: of(d, d) for name in "qkvo"} | {"up": of(d, f), "down": of(f, d)}
    products = 2 * b * t * (4 * d * d + 2 * d * f) + 2 * 2 * b * t * t * d
    return Case(
        "transformer block",
        jax.value_and_grad(lambda p, x: (block(p, x) ** 2).sum(), (0, 1)),
        (weights, of(b, t, d)),
        TRAINING * products,
    )


def _conv(x: jax.Array, k: jax.Array, stride: int) -> jax.Array:
    return lax.conv_general_dilated(x, k, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _same_pairs(size: int, taps: int, stride: int) -> int:
    """Pairs of an output and a tap that meet a pixel, by trying all; padding SAME as TensorFlow defines it."""
    made = -(-size // stride)
    low = max((made - 1) * stride + taps - size, 0) // 2
    return sum(0 <= o * stride + k - low < size for o in range(made) for k in range(taps))


def resnet() -> Case:
    """The block that halves the picture: 3x3 of stride 2, 3x3, and 1x1 of stride 2 beside them; relu and scaling."""
    b, size, c, wide = 4, 32, 64, 128

    def block(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        h = jax.nn.relu(_conv(x, p["a"], 2) * p["s"])
        return jax.nn.relu(_conv(h, p["b"], 1) + _conv(x, p["skip"], 2))

    weights = {"a": of(3, 3, c, wide), "b": of(3, 3, wide, wide), "skip": of(1, 1, c, wide), "s": of(wide)}
    first, second = _same_pairs(size, 3, 2), _same_pairs(size // 2, 3, 1)
    products = 2 * b * (first**2 * c * wide + second**2 * wide * wide + _same_pairs(size, 1, 2) ** 2 * c * wide)
    return Case(
        "ResNet block with gradients",
        jax.grad(lambda p, x: (block(p, x) ** 2).sum(), (0, 1)),
        (weights, of(b, size, size, c)),
        TRAINING * products,
    )


def moe() -> Case:
    """Top-2 of 4 experts with capacity, dispatched and combined by products with one-hot masks (GShard)."""
    n, d, f, e, cap = 256, 256, 1024, 4, 160

    def layer(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        gates, chosen = lax.top_k(jax.nn.softmax(x @ p["gate"]), 2)
        mask = jax.nn.one_hot(chosen, e).sum(1)
        place = jnp.cumsum(mask, 0) * mask - 1
        slots = jax.nn.one_hot(place, cap) * mask[..., None]
        weight = (jax.nn.one_hot(chosen, e) * gates[..., None]).sum(1)
        given = jnp.einsum("nec,nd->ecd", slots, x)
        made = jnp.einsum("ecf,efd->ecd", jax.nn.relu(jnp.einsum("ecd,edf->ecf", given, p["up"])), p["down"])
        return jnp.einsum("nec,ecd->nd", slots * weight[..., None], made)

    weights = {"gate": of(d, e), "up": of(e, d, f), "down": of(e, f, d)}
    products = 2 * n * d * e + 2 * 2 * n * e * cap * d + 2 * 2 * e * cap * d * f
    return Case("MoE layer", layer, (weights, of(n, d)), products)


def transposed() -> Case:
    """Doubles a picture: every pixel is spread over those of 4x4 taps that lie in the result."""
    b, size, c, made, taps = 4, 24, 32, 64, 4

    def pairs() -> int:
        # Pixel i reaches rows 2 i + k - 1, of which 0 to 2 size - 1 are there.
        return sum(0 <= 2 * i + k - 1 < 2 * size for i in range(size) for k in range(taps))

    return Case(
        "transposed convolution",
        lambda x, k: lax.conv_transpose(x, k, (2, 2), "SAME"),
        (of(b, size, size, c), of(taps, taps, c, made)),
        2 * b * pairs() ** 2 * c * made,
    )


def lstm() -> Case:
    """40 steps of a cell: four gates from the input and the state. Trained, with gradients by the inputs too."""
    b, t, d, h = 32, 40, 512, 512

    def run(p: dict[str, jax.Array], xs: jax.Array) -> jax.Array:
        def cell(carry: tuple[jax.Array, jax.Array], x: jax.Array) -> Any:
            state, memory = carry
            i, f, g, o = jnp.split(x @ p["x"] + state @ p["h"], 4, -1)
            memory = jax.nn.sigmoid(f) * memory + jax.nn.sigmoid(i) * jnp.tanh(g)
            state = jax.nn.sigmoid(o) * jnp.tanh(memory)
            return (state, memory), state

        zeros = jnp.zeros((b, h))
        return lax.scan(cell, (zeros, zeros), xs)[1]

    weights = {"x": of(d, 4 * h), "h": of(h, 4 * h)}
    return Case(
        "LSTM",
        jax.grad(lambda p, xs: (run(p, xs) ** 2).sum(), (0, 1)),
        (weights, of(t, b, d)),
        TRAINING * 2 * b * t * (d + h) * 4 * h,
    )


def _layer(h: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(h @ w[0]) @ w[1]


LAYERS, BATCH, WIDTH = 8, 512, 128
_STACK = (of(LAYERS, 2, WIDTH, WIDTH), of(BATCH, WIDTH))
_PRODUCT = 2 * BATCH * WIDTH * WIDTH


def _scanned(wrap: Callable[..., Any]) -> Callable[..., Any]:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return (lax.scan(lambda h, wi: (wrap(_layer)(h, wi), None), x, w)[0] ** 2).sum()

    return loss


def _unrolled(wrap: Callable[..., Any]) -> Callable[..., Any]:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        for i in range(LAYERS):
            x = wrap(_layer)(x, w[i])
        return (x**2).sum()

    return loss


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def merged(function: Callable[..., Any]) -> Callable[..., Any]:
    """Recomputation the compiler may merge with the original."""
    return jax.checkpoint(function, prevent_cse=False)


def loops() -> tuple[Case, Case]:
    """The same network as a scan and unrolled."""
    products = LAYERS * 2 * _PRODUCT
    return Case("scan", _scanned(plain), _STACK, products), Case("unrolled", _unrolled(plain), _STACK, products)


def rematerialised() -> Case:
    """A scan of checkpointed layers: two products forward, four backward, and again the first, whose result was not
    kept; the second is needed by nobody."""
    model = LAYERS * 6 * _PRODUCT
    return Case("rematerialised scan", jax.grad(_scanned(jax.checkpoint), (0, 1)), _STACK, model * 7 // 6, model)


def unrolled(name: str, wrap: Callable[..., Any]) -> Case:
    """Unrolled layers with recomputation that the compiler may keep or merge: what is executed is counted in the text
    of the program (`products_in`), the model is that of any training."""
    return Case(name, jax.grad(_unrolled(wrap), (0, 1)), _STACK, 0, LAYERS * 6 * _PRODUCT)


def products_in(text: str) -> int:
    """FLOPs of the products of the unrolled layers, which are all of one size, in the text of an HLO module."""
    return text.count(" dot(") * _PRODUCT
