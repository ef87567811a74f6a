"""Writes a checkpoint while the next steps run: one at a time, on a thread of its own.

A thread is enough. Measured on torch 2.13 with 96 MB of state: serialising, fsync and hashing let go of the
interpreter's lock for nearly all of their time, so a step takes as long as without them; and a thread dies with
its process, where a helper process would go on writing beside the next attempt. It keeps the process's priority: one
that is put back while it holds the interpreter's lock would hold up the training.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from bridgehead.errors import RunFailed

# A run whose checkpoints can't be written is a run that would be lost. But a disk that is full for a minute is none:
# it takes both, so many in a row and so long since the first of them.
FAILURES_MAX = 3
FAILING_MAX_S = 600.0


class BackgroundSaver:
    """At most one save in flight. All methods are for the thread that trains."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._save: Future[object] | None = None
        self._step = 0
        self._failures = 0
        self._failing_since = 0.0  # monotonic; of the first failure in a row

    @property
    def busy(self) -> bool:
        return self._save is not None and not self._save.done()

    def start(self, step: int, job: Callable[[], object]) -> None:
        """Run `job` on the thread; the caller has seen that it is not busy and has heard of the last one.

        The thread stays for the next one: starting a thread waits for it to come up, which holds the step. A script
        that ends leaves only when its last checkpoint is written.
        """
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._step = step
        self._save = self._pool.submit(job)

    def wait(self) -> None:
        """Until none is in flight."""
        if self._save is not None:
            wait([self._save])

    def heard(self) -> str:
        """What became of a save that has ended, told once: empty when it is good or still under way.

        Raises RunFailed at the third failure in a row, once the first is 10 minutes ago.
        """
        if self._save is None or not self._save.done():
            return ""
        error, self._save = self._save.exception(), None
        return self.failed(self._step, error) if error is not None else self.good()

    def good(self) -> str:
        self._failures = 0
        return ""

    def failed(self, step: int, error: BaseException) -> str:
        """Count one; the text for the run's owner. Raises as `heard`."""
        if self._failures == 0:
            self._failing_since = time.monotonic()
        self._failures += 1
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if self._failures >= FAILURES_MAX and time.monotonic() - self._failing_since >= FAILING_MAX_S:
            raise RunFailed(
                f"{self._failures} checkpoints in a row could not be written; the last, of step {step}: {why}",
                hint="see to the VM's disk and queue the stage again: it resumes from the last good one",
            ) from error
        return f"checkpoint {step} could not be written: {why}; the next one is tried ({self._failures} missed)"


def memory_available_bytes() -> int | None:
    """What this process may still take, as the kernel and its own control group tell; None where neither does."""
    found = [_meminfo_bytes(), _group_bytes()]
    return min((size for size in found if size is not None), default=None)


def _meminfo_bytes() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _group_bytes() -> int | None:
    """A container's limit minus what is in use; pages of files that were not touched lately can be dropped."""
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text())  # no limit reads "max"
        used = int((group / "memory.current").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return max(0, limit - used + int(stat["inactive_file"]))
    except (OSError, ValueError, KeyError):
        return None
