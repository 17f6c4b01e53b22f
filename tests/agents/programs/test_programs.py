"""Op tables and fingerprints of real XLA:CPU modules."""

import subprocess
import sys
from pathlib import Path

import pytest

from fleetscope.agents.programs.chunks import CHUNK_BYTES, chunks, join_chunks
from fleetscope.agents.programs.kinds import kind_of
from fleetscope.agents.programs.optable import read_program
from fleetscope.schema.errors import FleetscopeError
from fleetscope.schema.vocabulary import Kind

pytestmark = pytest.mark.unit

_SOURCE = """
import sys, jax, jax.numpy as jnp
{before}
def {name}(w, x):
    h, _ = jax.lax.scan(lambda h, wi: (jnp.tanh(h @ wi){edit}, None), x, w)
    return h.sum()
m = jax.jit({name}).lower(jnp.ones((3, 16, 16)), jnp.ones((4, 16))).compile().runtime_executable().hlo_modules()[0]
open(sys.argv[1], "wb").write(m.as_serialized_hlo_module_proto())
"""


def _module(folder: Path, before: str = "", name: str = "f", edit: str = "") -> bytes:
    folder.mkdir()
    script = folder / "program.py"
    script.write_text(_SOURCE.format(before=before, name=name, edit=edit))
    subprocess.run([sys.executable, script, folder / "out.pb"], check=True, timeout=120)
    return (folder / "out.pb").read_bytes()


def test_a_restart_is_the_same_program_and_an_edit_is_not(tmp_path: Path) -> None:
    plain = read_program(_module(tmp_path / "a"))
    # Other modules compiled before (ids move on), another directory and a blank line more: the same program.
    before = "jax.jit(lambda x: x * 3)(jnp.ones(7)); jax.jit(lambda x: x - 1)(jnp.ones(9))\n\n"
    again = read_program(_module(tmp_path / "b", before=before))
    edited = read_program(_module(tmp_path / "c", edit=" * 2"))
    renamed = read_program(_module(tmp_path / "d", name="g"))
    assert again.program == plain.program
    assert again.module_id != plain.module_id
    assert len({plain.program, edited.program, renamed.program}) == 3
    assert plain.ops.column("op").to_pylist() == list(range(plain.ops.num_rows))
    whiles = [row for row in plain.ops.to_pylist() if row["opcode"] == "while"]
    assert [row["trip_count"] for row in whiles] == [3]
    assert whiles[0]["kind"] == Kind.CONTAINER


@pytest.mark.parametrize("data", [b"", b"\xff" * 50, b"\x0a\x03abc", bytes(1000)])
def test_bytes_that_are_no_module_are_a_numbered_error(data: bytes) -> None:
    with pytest.raises(FleetscopeError, match="FS3060"):
        read_program(data)


def test_chunks_hold_a_mebibyte_at_most_and_join_in_any_order(tmp_path: Path) -> None:
    program = read_program(_module(tmp_path / "a"))
    big = type(program)(
        program.program, program.module, program.module_id, _repeat(program.ops, 600), source=program.source
    )
    parts = chunks(big)
    assert len(parts) > 1
    assert all(len(chunk.ops) <= CHUNK_BYTES for _, chunk in parts)
    assert len({key for key, _ in parts}) == len(parts)
    joined = join_chunks(chunk for _, chunk in reversed(parts))
    assert joined is not None
    assert joined.equals(big.ops)
    assert join_chunks(chunk for _, chunk in parts[1:]) is None


def _repeat(table: object, times: int) -> object:
    import pyarrow as pa

    return pa.concat_tables([table] * times).combine_chunks()


@pytest.mark.parametrize(
    ("opcode", "kind"),
    [
        ("all-reduce-start", Kind.COLLECTIVE),
        ("all-gather", Kind.COLLECTIVE),
        ("collective-permute-done", Kind.COLLECTIVE),
        ("copy-done", Kind.COPY),
        ("copy-start", Kind.COPY),
        ("infeed", Kind.INFEED),
        ("outfeed", Kind.OUTFEED),
        ("while", Kind.CONTAINER),
        ("fusion", Kind.COMPUTE),
        ("dot", Kind.COMPUTE),
        ("dynamic-update-slice", Kind.COMPUTE),
    ],
)
def test_kinds(opcode: str, kind: Kind) -> None:
    assert kind_of(opcode) == kind
