"""The v6e capture op by op against the xprof wheel, which reads the same file with XLA's own code."""

import json
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleetscope.agents.xspace.importing import Imported
from fleetscope.schema.vocabulary import Kind

FILE = "xprof__tpu_inference_2.xplane.pb"


@pytest.fixture(scope="module")
def tool(samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """``tool("hlo_stats")``: a tool's JSON. The wheel writes its caches beside the file, so it gets a copy."""
    from xprof.convert import raw_to_tool_data

    copy = tmp_path_factory.mktemp("xprof") / FILE
    shutil.copy(samples / "xplane" / FILE, copy)

    def run(name: str) -> Any:
        data, _ = raw_to_tool_data.xspace_to_tool_data([str(copy)], name, {})
        return json.loads(data)

    return run


@pytest.mark.golden
def test_count_and_time_of_every_op(tool: Callable[[str], Any], imported: Callable[[str], Imported]) -> None:
    stats = tool("hlo_stats")
    at = {column["id"]: i for i, column in enumerate(stats["cols"])}
    theirs = {}
    for row in stats["rows"]:
        cell = [value["v"] for value in row["c"]]
        key = (int(cell[at["program_id"]]), cell[at["hlo_op_name"]])
        # us as a double: exact to well below one tick of 1 250 ps.
        theirs[key] = (round(cell[at["occurrences"]]), round(cell[at["total_time"]] * 1e6 / 1250), cell[at["category"]])

    capture = imported("v6e")
    names = {
        (program.program, op): (program.module_id % (1 << 64), name, category)
        for program in capture.programs
        for op, name, category in zip(
            *(program.ops.column(column).to_pylist() for column in ("op", "name", "category")), strict=True
        )
    }
    ours: dict[tuple[int, str], list[Any]] = defaultdict(lambda: [0, 0, ""])
    for device in capture.capture.devices:
        for row in device.rows.to_pylist():
            if row["kind"] != Kind.MODULE:
                program_id, name, category = names[row["program"], row["op"]]
                entry = ours[program_id, name]
                entry[0] += 1
                entry[1] += row["dur"]
                entry[2] = category
    # XProf may leave ops that took no time out of this table.
    assert set(theirs) <= set(ours)
    assert {key: tuple(ours[key]) for key in theirs} == theirs
    assert sum(ours[key][1] for key in set(ours) - set(theirs)) == 0


@pytest.mark.golden
def test_totals(tool: Callable[[str], Any], imported: Callable[[str], Imported]) -> None:
    metrics = tool("op_profile")["byProgram"]["metrics"]
    report = imported("v6e").report
    assert metrics["rawFlops"] == sum(device.flops or 0 for device in report.devices)
    assert round(metrics["rawBytesAccessedArray"][0]) == sum(device.bytes_hbm or 0 for device in report.devices)
    assert metrics["normalizedTimePs"] == sum(device.busy_ps for device in report.devices)


@pytest.mark.golden
def test_duty_cycle(tool: Callable[[str], Any], imported: Callable[[str], Imported]) -> None:
    overview = {}
    for table in tool("overview_page"):
        overview.update(table.get("p", {}))
    duty = imported("v6e").report.duty
    assert duty is not None
    assert overview["device_duty_cycle_percent"] == f"{100 * duty:.1f}%"
    assert overview["device_type"] == imported("v6e").capture.devices[0].sku
