"""The edge of a stage's process: an error of ours becomes one line and its exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable

from bridgehead.errors import BridgeheadError
from bridgehead.run import Run, current_run


def run_stage(body: Callable[[Run], int]) -> int:
    """Run `body` and return its exit code. Errors that nobody foresaw keep their traceback, for the log."""
    try:
        return body(current_run())
    except BridgeheadError as error:
        hint = f" ({error.hint})" if error.hint else ""
        print(f"error: {error.message}{hint}", file=sys.stderr, flush=True)
        return error.exit_code
