"""What every campaign of the same code needs again: the clips pool and the undisturbed run, kept below ~/.cache."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
from importlib import metadata
from pathlib import Path

from bridgehead import files
from chaos import reference, snapshot, workload
from chaos.reference import Reference

_FORMAT = 2  # of the digests
_KEPT = 6  # references of older code; the pool weighs some tens of MB


def reference_for(code: Path) -> tuple[Reference, Path]:
    """The undisturbed run of the packages in `code`, and the pool that it used. Raises RuntimeError and OSError."""
    root = _root()
    root.mkdir(parents=True, exist_ok=True)
    folder = root / _key(code)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = files.read_json(folder / "reference.json")
        if not isinstance(told, dict):
            shutil.rmtree(folder, ignore_errors=True)
            told = reference.compute(code, root / "data", folder).to_json()
            files.write_json(folder / "reference.json", told)
        os.utime(folder)
        _forget_old(root)
    return Reference.from_json(told), root / "data"


def _root() -> Path:
    named = os.environ.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path.home() / ".cache") / "bridgehead-chaos"


def _key(code: Path) -> str:
    """Everything that the outcome may depend on."""
    what = [
        _FORMAT,
        snapshot.digest(code),
        workload.PRETRAIN_CONFIG,
        workload.DICE_CONFIG,
        platform.python_version(),
        platform.processor() or platform.machine(),
        metadata.version("torch"),
        metadata.version("numpy"),
    ]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]


def _forget_old(root: Path) -> None:
    kept = sorted(root.glob("*/reference.json"), key=lambda path: path.parent.stat().st_mtime, reverse=True)
    for path in kept[_KEPT:]:
        shutil.rmtree(path.parent, ignore_errors=True)
