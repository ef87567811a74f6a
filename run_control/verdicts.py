"""The class of an ended run as people see it: its post-mortem's, which looked at more than the runner did.

The ledger keeps the runner's word, and with it whatever is decided about trying again.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from bridge.ledger_rows import CommandRow
from bridgehead import files, names
from bridgehead.names import FailureClass, RunState

_RUNS_KEPT: Final = 512
_NO_ANSWER: Final = ("", FailureClass.UNKNOWN, FailureClass.DONE)  # of a run that failed or was stopped


def failure_class(folder: Path, row: CommandRow) -> str:
    """Of the run in `folder`; the ledger's where no post-mortem of this attempt says more. Never raises."""
    if row.state not in (RunState.FAILED, RunState.STOPPED) or row.failure_class == FailureClass.UNKNOWN_OUTCOME:
        return row.failure_class
    path = folder / names.POSTMORTEM
    try:
        found = os.stat(path)
    except OSError:
        return row.failure_class
    attempt, named = _class_in(str(path), (found.st_ino, found.st_size, found.st_mtime_ns))
    return row.failure_class if named in _NO_ANSWER or attempt not in (row.attempt, None) else named


def of_attempt(folder: Path, attempt: int) -> dict[str, Any] | None:
    """The post-mortem of that attempt, when it is there and whole."""
    record = files.read_json(folder / names.POSTMORTEM)
    if not isinstance(record, dict) or not isinstance(record.get("verdict"), dict):
        return None
    return record if _attempt(record) in (attempt, None) else None


@lru_cache(maxsize=_RUNS_KEPT)
def _class_in(path: str, _stamp: tuple[int, int, int]) -> tuple[Any, str]:
    """(attempt, class), read once as long as the file stays the same: the panel looks every second."""
    told = files.read_json(Path(path))
    record: dict[str, Any] = told if isinstance(told, dict) else {}
    verdict = record.get("verdict")
    named = verdict.get("class") if isinstance(verdict, dict) else ""
    return (_attempt(record), named) if isinstance(named, str) and named in set(FailureClass) else (None, "")


def _attempt(record: dict[str, Any]) -> Any:
    end = record.get("end")
    return end.get("attempt") if isinstance(end, dict) else None
