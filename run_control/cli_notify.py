"""`bridgehead notify test`: whether what [notify] names gets through."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from bridgehead import names
from bridgehead.errors import BridgeheadError, TransferError, UsageError
from run_control.cli_support import JsonFlag, ProjectFlag, emit, note, project_of, table

if TYPE_CHECKING:
    from run_control.notify_spec import Channel, NotifySpec

_EXAMPLE = 'for example [notify] with ntfy = "https://ntfy.sh/some-name-of-yours", and the ntfy app on your phone'


def register(app: typer.Typer) -> None:
    notify = typer.Typer(
        help="What [notify] tells you of finished, failed, lost and stalled runs.", rich_markup_mode=None
    )
    notify.command("test")(notify_test)
    notify.callback()(notify_group)
    app.add_typer(notify, name="notify")


def notify_group() -> None:
    """Notifications: see "Notifications" in the README."""


def notify_test(context: typer.Context, json: JsonFlag = False, project: ProjectFlag = None) -> int:
    """Send one message through each channel now. Exit 12 when one does not get through."""
    from run_control import project_file

    found = project_of(context, project)
    spec = project_file.notify(found.root)
    if not spec.channels:
        raise UsageError(f"[notify] of {names.PROJECT_FILE} names no channel", hint=_EXAMPLE)
    results = [_try(channel, found.root, spec) for channel in spec.channels]
    bad = [result for result in results if not result["ok"]]

    def show() -> None:
        rows = [(r["channel"], "sent" if r["ok"] else "FAILED", r["to"], r["error"], r["next"]) for r in results]
        table(("CHANNEL", "STATE", "TO", "WHY", "NEXT"), rows)
        for result in bad:
            for line in result["output"].splitlines():
                note(f"{result['channel']}: {line}")

    error = None
    if bad:
        error = TransferError(f"{bad[0]['channel']}: {bad[0]['error']}", hint=bad[0]["next"])
    return emit({"channels": results}, as_json=json, show=show, error=error)


def _try(channel: Channel, root: Path, spec: NotifySpec) -> dict[str, Any]:
    from run_control import notify_channels, notify_event

    text = "if you can read this, notifications of this project reach you"
    name = root.name
    event = notify_event.Event(f"test:{time.time()}", notify_event.TEST, f"{name}: a test", text, time.time(), name)
    told: dict[str, Any] = {
        "channel": str(channel),
        "to": _to(channel, spec),
        "ok": True,
        "error": "",
        "next": "",
        "output": "",
    }
    try:
        notify_channels.send(spec, channel, event, root)
    except BridgeheadError as error:
        output = getattr(error, "output", "")
        return {**told, "ok": False, "error": error.message, "next": error.hint, "output": output}
    except OSError as error:
        return {**told, "ok": False, "error": str(error), "next": "is the network up, and the address right?"}
    return told


def _to(channel: Channel, spec: NotifySpec) -> str:
    from run_control.notify_spec import Channel

    if channel is Channel.COMMAND:
        return str(spec.command[0])
    return str(spec.email) if channel is Channel.EMAIL else str(getattr(spec, channel).shown)
