"""The `fleetscope` command: thin, it calls the rooms. Each sub-command imports what it needs when it runs."""

import typer

from fleetscope.cli import asking, check, clocks, demo, doctor, inlet, kafka, lake, queries, roles, soak, windows

app = typer.Typer(
    name="fleetscope",
    help="An always-on profiler for fleets of accelerators that run JAX/OpenXLA programs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

RUN_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}

app.command(context_settings=RUN_OPTIONS, options_metavar="[OPTIONS] -- COMMAND [ARGS]...", rich_help_panel="Record")(
    inlet.run
)
agent = typer.Typer(invoke_without_command=True)
agent.callback()(roles.agent)
agent.command()(asking.status)
app.add_typer(agent, name="agent", rich_help_panel="Record")
app.command(rich_help_panel="Record")(inlet.simulate)
app.command("import", rich_help_panel="Record")(inlet.import_)
for role in (roles.worker, roles.coordinator, roles.exporter, roles.up):
    app.command(rich_help_panel="Process")(role)
for question in (
    queries.top, queries.runs, queries.ops, queries.steps, queries.devices, queries.ledger, queries.query,
):  # fmt: skip
    app.command(rich_help_panel="Ask")(question)
app.command(rich_help_panel="Ask")(asking.stacks)
app.add_typer(clocks.app, name="clocks", rich_help_panel="Ask")
app.add_typer(lake.app, name="lake", rich_help_panel="Ask")
app.command(rich_help_panel="Operate")(doctor.doctor)
app.add_typer(check.app, name="config", rich_help_panel="Operate")
app.command("soak-windows", rich_help_panel="Operate")(soak.soak_windows)
app.add_typer(windows.app, name="windows", rich_help_panel="Operate")
app.add_typer(kafka.app, name="kafka", rich_help_panel="Operate")
app.command(rich_help_panel="Operate")(demo.demo)


if __name__ == "__main__":
    app()
