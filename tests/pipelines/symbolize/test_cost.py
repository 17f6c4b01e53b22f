"""The cost pass against XLA's own HloCostAnalysis (no loops there: it counts a body once) and hand calculations."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from fleetscope.agents.programs.optable import read_program
from fleetscope.pipelines.symbolize.cost import cost_program

pytestmark = pytest.mark.golden


def _compile(function: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    compiled = jax.jit(function).lower(*args).compile()
    data = compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    return read_program(data), compiled.cost_analysis()["flops"]


def _conv(stride: int, padding: str, dilation: int) -> Callable[..., Any]:
    def conv(x: Any, k: Any) -> Any:
        return lax.conv_general_dilated(
            x,
            k,
            (stride, stride),
            padding,
            rhs_dilation=(dilation, dilation),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    return conv


def _flops(ops: Any) -> tuple[int | None, int | None]:
    """(FLOPs, model FLOPs) of one execution."""
    cost = cost_program(ops)[1]
    return cost.flops, cost.model_flops


F = jnp.float32
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "matmul": (lambda a, b: a @ b, (jnp.ones((37, 64)), jnp.ones((64, 91)))),
    "batched": (lambda a, b: jnp.einsum("bij,bjk->bik", a, b), (jnp.ones((5, 8, 16)), jnp.ones((5, 16, 4)))),
    "attention": (
        lambda q, k, v: jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k)) @ v,
        (jnp.ones((2, 16, 8)), jnp.ones((2, 16, 8)), jnp.ones((2, 16, 8))),
    ),
    "elementwise": (lambda x: x * 2 + x / 3 - jnp.maximum(x, 0), (jnp.ones((128, 33)),)),
    "reduce": (lambda x: x.sum(axis=1), (jnp.ones((64, 128)),)),
    "conv same": (_conv(2, "SAME", 1), (jnp.ones((8, 32, 32, 16)), jnp.ones((3, 3, 16, 24)))),
    "conv valid": (_conv(1, "VALID", 1), (jnp.ones((2, 15, 17, 3)), jnp.ones((5, 3, 3, 7)))),
    "conv dilated": (_conv(1, "SAME", 2), (jnp.ones((2, 16, 16, 4)), jnp.ones((3, 3, 4, 8)))),
    "grad of mlp": (
        jax.grad(lambda w, x: jnp.mean((jnp.maximum(x @ w, 0) @ w.T) ** 2)),
        (jnp.ones((64, 32)), jnp.ones((16, 64))),
    ),
}


@pytest.mark.parametrize("name", list(CASES))
def test_flops_equal_those_of_xla(name: str) -> None:
    function, args = CASES[name]
    program, xla = _compile(function, *args)
    assert _flops(program.ops)[0] == pytest.approx(xla, rel=1e-3)


def test_a_loop_counts_its_body_as_often_as_it_runs_and_recomputation_is_no_model_flop() -> None:
    def loss(w: Any, x: Any) -> Any:
        h, _ = lax.scan(jax.checkpoint(lambda h, wi: (jnp.maximum(h @ wi, 0), None)), x, w)
        return h.sum()

    layers, batch, width = 4, 32, 128
    program, _ = _compile(jax.grad(loss), jnp.ones((layers, width, width)), jnp.ones((batch, width)))
    matmul = 2 * batch * width * width
    flops, model = _flops(program.ops)
    # Forward, recomputed forward, gradient of the weights and of the activations, in every layer.
    assert flops is not None
    assert 4 * layers * matmul <= flops <= 4.1 * layers * matmul
    # Recomputed: the matmul and the few elementwise ops of the relu around it.
    assert model is not None
    assert flops - model == pytest.approx(layers * matmul, rel=0.05)


def test_the_weight_gradient_of_a_depthwise_convolution_has_as_many_products_as_the_convolution() -> None:
    batch, size, channels = 2, 16, 24

    def loss(x: Any, k: Any) -> Any:
        made = lax.conv_general_dilated(
            x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=channels
        )
        return (made**2).sum()

    args = (jnp.ones((batch, size, size, channels)), jnp.ones((3, 3, 1, channels)))
    # Before XLA:CPU writes batch groups out as a full convolution.
    hlo = jax.jit(jax.grad(loss, (0, 1))).lower(*args).compiler_ir("hlo")
    rows = cost_program(read_program(hlo.as_serialized_hlo_module_proto()).ops)[0].to_pylist()
    # 3 n - 2 pairs of an output and a tap meet a pixel in each dimension.
    expected = 2 * batch * channels * (3 * size - 2) ** 2
    assert [row["flops"] for row in rows if row["opcode"] == "convolution"] == [expected] * 3


def test_merged_recomputation_is_no_recomputation_and_kept_one_is() -> None:
    layers, batch, width = 3, 256, 32

    def loss(prevent_cse: bool) -> Callable[..., Any]:
        layer = jax.checkpoint(lambda h, w: jnp.tanh(h @ w[0]) @ w[1], prevent_cse=prevent_cse)

        def run(ws: Any, x: Any) -> Any:
            for i in range(layers):
                x = layer(x, ws[i])
            return (x**2).sum()

        return jax.grad(run, (0, 1))

    args = (jnp.ones((layers, 2, width, width)), jnp.ones((batch, width)))
    product = 2 * batch * width * width
    # Two products a layer forward, four backward; kept, the first again: the second is needed by nobody.
    for prevent_cse, again in ((True, layers), (False, 0)):
        program, _ = _compile(loss(prevent_cse), *args)
        flops, model = _flops(program.ops)
        assert flops == pytest.approx((6 * layers + again) * product, rel=0.03)
        assert model == pytest.approx(6 * layers * product, rel=0.03)


def test_an_unknown_trip_count_makes_the_loop_unknown_and_not_zero() -> None:
    def until(x: Any) -> Any:
        return lax.while_loop(lambda s: s.sum() < 1e6, lambda s: s @ s, x)

    program, _ = _compile(until, jnp.ones((16, 16)))
    assert _flops(program.ops) == (None, None)
    rows = cost_program(program.ops)[0].to_pylist()
    assert [row["flops"] for row in rows if row["opcode"] == "while"] == [None]
    assert max(row["flops"] or 0 for row in rows if row["opcode"] in ("dot", "fusion")) >= 2 * 16**3


def test_every_costly_op_of_the_transformer_has_a_category_a_dtype_and_a_source_line() -> None:
    def block(x: Any, w: Any) -> Any:
        return jax.nn.relu(x @ w)  # the line the table must name

    program, _ = _compile(block, jnp.ones((8, 8)), jnp.ones((8, 8)))
    rows = cost_program(program.ops)[0].to_pylist()
    dots = [row for row in rows if row["opcode"] == "dot"]
    assert dots
    for row in dots:
        assert row["dtype"] == "f32"
        assert row["source_file"].endswith("test_cost.py")
        assert row["op_name"].endswith("dot_general")
    line = block.__code__.co_firstlineno + 1
    assert {row["source_line"] for row in dots} == {line}
