"""`bridgehead track`: W&B, MLflow and TensorBoard told by hand, once or for as long as it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridgehead import names
from bridgehead.errors import TransferError, UsageError
from run_control.cli_support import JsonFlag, ProjectFlag, emit, note, project_of, table

if TYPE_CHECKING:
    from run_control.tracking.feeder import Feeder

_EXAMPLE = '[tracking] with sinks = ["tensorboard"], "wandb" or "mlflow"; README, "Tracking"'


def register(app: typer.Typer) -> None:
    app.command("track")(track)


def track(
    context: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Tell what has arrived, and end.")] = False,
    json: JsonFlag = False,
    project: ProjectFlag = None,
) -> int:
    """Tell the sinks of [tracking] about all runs, as `up` does in the background. Exit 12 when one took not all."""
    from run_control import project_file
    from run_control.tracking import follower

    found = project_of(context, project)
    if not project_file.tracking(found.root)[1].sinks:
        raise UsageError(f"[tracking] of {names.PROJECT_FILE} names no sink", hint=_EXAMPLE)
    if not once:
        if json:
            raise UsageError("--json goes with --once")
        follower.follow(found, lambda: False, say=note)
        return 0
    results = [_result(feeder) for feeder in follower.once(found)]

    def show() -> None:
        rows = [(r["sink"], r["state"], str(r["runs"]), str(r["points"]), r["error"], r["next"]) for r in results]
        table(("SINK", "STATE", "RUNS", "NEW ROWS", "WHY", "NEXT"), rows)

    bad = next((result for result in results if result["error"]), None)
    error = TransferError(f"{bad['sink']}: {bad['error']}", hint=bad["next"]) if bad else None
    return emit({"sinks": results}, as_json=json, show=show, error=error)


def _result(feeder: Feeder) -> dict[str, Any]:
    standing = feeder.standing
    return {
        "sink": feeder.feed.name,
        "state": "FAILED" if standing.trouble else "told",
        "runs": standing.runs,
        "points": standing.points,
        "error": standing.trouble,
        "next": standing.next,
    }
