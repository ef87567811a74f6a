"""An error of ours that a script does not catch: one line and its own exit code, where Python has a traceback and 1."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from types import TracebackType

from bridgehead.errors import BridgeheadError


def install(say: Callable[[BridgeheadError], None], *, leaves: bool) -> None:
    """From now on `say` hears of each of them; everything else goes to the hook that was there before.

    `leaves`: the process then ends with the error's exit code, by which the stage runner tells why a run failed.
    """
    former = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if not isinstance(error, BridgeheadError):
            former(kind, error, traceback)
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
