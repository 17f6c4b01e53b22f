"""FLOPs of real programs, compiled by jax for the CPU, against counts by hand; and every op of the v6e sample.

    python benchmarks/hlo_cost.py [--samples DIR]

Layers within 1 %, a scan within 0.5 % of the same unrolled, a rematerialised scan executes the analytic factor more
than it has model FLOPs, and nothing unknown is 0 or negative. Compiles only: nothing runs.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import jax
import pyarrow as pa
from hlo_programs import (
    Case,
    loops,
    lstm,
    merged,
    moe,
    products_in,
    rematerialised,
    resnet,
    transformer,
    transposed,
    unrolled,
)
from report import report

from fleetscope.agents.programs.optable import read_program
from fleetscope.agents.xspace.importing import read_capture
from fleetscope.pipelines.symbolize.cost import ProgramCost, cost_program

WITHIN = 0.01
LOOP_WITHIN = 0.005
SAMPLES = Path(__file__).resolve().parent.parent.parent / "shared" / "samples"
V6E = "xplane/xprof__tpu_inference_2.xplane.pb"


def module_of(case: Case) -> Any:
    return jax.jit(case.function).lower(*case.args).compile().runtime_executable().hlo_modules()[0]


class Costs:
    """Counts programs, and what counting takes: CPU time in the agent (structure) and in the pipeline (cost)."""

    def __init__(self) -> None:
        self.instructions, self.agent_s, self.pipeline_s = 0, 0.0, 0.0

    def of(self, module: Any) -> ProgramCost:
        data = module.as_serialized_hlo_module_proto()
        begin = time.process_time()
        ops = read_program(data).ops
        middle = time.process_time()
        cost = cost_program(ops)[1]
        self.instructions += ops.num_rows
        self.agent_s += middle - begin
        self.pipeline_s += time.process_time() - middle
        return cost

    def facts(self) -> dict[str, float]:
        """us an instruction."""
        each = 1e6 / self.instructions
        return {"agent_us": round(self.agent_s * each, 1), "pipeline_us": round(self.pipeline_s * each, 1)}


class Judge:
    """What was found beside what must come out."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.facts: dict[str, Any] = {}
        self.worst = 0.0

    def near(self, name: str, found: int | float | None, expected: float, within: float = WITHIN) -> None:
        off = None if found is None else abs(found / expected - 1)
        good = off is not None and off <= within
        self.facts[name] = None if off is None else round(off, 6)
        self.worst = max(self.worst, off if off is not None else 1.0)
        print(
            f"{'ok  ' if good else 'FAIL'} {name}: {found} against {expected} ({off if off is None else f'{off:.3%}'})"
        )
        if not good:
            self.failed.append(f"{name}: {found}, expected {expected} within {within:.1%}")

    def true(self, name: str, holds: bool) -> None:
        print(f"{'ok  ' if holds else 'FAIL'} {name}")
        self.facts[name] = holds
        if not holds:
            self.failed.append(name)


def programs(judge: Judge, costs: Costs) -> None:
    for case in (transformer(), resnet(), moe(), transposed(), lstm()):
        cost = costs.of(module_of(case))
        judge.near(case.name, cost.flops, case.expected)
        judge.true(f"{case.name}: no recomputation", cost.model_flops == cost.flops)
    scan, flat = (costs.of(module_of(case)) for case in loops())
    judge.near("scan against unrolled", scan.flops, flat.flops or 0, LOOP_WITHIN)
    again = rematerialised()
    cost = costs.of(module_of(again))
    assert again.model is not None
    judge.near("rematerialised scan, executed", cost.flops, again.expected)
    judge.near("rematerialised scan, model", cost.model_flops, again.model)
    if cost.flops and cost.model_flops:
        judge.near("rematerialised scan, hfu / mfu", cost.flops / cost.model_flops, again.expected / again.model)
    for case in (unrolled("recomputation kept", jax.checkpoint), unrolled("recomputation merged", merged)):
        module = module_of(case)
        cost = costs.of(module)
        assert case.model is not None
        judge.near(f"{case.name}, executed", cost.flops, products_in(module.to_string()))
        judge.near(f"{case.name}, model", cost.model_flops, case.model)


def captured(judge: Judge, samples: Path) -> None:
    """Each op of the v6e capture: our count from its HLO against what the compiler declared of it."""
    capture = read_capture(samples / V6E)
    names = ("declared_flops", "declared_model_flops", "declared_bytes", "declared_bytes_hbm")
    same = total = low = 0
    for program in capture.programs:
        bare = program.ops
        declared = bare.column("declared_flops").to_pylist()
        for name in names:
            at = bare.schema.get_field_index(name)
            bare = bare.set_column(at, bare.schema.field(at), pa.nulls(bare.num_rows, pa.int64()))
        rows = cost_program(bare, program.program)[0].column("flops").to_pylist()
        total += sum(value is not None for value in declared)
        same += sum(value is not None and value == found for value, found in zip(declared, rows, strict=True))
        low += sum(found is not None and found < 0 for found in rows)
    judge.true(f"v6e: {same} of {total} ops as declared", total > 0 and same == total)
    judge.true("v6e: nothing negative", low == 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=Path, default=Path(os.environ.get("FLEETSCOPE_SAMPLES", SAMPLES)))
    options = parser.parse_args()
    judge, costs = Judge(), Costs()
    begin = time.process_time()
    programs(judge, costs)
    if (options.samples / V6E).exists():
        captured(judge, options.samples)
    else:
        judge.failed.append(f"{options.samples / V6E} is missing: set FLEETSCOPE_SAMPLES")
    return report(
        "hlo_cost", round(judge.worst, 6), "relative error", WITHIN, failed=judge.failed,
        cpu_s=round(time.process_time() - begin, 1), an_instruction=costs.facts(), **judge.facts,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
