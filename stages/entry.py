"""The edge of a stage's process: an error of ours becomes one line and its exit code.

Two kinds have codes of their own, by which the runner tells why a run failed: a loss that is no number any more, and
a checkpoint that the run can't go on from (names.NAN_LOSS_EXIT_CODE, names.CHECKPOINT_EXIT_CODE).
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from bridgehead.errors import BridgeheadError
from bridgehead.run import Run, current_run


def run_stage(body: Callable[[Run], int]) -> int:
    """Run `body` and return its exit code. Errors that nobody foresaw keep their traceback, for the log."""
    try:
        run = current_run()
    except BridgeheadError as error:
        print(_in_words(error), file=sys.stderr, flush=True)
        return error.exit_code
    try:
        return body(run)
    except BridgeheadError as error:
        run.message(_in_words(error))  # the status shows it too
        return error.exit_code


def _in_words(error: BridgeheadError) -> str:
    hint = f" ({error.hint})" if error.hint else ""
    return f"error: {error.message}{hint}"
