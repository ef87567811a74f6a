"""What earlier runs of a stage took, from the files that arrived of them: the best guess at the next one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bridgehead import files, names
from bridgehead.errors import UsageError
from bridgehead.names import RunState
from bridgehead.records import ExitRecord, Status

_GB = 10**9
_LOOKED_AT = 20


@dataclass(frozen=True)
class Before:
    """Of the newest run that is done; None: there was none, or it does not say."""

    run_id: str = ""
    hours: float | None = None
    checkpoint_gb: float | None = None


def before(inbox: Path, stage: str) -> Before:
    """Looks at the newest runs of that stage alone; run ids sort by the place of their line in the queue."""
    folders = sorted(inbox.glob(f"{stage}-[0-9]*-*"), key=lambda path: path.name, reverse=True)
    for folder in folders[:_LOOKED_AT]:
        try:
            ended = ExitRecord.from_json(files.read_json(folder / names.EXIT))
        except UsageError:
            continue
        if ended.state is RunState.DONE and ended.ended > ended.started > 0:
            return Before(folder.name, (ended.ended - ended.started) / 3600.0, _checkpoint_gb(folder))
    return Before()


def _checkpoint_gb(folder: Path) -> float | None:
    try:
        status = Status.from_json(files.read_json(folder / names.STATUS))
    except UsageError:
        return None
    size = status.checkpoint.size_bytes if status.checkpoint is not None else 0
    return size / _GB if size else None
