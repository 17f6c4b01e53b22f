"""`fleetscope clocks`: where each host's clock stands, how sure that is, and what follows for the order of events."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from fleetscope.cli.exits import FINDING, reported
from fleetscope.cli.output import Format, Output, plain, show
from fleetscope.cli.queries import answer
from fleetscope.cli.scope import From, Host, Last, Run, To, scope_of
from fleetscope.cli.settings import ClockVersion, ConfigFile, LakePath, lake_snapshot

if TYPE_CHECKING:
    from fleetscope.sinks.lake.read import Snapshot

app = typer.Typer(help="one clock for the fleet: offsets, bounds, order", invoke_without_command=True)

CLOCKS = (
    "host", "offset_ns", "drift_ppm", "bound_ns", "quality", "step_ns", "stepped_ns", "worst_peer",
    "worst_asymmetry_ns", "quarantined", "sigma_ns", "steps", "behind_ns", "reference", "epochs", "method", "version",
)  # fmt: skip
STRAGGLERS = (
    "run", "host", "rank", "proved_ratio", "last_ratio", "late_ns", "late_at_least_ns", "within_ns", "collectives",
    "last", "proved", "attempt",
)  # fmt: skip
ORDER = (
    "order",
    "apart_ns",
    "within_ns",
    "why",
    "host_a",
    "host_b",
    "began_a_ns",
    "began_b_ns",
    "quality_a",
    "quality_b",
)

Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="rows at most")]
Event = Annotated[str, typer.Argument(help="a span as PROCESS:SEQ, the columns `process` and `seq` of spans and links")]


@app.callback()
def clocks(
    context: typer.Context, output: Output = Format.TABLE, clock_version: ClockVersion = None,
    config: ConfigFile = None, lake: LakePath = None,
) -> None:  # fmt: skip
    """Hosts with their wall clock's offset, drift, proved bound, quality, last step and worst edge."""
    if context.invoked_subcommand is not None:
        return
    from fleetscope.analysis.clocks import host_clocks, utc_sentence

    with reported():
        snapshot = lake_snapshot(config, lake, clock_version)
        rows = host_clocks(snapshot)
        notes = [utc_sentence(snapshot), *refused(snapshot)] if rows.num_rows else [
            "no clock of a host is solved yet: that takes agents with probes (agent.probes) and a coordinator, and 20 s"
        ]  # fmt: skip
        show(rows, output, "clocks of hosts", columns=CLOCKS, notes=[note for note in notes if note])


def refused(snapshot: "Snapshot") -> list[str]:
    """What was left out of the maps because it cannot be."""
    found = ", ".join(f"{count} ({reason})" for reason, count in sorted(snapshot.alignment.refused.items()))
    return [f"maps left out that cannot be: {found}"] if found else []


@app.command()
def explain(
    host: Annotated[str, typer.Argument(help="name of the host")],
    limit: Limit = 12, output: Output = Format.TABLE, clock_version: ClockVersion = None,
    config: ConfigFile = None, lake: LakePath = None,
) -> None:  # fmt: skip
    """One host: its clock, its paths to peers, steps and contradictions with their proof, its newest maps."""
    from fleetscope.analysis import clocks as analysis

    with reported():
        told = analysis.explain(lake_snapshot(config, lake, clock_version), host, limit)
        if not told.clock.num_rows:
            typer.echo(
                f"fleetscope: no clock of host {host!r} is solved; `fleetscope clocks` lists those that are", err=True
            )
            raise SystemExit(FINDING)
        parts = {"clock": told.clock, "edges": told.edges, "verdicts": told.verdicts, "maps": told.maps}
        if output is Format.JSON:
            print(json.dumps({name: plain(rows) for name, rows in parts.items()}, indent=1, allow_nan=False))
            return
        titles = ("clock", "paths to peers, those that lean most first", "steps and contradictions", "newest maps")
        for title, rows in zip(titles, parts.values(), strict=True):
            if rows.num_rows:
                show(rows, output, title, columns=CLOCKS if title == "clock" else ())


@app.command()
def edges(
    limit: Limit = 50, output: Output = Format.TABLE, config: ConfigFile = None, lake: LakePath = None,
) -> None:  # fmt: skip
    """Pairs of hosts whose network paths lean most to one side: longer there than back."""
    from fleetscope.analysis.clocks import edge_table

    with reported():
        rows = edge_table(lake_snapshot(config, lake), limit)
        show(
            rows,
            output,
            "asymmetry of paths",
            notes=() if rows.num_rows else ["no path was learned yet: that takes minutes"],
        )


@app.command(context_settings={"ignore_unknown_options": True})  # half of all ids begin with a minus
def order(
    event_a: Event, event_b: Event, output: Output = Format.TABLE, clock_version: ClockVersion = None,
    config: ConfigFile = None, lake: LakePath = None,
) -> None:  # fmt: skip
    """Whether one event was before or after another, or neither can be said, within how much, and why."""
    import pyarrow as pa

    from fleetscope.analysis import order as analysis

    try:
        events = [analysis.parse_event(text) for text in (event_a, event_b)]
    except ValueError:
        raise typer.BadParameter(f"{event_a} {event_b}: events are PROCESS:SEQ, two numbers each") from None
    with reported():
        snapshot = lake_snapshot(config, lake, clock_version)
        first, second = analysis.find(snapshot, events)
        if first is None or second is None:
            missing = event_a if first is None else event_b
            typer.echo(f"fleetscope: no span {missing} in spans or links", err=True)
            raise SystemExit(FINDING)
        found = analysis.order(first, second, analysis.caused(snapshot, *events))
        row = {
            "order": found.word, "apart_ns": found.apart_ns, "within_ns": found.within_ns, "why": found.why,
            "name_a": first.name, "name_b": second.name, "host_a": first.host, "host_b": second.host,
            "began_a_ns": first.t_ns, "began_b_ns": second.t_ns, "dur_a_ns": first.dur_ns, "dur_b_ns": second.dur_ns,
            "quality_a": first.quality, "quality_b": second.quality,
            "version_a": first.version, "version_b": second.version,
        }  # fmt: skip
        show(pa.Table.from_pylist([row]), output, f"{event_a} against {event_b}: {found.sentence()}", columns=ORDER)


@app.command()
def stragglers(
    run: Run = None, host: Host = None, from_: From = None, to: To = None, last: Last = None, limit: Limit = 50,
    output: Output = Format.TABLE, clock_version: ClockVersion = None, config: ConfigFile = None, lake: LakePath = None,
) -> None:  # fmt: skip
    """Ranks by how often they came last to collectives, blamed only beyond what all clocks may be off."""
    from fleetscope.analysis.arrivals import straggler_table

    with reported():
        snapshot, scope = lake_snapshot(config, lake, clock_version), scope_of(run, host, from_, to, last)
        rows, verdicts = straggler_table(snapshot, scope, limit)
        notes = [one.sentence() for one in verdicts] or [
            "no collective that two ranks met in: that takes device windows with steps"
        ]
        answer(snapshot, scope, rows, output, "who came last to collectives", STRAGGLERS, findings=notes)
