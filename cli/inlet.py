"""Commands that bring data in: run a program with the profiler, simulate a fleet, import a capture."""

import os
import shutil
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from fleetscope.cli.exits import FINDING, UNAVAILABLE, USAGE, reported
from fleetscope.cli.output import Format, Output, show
from fleetscope.cli.roles import Verbose, start_logging, stopped_by_signals
from fleetscope.cli.settings import ConfigFile, LogUrl, settings


def run(
    context: typer.Context,
    run: Annotated[str | None, typer.Option("--run", help="name of the run; default: the script's name")] = None,
    rank: Annotated[int | None, typer.Option("--rank", help="default: from the launcher's environment")] = None,
    flops_per_step: Annotated[
        float | None,
        typer.Option(
            "--flops-per-step", min=0, help="model FLOPs of a step of the whole job, for mfu declared in `runs`"
        ),
    ] = None,
    pth: Annotated[bool, typer.Option("--pth", help="print a line for a .pth file instead, and run nothing")] = False,
    config: ConfigFile = None,
) -> None:
    """Run any JAX program with the profiler in, its code unchanged: fleetscope run -- python train.py ...

    Scripts, modules, console scripts, notebooks, launchers (torchrun, mpirun, srun), `uv run`, and what they start. Its
    exit code (128 + n after signal n), signals and output are its own. Without an agent on this host it runs all the
    same, unrecorded. A command line that keeps the profiler out (python -I, -E, -S; env -i) is refused: exit code 2.
    """
    argv = list(context.args)
    if pth:
        from fleetscope.agents.profiler.inject import pth_line

        print(pth_line())
        return
    if not argv:
        typer.echo("fleetscope run: no program; usage: fleetscope run -- python train.py ...", err=True)
        raise SystemExit(USAGE)
    with reported():
        from fleetscope.agents.profiler.inject import environment, keeper_command
        from fleetscope.agents.profiler.inject.refusal import obstacle

        loaded = settings(config)
        program = shutil.which(argv[0])
        if program is None:
            typer.echo(f"fleetscope run: {argv[0]}: no such program", err=True)
            raise SystemExit(UNAVAILABLE)
        why = obstacle(argv)
        if why:
            typer.echo(f"fleetscope run: {why}: the profiler cannot get in; docs/injection.md has other ways", err=True)
            raise SystemExit(USAGE)
        # A configuration that names another agent or folder must reach the program as it reaches that agent.
        base = {**os.environ}
        base.setdefault("FLEETSCOPE_AGENT_SOCKET", str(loaded.agent_socket))
        base.setdefault("FLEETSCOPE_AGENT__SHM_DIR", str(loaded.agent.shm_dir))
        if not answers(Path(base["FLEETSCOPE_AGENT_SOCKET"])):
            typer.echo(
                f"fleetscope run: warning: no agent at {base['FLEETSCOPE_AGENT_SOCKET']}: nothing is recorded until "
                "`fleetscope agent` runs on this host",
                err=True,
            )
        variables = environment(argv, base)
        if run is not None:
            variables["FLEETSCOPE_RUN"] = run
        if rank is not None:
            variables["FLEETSCOPE_RANK"] = str(rank)
        if flops_per_step is not None:
            variables["FLEETSCOPE_FLOPS_PER_STEP"] = repr(flops_per_step)
        command = keeper_command(program, argv, variables)
        if sys.stdout is not None:  # None: started without one
            sys.stdout.flush()
        try:
            os.execve(command[0], command, variables)
        except OSError as error:
            if len(command) > 4 and variables.get("FLEETSCOPE_REPORT") == command[4]:
                os.unlink(command[4])
            typer.echo(f"fleetscope run: {program}: {error.strerror}", err=True)
            raise SystemExit(UNAVAILABLE) from error


def answers(path: Path) -> bool:
    """Somebody listens on the unix socket."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            connection.connect(str(path))
    except OSError:
        return False
    return True


def _speed(text: str) -> str:
    try:
        if text == "max" or 0 < float(text) < float("inf"):
            return text
    except ValueError:
        pass
    raise typer.BadParameter(f"{text!r} is neither max nor a number above 0")


def simulate(
    hosts: Annotated[int, typer.Option(min=1, help="hosts")] = 8,
    chips: Annotated[int, typer.Option(min=1, help="chips a host")] = 4,
    seconds: Annotated[float, typer.Option(min=0.1, help="of fleet time")] = 120.0,
    seed: Annotated[int, typer.Option(help="everything follows from it")] = 1,
    truth: Annotated[Path | None, typer.Option(help="folder for the exact truth, as Parquet")] = None,
    speed: Annotated[
        str, typer.Option(callback=_speed, help="1: real time, 10: ten times as fast, max: as fast as it goes")
    ] = "1",
    fault: Annotated[list[str] | None, typer.Option(help="KIND:k=v,... (repeatable); all")] = None,
    run: Annotated[str, typer.Option("--run", help="name of the simulated run")] = "simulated",
    ops: Annotated[int, typer.Option(min=10, help="ops a step and chip")] = 1500,
    step_ms: Annotated[float, typer.Option(min=1, help="step time, unless the ops take longer")] = 500.0,
    busy: Annotated[float, typer.Option(min=0, max=1, help="scale ops to fill that share of a step; 0: do not")] = 0.0,
    shim: Annotated[bool, typer.Option("--shim", help="tell every execution too, as the PJRT shim does")] = False,
    pages: Annotated[
        Path | None, typer.Option(help="serve each host's /metrics; their addresses go here, for Prometheus' file_sd")
    ] = None,
    log_url: LogUrl = None, config: ConfigFile = None, verbose: Verbose = False,
) -> None:  # fmt: skip
    """A fleet with known truth: the same batches, spool and transport as real hosts."""
    start_logging(verbose)
    with reported(), stopped_by_signals() as stop:
        from fleetscope.agents.simulated import Simulation

        simulation = Simulation(
            settings(config, log=log_url), hosts=hosts, chips=chips, seconds=seconds, seed=seed, truth=truth,
            speed=speed, faults=fault or [], run=run, ops=ops, step_ms=step_ms,
            busy=busy, shim=shim, pages=pages,
        )  # fmt: skip
        simulation.run(stop)


IMPORTED = (
    "device", "ops", "busy_ns", "own_duty_ratio", "displaced", "sku", "flops", "bytes_hbm", "bytes_accessed",
    "executions", "drift_ppm", "peak_flops", "peak_hbm_bytes_per_s",
)  # fmt: skip


def import_(
    files: Annotated[list[Path], typer.Argument(help="FILE.xplane.pb")],
    run: Annotated[str | None, typer.Option("--run", help="name of the run; default: the file's name")] = None,
    host: Annotated[str | None, typer.Option("--host", help="name of the host; default: what the capture says")] = None,
    output: Output = Format.TABLE, log_url: LogUrl = None, config: ConfigFile = None, verbose: Verbose = False,
) -> None:  # fmt: skip
    """Bring XProf captures in through the log, and report what each holds and how its clocks agree."""
    start_logging(verbose)
    with reported():
        import pyarrow as pa

        from fleetscope.agents.xspace.importing import import_capture
        from fleetscope.schema.errors import XSpaceUnreadable
        from fleetscope.schema.secrets import shown

        loaded = settings(config, log=log_url)
        reports, failed = [], False
        for file in files:
            try:
                reports.append(import_capture(loaded, file, run=run, host=host))
            except XSpaceUnreadable as error:
                # One bad file of a folder does not keep the others out.
                print(f"fleetscope: {error}", file=sys.stderr)
                failed = True
        if output is Format.TABLE:
            for report in reports:
                notes = [f"{row['device']}: {row['notes']}" for row in report.to_pylist() if row["notes"]]
                show(report, output, report.column("file")[0].as_py(), columns=IMPORTED, notes=notes)
        elif reports:
            show(pa.concat_tables(reports), output)
        if reports:
            sys.stdout.flush()
            print(f"in the log {shown(loaded.log_url)}: a worker brings it into the lake", file=sys.stderr)
        if failed:
            raise SystemExit(FINDING if reports else UNAVAILABLE)
