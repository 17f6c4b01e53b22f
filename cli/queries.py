"""Commands that answer from the lake: top, runs, ops, steps, devices, ledger, query."""

import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from fleetscope.cli import exits
from fleetscope.cli.cells import cell
from fleetscope.cli.exits import reported
from fleetscope.cli.output import Format, Output, show, show_records
from fleetscope.cli.scope import From, Host, Last, Run, To, scope_of
from fleetscope.cli.settings import ClockVersion, ConfigFile, LakePath, lake_snapshot

if TYPE_CHECKING:
    import pyarrow as pa

    from fleetscope.analysis.ledger import Balance
    from fleetscope.analysis.scope import Scope
    from fleetscope.sinks.lake.read import Snapshot


class By(StrEnum):
    """What `ops` puts together."""

    OP = "op"
    CATEGORY = "category"
    PROGRAM = "program"


Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="rows at most")]

TOP = (
    "op", "share_ratio", "category", "low_ratio", "high_ratio", "source", "run", "count", "mean_ns", "time_ns", "seen",
    "calibrated", "module", "op_name", "shape",
)  # fmt: skip
RUNS = (
    "run", "step_time_ns", "mfu_ratio", "compute_ratio", "busy_ratio", "state", "hosts", "devices", "steps", "lost",
    "mfu_declared_ratio", "collective_ratio", "copy_ratio", "last_ns", "attempt", "ranks", "first_ns", "seen",
    "mfu_absent", "other_ratio", "hfu_ratio", "flops_coverage_ratio", "clock_ratio", "mfu_at_clock_ratio",
    "hfu_by_dtype", "flops_unknown", "mistimed_steps",
)  # fmt: skip
OPS = (
    "op", "host", "share_ratio", "self_ns", "count", "mean_ns", "low_ratio", "high_ratio", "windows", "category",
    "calibrated", "source", "run", "coverage_ratio", "p99_ns", "p50_ns", "max_ns", "min_ns", "flops_per_s", "flops",
    "bytes_hbm", "reason", "residual_ratio", "seen", "module", "shape",
)  # fmt: skip
GROUPS = (
    "category", "module", "host", "share_ratio", "self_ns", "count", "low_ratio", "high_ratio", "windows", "calibrated",
    "run", "coverage_ratio", "ops", "executions", "residual_ratio", "unobservable", "reason", "rank", "seen", "program",
)  # fmt: skip
STEPS = (
    "run", "step", "step_time_ns", "slowest_ns", "slowest_host", "host", "rank", "data_wait_ns", "compute_ratio",
    "began_ns", "flow", "flags", "ranks", "collective_ratio", "copy_ratio", "dispatch_ns", "compile_ns",
    "checkpoint_ns", "h2d_ns", "occupancy_ratio", "idle_ratio", "queue_mean_ns", "d2h_ns", "source", "confidence_ratio",
    "mfu_ratio", "hfu_ratio", "mfu_absent", "flops_coverage_ratio", "clock_ratio", "mfu_at_clock_ratio", "hfu_by_dtype",
)  # fmt: skip
HOPS = (
    "hop", "name", "begin_ns", "dur_ns", "wait_ns", "wait_error_ns", "host", "after", "thread", "pid", "order",
    "produces", "consumes", "step", "rank", "run", "flags", "begin_error_ns", "began_ns",
)  # fmt: skip
DEVICES = (
    "host", "device", "busy_ratio", "compute_ratio", "throttled_ratio", "mfu_ratio", "run", "busy_low_ratio",
    "busy_high_ratio", "windows", "calibrated", "occupancy_ratio", "idle_ratio", "idle_input_ratio",
    "idle_dispatch_ratio", "idle_compile_ratio", "idle_checkpoint_ratio", "idle_unknown_ratio", "queue_mean_ns",
    "run_ahead_max", "collective_ratio", "sparse_core_ratio", "copy_ratio", "coverage_ratio",
    "residual_ratio", "sku", "temperature_celsius", "power_watts", "clock_hertz", "throttle_reasons", "observed_ns",
    "rank", "seen", "executions", "reason", "error_ns", "mfu_absent", "device_key",
    "hfu_ratio", "clock_ratio", "mfu_at_clock_ratio",
)  # fmt: skip
LEDGER = (
    "host", "run", "what", "produced", "stored", "in_flight", "dropped", "lost", "open_gap", "dead_lettered",
    "duplicate", "unbalanced", "rank", "dropped_by_reason", "lost_ranges", "open_ranges",
)  # fmt: skip


def top(
    run: Run = None, host: Host = None, from_: From = None, to: To = None, last: Last = None, limit: Limit = 20,
    output: Output = Format.TABLE, config: ConfigFile = None, lake: LakePath = None,
) -> None:  # fmt: skip
    """Ops that take the most device time, with category, share, interval and source line."""
    from fleetscope.analysis.top import top_ops

    with reported():
        snapshot, scope = lake_snapshot(config, lake), scope_of(run, host, from_, to, last)
        rows = top_ops(snapshot, scope, limit)
        waits = waiting_notes(snapshot, scope)
        answer(snapshot, scope, rows, output, "device time by op", TOP, interval_notes(rows), waits)


def interval_notes(rows: "pa.Table") -> list[str]:
    """What a reader of shares has to know: where they come from, and what has none."""
    from fleetscope.analysis.estimate import FEWEST, TOO_FEW, UNOBSERVABLE

    lines = rows.to_pylist()
    windows = max((line["windows"] or 0 for line in lines if line["seen"] == "windows"), default=0)
    notes = []
    if any(line["reason"] == TOO_FEW for line in lines):
        so_far = f"{windows} device window" + "s" * (windows != 1)
        notes.append(f"from {so_far}: intervals are given from {FEWEST} windows on that saw the op or program")
    elif windows:
        notes.append(f"low, high: 95 % interval from {windows} device windows")
    if any(line.get("calibrated") for line in lines):
        notes.append("calibrated: time per execution in windows x exact count of executions")
    unmeasured = [line["op"] for line in lines if line["reason"] == UNOBSERVABLE and "op" in line]
    unmeasured += [name for line in lines for name in line.get("unobservable") or ()]
    if unmeasured:
        notes.append(f"no share: {UNOBSERVABLE}: {', '.join(cell('op', name) for name in unmeasured)}")
    return notes


def waiting_notes(snapshot: "Snapshot", scope: "Scope") -> list[str]:
    """Runs whose devices starve: said wherever a reader asks what is slow."""
    from fleetscope.analysis.waiting import input_waits

    return [wait.sentence() for wait in input_waits(snapshot, scope) if wait.bound]


def runs(
    run: Run = None, host: Host = None, from_: From = None, to: To = None, last: Last = None, limit: Limit = 50,
    output: Output = Format.TABLE, config: ConfigFile = None, lake: LakePath = None,
) -> None:  # fmt: skip
    """Runs with their hosts, devices, step time, MFU, compute share and what is known to be lost."""
    from fleetscope.analysis.runs import run_table

    with reported():
        snapshot, scope = lake_snapshot(config, lake), scope_of(run, host, from_, to, last)
        answer(snapshot, scope, run_table(snapshot, scope, limit), output, "runs", RUNS)


def ops(
    name: Annotated[str | None, typer.Argument(help="part of an op's name, framework name or module")] = None,
    by: Annotated[
        By, typer.Option("--by", help="one line an op, or all of a category or of a program together")
    ] = By.OP,
    run: Run = None, host: Host = None, from_: From = None, to: To = None, last: Last = None, limit: Limit = 50,
    output: Output = Format.TABLE, config: ConfigFile = None, lake: LakePath = None,
) -> None:  # fmt: skip
    """One line an op and host: share of device time with its interval, count, mean, percentiles, FLOPs and bytes."""
    from fleetscope.analysis.groups import group_table
    from fleetscope.analysis.ops import op_table

    if by is not By.OP and name is not None:
        raise typer.BadParameter("a name chooses among ops: leave out --by")
    with reported():
        snapshot, scope = lake_snapshot(config, lake), scope_of(run, host, from_, to, last)
        if by is By.OP:
            rows = op_table(snapshot, scope, name, limit)
            answer(snapshot, scope, rows, output, "ops by host", OPS, interval_notes(rows))
        else:
            rows = group_table(snapshot, scope, "category" if by is By.CATEGORY else "program", limit)
            answer(snapshot, scope, rows, output, f"device time by {by.value} and host", GROUPS, interval_notes(rows))


def steps(
    ranks: Annotated[bool, typer.Option("--ranks", help="one line a rank, not a step; implied by --host")] = False,
    flow: Annotated[
        str | None, typer.Option("--flow", help="way of the thing with this id: 123, 0x7b, batcher:123")
    ] = None,
    run: Run = None, host: Host = None, from_: From = None, to: To = None, last: Last = None, limit: Limit = 50,
    output: Output = Format.TABLE, clock_version: ClockVersion = None, config: ConfigFile = None,
    lake: LakePath = None,
) -> None:  # fmt: skip
    """Steps, newest first, with what their time went to and which rank was slowest; or the way of one --flow."""
    from fleetscope.analysis.steps import rank_step_table, step_table

    if flow is not None:
        if ranks:
            raise typer.BadParameter("--ranks is of steps, not of a --flow")
        return _flow(flow, scope_of(run, host, from_, to, last), limit, output, clock_version, config, lake)
    with reported():
        snapshot, scope = lake_snapshot(config, lake, clock_version), scope_of(run, host, from_, to, last)
        table = rank_step_table if ranks or host is not None else step_table
        waits = waiting_notes(snapshot, scope)
        answer(snapshot, scope, table(snapshot, scope, limit), output, "steps", STEPS, findings=waits)


def _flow(
    text: str, scope: "Scope", limit: int, output: Format, version: ClockVersion, config: ConfigFile, lake: LakePath
) -> None:
    """The hops of one flow; an id nobody has used is a finding."""
    from fleetscope.analysis.flows import flow_table, newest_flows, parse_key
    from fleetscope.analysis.names import unknown_names

    try:
        context, number = parse_key(text)
    except ValueError as error:
        raise typer.BadParameter(f"--flow {text}: no id such as 123, 0x7b or batcher:123 ({error})") from None
    with reported():
        snapshot = lake_snapshot(config, lake, version)
        chain = flow_table(snapshot, scope, number, context, limit)
        if chain.rows.num_rows:
            notes = [f"the id was used {chain.uses} times: this is the newest use"] * (chain.uses > 1)
            notes += [f"the {limit} nearest hops of more: --limit"] * chain.more
            show(chain.rows, output, f"flow {text}", columns=worth_showing(chain.rows, HOPS), notes=notes)
            return
        near = newest_flows(snapshot, scope)
        where = "in this scope" if scope != type(scope)() else "in the lake"
        there = f"; the newest are {', '.join(near)}" if near else "; there are no links"
        why = unknown_names(snapshot, scope) or [f"no flow {text} {where}{there}"]
        _nothing(chain.rows, output, why, finding=True)


def devices(
    run: Run = None, host: Host = None, from_: From = None, to: To = None, last: Last = None, limit: Limit = 200,
    output: Output = Format.TABLE, clock_version: ClockVersion = None, config: ConfigFile = None,
    lake: LakePath = None,
) -> None:  # fmt: skip
    """Devices with busy, compute, collective and copy share, MFU, and throttling where counters say so."""
    from fleetscope.analysis.devices import device_table

    with reported():
        snapshot, scope = lake_snapshot(config, lake, clock_version), scope_of(run, host, from_, to, last)
        rows = device_table(snapshot, scope, limit)
        answer(snapshot, scope, rows, output, "devices", DEVICES, interval_notes(rows))


def ledger(
    run: Run = None, host: Host = None, from_: From = None, to: To = None, last: Last = None, limit: Limit = 200,
    output: Output = Format.TABLE, config: ConfigFile = None, lake: LakePath = None,
) -> None:  # fmt: skip
    """What every source produced and what became of it. Exit code 1 if events are lost or a sum does not add up."""
    from fleetscope.analysis.ledger import balance, ledger_table

    with reported():
        snapshot, scope = lake_snapshot(config, lake), scope_of(run, host, from_, to, last)
        rows = ledger_table(snapshot, scope)
        sums = balance(rows)
        answer(snapshot, scope, rows.slice(0, limit), output, "ledger (events)", LEDGER, [sentence(sums)])
        if not sums.clean:
            sys.stdout.flush()
            raise SystemExit(exits.FINDING)


def sentence(sums: "Balance") -> str:
    """The ledger in one line; fates that met no event are left out, but for what was lost."""
    fates = {
        "in flight": sums.in_flight, "dropped at the source": sums.dropped, "dead letters": sums.dead_lettered,
        "in open gaps": sums.open_gap, "duplicate": sums.duplicate, "that do not add up": sums.unbalanced,
    }  # fmt: skip
    some = "".join(f", {count:,} {words}" for words, count in fates.items() if count)
    return (
        f"{sums.sources} sources: {sums.produced:,} events produced, {sums.stored:,} stored, {sums.lost:,} lost{some}"
    )


def query(
    sql: Annotated[str, typer.Argument(help="DuckDB SQL over the tables and views of the lake; -: from stdin")],
    output: Output = Format.TABLE, clock_version: ClockVersion = None, config: ConfigFile = None,
    lake: LakePath = None,
) -> None:  # fmt: skip
    """Any SQL over one moment of the lake; `lake info` lists the tables, `spans_named` joins the names in."""
    with reported():
        import duckdb

        snapshot = lake_snapshot(config, lake, clock_version)
        with snapshot.duckdb() as connection:
            try:
                result = connection.sql(sys.stdin.read() if sql == "-" else sql)
                rows = result.to_arrow_table() if result is not None else None
            except duckdb.Error as error:
                print(f"fleetscope: {error}", file=sys.stderr)
                raise SystemExit(exits.USAGE) from error
        if rows is None:
            print("fleetscope: the statement has no result", file=sys.stderr)
        else:
            show_records(rows, output)


def answer(
    snapshot: "Snapshot", scope: "Scope", rows: "pa.Table", output: Format, title: str, columns: tuple[str, ...],
    notes: Sequence[str] = (), findings: Sequence[str] = (),
) -> None:  # fmt: skip
    """Print; an empty answer says why, and exits with 1 where a name is wrong. `findings` are said in any case."""
    if rows.num_rows:
        show(rows, output, title, columns=worth_showing(rows, columns), notes=[*findings, *notes])
        return
    from fleetscope.analysis.names import unknown_names

    wrong = unknown_names(snapshot, scope)
    nothing = (
        "nothing in this time range" if scope.timed else "nothing found" if snapshot.now_ns else "the lake is empty"
    )
    why = wrong or [*findings, nothing]
    _nothing(rows, output, why, finding=bool(wrong))


def _nothing(rows: "pa.Table", output: Format, why: Sequence[str], *, finding: bool) -> None:
    """Say why an answer is empty; exits with 1 where that is a finding."""
    show(rows, output, notes=why)
    if output is not Format.TABLE:
        print("\n".join(why), file=sys.stderr)
    if finding:
        sys.stdout.flush()
        raise SystemExit(exits.FINDING)


ALWAYS = 6
"""So many of the most important columns are shown even where they hold nothing."""


def worth_showing(rows: "pa.Table", columns: tuple[str, ...]) -> list[str]:
    """The important columns, and of the others those that hold something besides none, nothing and 0."""
    return [
        name
        for place, name in enumerate(columns)
        if name in rows.column_names and (place < ALWAYS or any(rows.column(name).to_pylist()))
    ]
