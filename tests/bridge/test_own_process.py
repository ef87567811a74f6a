"""What is set for a process that is the bridge's alone."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import gc, sys
from bridge import own_process
before = sys.getswitchinterval()
own_process.make_prompt()
print(sys.getswitchinterval() < before / 2, gc.get_freeze_count() > 10_000)
"""


def test_threads_give_way_soon_and_full_collections_leave_out_what_is_there_from_the_start() -> None:
    told = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout.split() == ["True", "True"]
