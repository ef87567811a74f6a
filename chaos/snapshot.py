"""The campaign runs on a copy of the packages: nobody's editing changes what is under attack, and a copy can be broken.

Ships are deterministic zips of what Python finds first, so with the copy first on the path the VM gets the copy too.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

PACKAGES = (
    "bridgehead", "bridge", "vm_daemons", "stages", "export", "compute_backends", "run_control", "notebooks", "chaos",
)  # fmt: skip
ALSO = ("tests/doubles", "tests/support.py")  # what the store's double is made of, when there
_TRIES = 3


@dataclass(frozen=True)
class Patch:
    """Replace `old`, which must be in `file` exactly once, by `new`."""

    file: str
    old: str
    new: str


class PatchError(Exception):
    """The text to break is not there, or not only once: the mutant has to be written anew."""


def copy(source: Path, target: Path, patches: tuple[Patch, ...] = ()) -> None:
    """Copy the packages of the checkout `source` to the new folder `target` and break what `patches` say.

    Raises PatchError and OSError. A file that is being replaced meanwhile is copied again.
    """
    target.mkdir(parents=True)
    for package in (*PACKAGES, *ALSO):
        if (source / package).is_dir():
            _copy_tree(source / package, target / Path(package).name)
        elif (source / package).is_file():
            shutil.copyfile(source / package, target / Path(package).name)
    for patch in patches:
        _apply(patch, target / patch.file)


def digest(root: Path) -> str:
    """SHA-256 over the copied files: what a cached reference was computed with."""
    whole = hashlib.sha256()
    for package in ("bridgehead", "stages"):
        for path in sorted((root / package).rglob("*.py")):
            whole.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return whole.hexdigest()


def environment(root: Path) -> dict[str, str]:
    """For processes that are to run the copy."""
    return {**os.environ, "PYTHONPATH": str(root), "PYTHONSAFEPATH": "1"}


def _copy_tree(source: Path, target: Path) -> None:
    for attempt in range(_TRIES):
        try:
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", ".*", "*.pyc"))
            return
        except (OSError, shutil.Error):
            shutil.rmtree(target, ignore_errors=True)
            if attempt == _TRIES - 1:
                raise


def _apply(patch: Patch, path: Path) -> None:
    try:
        text = path.read_text()
    except OSError as error:
        raise PatchError(f"{patch.file}: {error.strerror}") from None
    found = text.count(patch.old)
    if found != 1:
        raise PatchError(f"{patch.file} holds {patch.old!r} {found} times, not once")
    path.write_text(text.replace(patch.old, patch.new))
