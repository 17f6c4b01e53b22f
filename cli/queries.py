"""Commands that answer from the lake: top, runs, ops, steps, devices, ledger, query."""

from typing import Annotated

import typer

from fleetscope.cli import exits
from fleetscope.cli.exits import reported
from fleetscope.cli.output import Format, Output, show
from fleetscope.cli.scope import From, Host, Last, Run, To, scope_of
from fleetscope.cli.settings import ConfigFile, LakePath, lake_snapshot

Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="rows at most")]


def top(
    run: Run = None, host: Host = None, from_: From = None, to: To = None, last: Last = None, limit: Limit = 20,
    output: Output = Format.TABLE, config: ConfigFile = None, lake: LakePath = None,
) -> None:  # fmt: skip
    """Ops that take the most device time, with category, share, interval and source line."""
    from fleetscope.analysis.top import top_ops

    with reported():
        scope = scope_of(run, host, from_, to, last)
        show(top_ops(lake_snapshot(config, lake), scope, limit), output, "device time by op")


def runs(
    run: Run = None, host: Host = None, from_: From = None, to: To = None, last: Last = None, limit: Limit = 50,
    output: Output = Format.TABLE, config: ConfigFile = None, lake: LakePath = None,
) -> None:  # fmt: skip
    """Runs with their hosts, devices, step time, MFU, compute share and what is known to be lost."""
    from fleetscope.analysis.runs import run_table

    with reported():
        scope = scope_of(run, host, from_, to, last)
        show(run_table(lake_snapshot(config, lake), scope, limit), output, "runs")


def ops(
    name: Annotated[str | None, typer.Argument(help="part of an op's name or framework name")] = None,
    run: Run = None, host: Host = None, from_: From = None, to: To = None, last: Last = None, limit: Limit = 50,
    output: Output = Format.TABLE, config: ConfigFile = None, lake: LakePath = None,
) -> None:  # fmt: skip
    """One line an op and host: count, mean, percentiles from the histograms, FLOPs and bytes."""
    from fleetscope.analysis.ops import op_table

    with reported():
        scope = scope_of(run, host, from_, to, last)
        show(op_table(lake_snapshot(config, lake), scope, name, limit), output, "ops by host")


def steps(
    run: Run = None, host: Host = None, from_: From = None, to: To = None, last: Last = None, limit: Limit = 50,
    output: Output = Format.TABLE, config: ConfigFile = None, lake: LakePath = None,
) -> None:  # fmt: skip
    """Steps, newest first, with what their time went to."""
    from fleetscope.analysis.steps import step_table

    with reported():
        scope = scope_of(run, host, from_, to, last)
        show(step_table(lake_snapshot(config, lake), scope, limit), output, "steps")


def devices(
    run: Run = None, host: Host = None, from_: From = None, to: To = None, last: Last = None, limit: Limit = 200,
    output: Output = Format.TABLE, config: ConfigFile = None, lake: LakePath = None,
) -> None:  # fmt: skip
    """Devices with busy, compute, collective and copy share, MFU, and throttling where counters say so."""
    from fleetscope.analysis.devices import device_table

    with reported():
        scope = scope_of(run, host, from_, to, last)
        show(device_table(lake_snapshot(config, lake), scope, limit), output, "devices")


def ledger(
    run: Run = None, host: Host = None, from_: From = None, to: To = None, last: Last = None, limit: Limit = 200,
    output: Output = Format.TABLE, config: ConfigFile = None, lake: LakePath = None,
) -> None:  # fmt: skip
    """What every source produced and what became of it. Exit code 1 if events are lost or a sum does not add up."""
    from fleetscope.analysis.ledger import balance, ledger_table

    with reported():
        scope = scope_of(run, host, from_, to, last)
        rows = ledger_table(lake_snapshot(config, lake), scope)
        show(rows.slice(0, limit), output, "ledger (events)")
        if not balance(rows).clean:
            raise SystemExit(exits.FINDING)


def query(
    sql: Annotated[str, typer.Argument(help="DuckDB SQL over the tables and views of the lake")],
    output: Output = Format.TABLE, config: ConfigFile = None, lake: LakePath = None,
) -> None:  # fmt: skip
    """Any SQL over one moment of the lake; `lake info` lists the tables, `spans_named` joins the names in."""
    import duckdb

    with reported():
        snapshot = lake_snapshot(config, lake)
        with snapshot.duckdb() as connection:
            try:
                result = connection.sql(sql)
                rows = result.to_arrow_table() if result is not None else None
            except duckdb.Error as error:
                typer.echo(f"fleetscope: {error}", err=True)
                raise SystemExit(exits.USAGE) from error
        if rows is not None:
            show(rows, output)
