"""`bridgehead`: the command line. Commands import what they need when they run, so that --help is quick."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from bridgehead import __version__
from run_control import (
    cli_failures,
    cli_keys,
    cli_models,
    cli_notify,
    cli_panel,
    cli_project,
    cli_query,
    cli_runs,
    cli_specs,
    cli_studies,
    cli_track,
    cli_vms,
)
from run_control.cli_support import run

PROG = "bridgehead"

app = typer.Typer(
    name=PROG,
    help="Long training runs that finish, on a GPU you can only rent by the notebook cell.",
    add_completion=False,
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
    rich_markup_mode=None,
)
cli_project.register(app)
cli_runs.register(app)
cli_vms.register(app)
cli_keys.register(app)
cli_specs.register(app)
cli_failures.register(app)
cli_models.register(app)
cli_studies.register(app)
cli_query.register(app)
cli_notify.register(app)
cli_panel.register(app)
cli_track.register(app)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    project: Annotated[Path | None, typer.Option("--project", "-C", metavar="DIR", help="The project folder.")] = None,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colours; NO_COLOR=1 does the same.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if no_color:
        os.environ["NO_COLOR"] = "1"
    if version:
        typer.echo(f"{PROG} {__version__}")
        raise typer.Exit(0)
    context.obj = project
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (bridgehead/errors.py has the table)."""
    return run(app, sys.argv[1:] if argv is None else argv, PROG)


if __name__ == "__main__":
    sys.exit(main())
