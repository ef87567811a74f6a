"""`bridgehead query`: runs by what they are, were asked and came to."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from bridgehead.errors import UsageError
from run_control.cli_support import JsonFlag, ProjectFlag, emit, note, project_of, table


def register(app: typer.Typer) -> None:
    app.command("query")(query)


def query(
    context: typer.Context,
    text: Annotated[
        str, typer.Argument(metavar="QUERY", help='"stage=pretrain loss<0.4 order by hours desc limit 5"')
    ] = "",
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values.")] = False,
    json: JsonFlag = False,
    project: ProjectFlag = None,
) -> int:
    """Find runs. Names: state, step, hours, cost, metrics, results, config; without QUERY all runs."""
    from run_control import query as asking

    if as_csv and json:
        raise UsageError("either --csv or --json")
    asked = asking.parse(text)
    there = project_of(context, project)
    rows = asking.rows(there)
    if not rows:
        asking.check_names(there, asked)
    found = asking.answer(rows, asked)

    def show() -> None:
        if as_csv:
            sys.stdout.write(asking.as_csv(found, asked.columns))
            return
        cells = [tuple(_cell(asking.value_of(row, name)) for name in asked.columns) for row in found]
        table([name.upper() for name in asked.columns], cells)
        if not found:
            note("no run fits")

    return emit({"columns": asked.columns, "runs": found}, as_json=json, show=show)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
