"""An error of ours that a script does not catch: one line and its own exit code, where Python has a traceback and 1."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from bridgehead import files, names
from bridgehead.errors import BridgeheadError


def install(say: Callable[[BridgeheadError], None], *, leaves: bool, folder: Path) -> None:
    """From now on `say` hears of each of them; everything else goes to the hook that was there before.

    `leaves`: the process then ends with the error's exit code, by which the stage runner tells why a run failed. Any
    other error on a disk that is full just then (the one of `folder`) has a code of its own, whatever it calls itself:
    torch has a RuntimeError for it.
    """
    former = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if not isinstance(error, BridgeheadError):
            full = isinstance(error, Exception) and files.is_full(folder)  # asked first: printing takes its time
            with contextlib.suppress(OSError):
                former(kind, error, traceback)
            if leaves and full:
                _leave(names.DISK_FULL_EXIT_CODE)
            return
        with contextlib.suppress(OSError):  # a full disk: the line is printed all the same
            say(error)
        if leaves:
            _leave(error.exit_code)

    sys.excepthook = hook


def _leave(code: int) -> None:
    """Python ends with 1 after an uncaught exception, whatever its hook does, and only when every thread of the
    script's own has ended. So it is left here and now: the last checkpoint is written, and handlers of atexit don't
    run.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # full, closed, or none
            stream.flush()
    os._exit(code)
