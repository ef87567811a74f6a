"""For who gives the bridge a process of its own: its loop should answer soon, however much its threads have to do."""

from __future__ import annotations

import gc
import sys

# How long a thread that waits for the interpreter leaves it to another: 5 ms by default. A queue line goes through some
# six threads before a VM has it, and each time it may wait so long behind a thread that hashes or writes an upload.
_SWITCH_S = 0.0005


def make_prompt() -> None:
    """Call it once the bridge has started. Of the whole process: a notebook's or a test's is not ours to change."""
    sys.setswitchinterval(_SWITCH_S)
    gc.collect()
    gc.freeze()  # what is there now stays: a full collection would look at all of it and hold the loop meanwhile
