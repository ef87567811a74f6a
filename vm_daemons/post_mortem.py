"""`python -m vm_daemons.post_mortem RUN_DIR`: why a run ended, written beside its exit.json.

A process of its own that nobody waits for. It ends itself after seconds, has a bound on its memory, and whatever goes
wrong in it leaves run, exit record and runner as they are.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from bridgehead import files, names
from vm_daemons import gauges

LIMIT_S: Final = 20.0
MEMORY_BYTES: Final = 2 * 2**30  # of address space
_LOG_S: Final = 5.0  # to read it, and as much again to look through it
_GPU_S: Final = 3.0
_FOLDERS: Final = (("tmp", "/tmp"), ("shm", "/dev/shm"))


def announce(run_dir: Path, *, oom_killed: bool, disk_full: bool) -> None:
    """Say that there will be one, and what its runner measured. Never raises."""
    with contextlib.suppress(OSError):  # a full disk: then there is none, which changes nothing about the run
        files.append_line(
            run_dir / names.POSTMORTEM_DUE, f"oom_killed={oom_killed:d} disk_full={disk_full:d}", durable=False
        )


def start(run_dir: Path) -> None:
    """Start the process and leave it. Never raises."""
    try:
        subprocess.Popen(
            [sys.executable, "-m", "vm_daemons.post_mortem", str(run_dir)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:  # no process to be had: whoever waits for it is not kept
        with contextlib.suppress(OSError):
            (run_dir / names.POSTMORTEM_DUE).unlink()


def is_due(run_dir: Path) -> bool:
    """Whether one is being written; False once its time is over, whatever became of it."""
    age_s = gauges.age_s(run_dir / names.POSTMORTEM_DUE)
    return age_s is not None and age_s < LIMIT_S


def main(argv: list[str] | None = None) -> int:
    [folder] = sys.argv[1:] if argv is None else argv
    signal.alarm(round(LIMIT_S))  # no handler: the kernel ends this process, in whatever call it hangs
    with contextlib.suppress(OSError, ValueError):  # a lower limit is set already
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    with contextlib.suppress(OSError):
        os.nice(5)
    write(Path(folder))
    return 0


def write(run_dir: Path) -> None:
    """Write both files, then take the announcement away."""
    from bridgehead.failures import postmortem

    try:
        oom_killed, disk_full = _announced(run_dir)
        measured = postmortem.Measured(oom_killed, disk_full, resources=lambda: resources(run_dir))
        postmortem.write(run_dir, measured, written_by="vm", limit_s=_LOG_S)
    finally:
        with contextlib.suppress(OSError):
            (run_dir / names.POSTMORTEM_DUE).unlink()


def _announced(run_dir: Path) -> tuple[bool | None, bool | None]:
    """(oom_killed, disk_full) as the runner measured them; None where it did not tell."""
    with contextlib.suppress(OSError):
        text = (run_dir / names.POSTMORTEM_DUE).read_text(errors="replace")
        return "oom_killed=1" in text, "disk_full=1" in text
    return None, None


def resources(run_dir: Path) -> dict[str, Any]:
    """Memory, disks and GPUs as they are now, in bytes; the run's own processes are gone already."""
    total_bytes, free_bytes = gauges.memory()
    disks = {}
    for name, folder in (("run", str(run_dir)), *_FOLDERS, ("cache", os.path.expanduser("~/.cache"))):
        size_bytes, room_bytes = gauges.disk(Path(folder))
        if size_bytes:
            disks[name] = {"path": folder, "total_bytes": size_bytes, "free_bytes": room_bytes}
    memory = {"total_bytes": total_bytes, "free_bytes": free_bytes}
    smi = shutil.which("nvidia-smi")
    gpus = gauges.read_gpus(smi, timeout_s=_GPU_S) if smi else []
    return {"at": round(time.time(), 3), "memory": memory, "disks": disks, "gpus": gpus}


if __name__ == "__main__":
    sys.exit(main())
