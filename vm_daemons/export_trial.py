"""Whether this VM can export: a tiny model is exported once, with the very packages that the export stage will use.

A notebook's image lacks ONNX parts, and versions that do not fit each other fail only when they are used. It is paid
for once: a trial that went well holds for as long as image, packages and ship stay what they were. One that failed is
made again each time, since somebody may have mended it; one that did not end in time only after an hour.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bridgehead import files, image, names
from vm_daemons.home import VmHome
from vm_daemons.launch import SHIP
from vm_daemons.stage_command import scrubbed

TIMEOUT_S = 180.0  # most of it is loading torch, on a fresh VM from a cold disk
HUNG_FOR_S = 3600.0  # so long one that did not end in time is not made again: each would hold up a run
PARTS = ("torch", "onnx", "onnxscript", "onnx-ir", "onnxruntime", "numpy")
_MODULE = "export.trial"
_POLL_S = 0.25


@dataclass(frozen=True)
class Trial:
    """How it went. `part`: the module that can't be imported; `took_s`: 0 when an earlier one still holds."""

    ok: bool
    part: str = ""
    error: str = ""
    took_s: float = 0.0

    @property
    def what(self) -> str:
        """What went wrong."""
        return f"{self.part} can't be imported" if self.part else f"a tiny model could not be exported: {self.error}"

    @property
    def hint(self) -> str:
        part = f'add "{self.part}" to' if self.part else "correct the versions in"
        return f"{part} [vm] requirements in {names.PROJECT_FILE}, and run the cell again"


def look(home: VmHome, stopped: Callable[[], bool] = lambda: False) -> Trial | None:
    """The trial for the packages that are here now; None when `stopped` said so meanwhile. Raises OSError."""
    path, key = home.state / names.VM_EXPORT_TRIAL, fingerprint()
    known = files.read_json(path)
    if isinstance(known, dict) and known.get("fingerprint") == key:
        if known.get("ok"):
            return Trial(ok=True)
        if known.get("hung") and 0 <= time.time() - float(known.get("at") or 0) < HUNG_FOR_S:
            return Trial(ok=False, error=str(known.get("error") or ""))
    began = time.monotonic()
    said = _run(stopped)
    if said is None:
        return None
    trial = Trial(
        ok=said.get("ok") is True,
        part=str(said.get("part") or ""),
        error=str(said.get("error") or ""),
        took_s=max(0.1, round(time.monotonic() - began, 1)),
    )
    told = {"v": names.RECORD_VERSION, "fingerprint": key, **dataclasses.asdict(trial), "at": time.time()}
    with contextlib.suppress(OSError):  # a full disk changes nothing in what was found
        files.write_json(path, {**told, "hung": bool(said.get("hung"))})
    return trial


def told(home: VmHome) -> dict[str, Any]:
    """For the heartbeat: what, hint and at (seconds since 1970) of the newest trial if it failed, else {}."""
    known = files.read_json(home.state / names.VM_EXPORT_TRIAL)
    if not isinstance(known, dict) or known.get("ok") is not False:
        return {}
    trial = Trial(ok=False, part=str(known.get("part") or "")[:100], error=str(known.get("error") or "")[:300])
    return {"what": trial.what, "hint": trial.hint, "at": known.get("at")}


def forget_failure(home: VmHome) -> None:
    """For the boot, which installs what was missing: what failed before says nothing now."""
    if told(home):
        with contextlib.suppress(OSError):
            (home.state / names.VM_EXPORT_TRIAL).unlink()


def fingerprint() -> str:
    """Of the image, of each package that an export uses, and of the code that exports."""
    facts = {"image": image.fingerprint(), "parts": {name: _version(name) for name in PARTS}, "ship": SHIP.name}
    return hashlib.sha256(files.canonical_json(facts)).hexdigest()


def _run(stopped: Callable[[], bool]) -> dict[str, Any] | None:
    """What the trial said, in an environment like the export stage's; on the CPU, for the GPU is the run's."""
    env = {**scrubbed(os.environ), "PYTHONPATH": str(SHIP), "PYTHONSAFEPATH": "1", "CUDA_VISIBLE_DEVICES": ""}
    env.pop(names.ENV_RUN_DIR, None)  # it is no process of the run
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            [sys.executable, "-m", _MODULE],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            ended = _wait(process, stopped)
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if ended is None:
            return None
        if not ended:
            return {"error": f"it did not end within {TIMEOUT_S:.0f} s", "hung": True}
        out.seek(0)
        return _last_word(out.read().decode(errors="replace"), process.returncode)


def _wait(process: subprocess.Popen[bytes], stopped: Callable[[], bool]) -> bool | None:
    """Whether it ended in time; None when it was given up for a stop."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_S)
            return True
        if stopped():
            return None
        if time.monotonic() > deadline:
            return False


def _last_word(text: str, code: int) -> dict[str, Any]:
    """The last line that is JSON; a process that died without one is told by its end."""
    for line in reversed(text.splitlines()):
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict) and "ok" in found:
                return found
    tail = text.strip().splitlines()[-1:] or ["it said nothing"]
    return {"error": f"it ended with {code}: {tail[0][:300]}"}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
