"""What is set for a process that is the bridge's alone."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import gc
from bridge import own_process, server
own_process.make_prompt()
print(gc.get_freeze_count() > 10_000)
"""


def test_full_collections_leave_out_what_is_there_from_the_start() -> None:
    told = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout.split() == ["True"]
