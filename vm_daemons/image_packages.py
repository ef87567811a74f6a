"""What a notebook's image brings and nothing may move: torch and what has to fit it. Noted once, compared ever after.

Constraints keep pip from replacing these packages. They do not keep a wheel from carrying files of the same names, a
setup script from calling pip, or an sh: line from doing either; so what is there is noted when the VM first boots, and
looked at again after each install and before each pinned run. What is noted is each package's version, the hash of its
RECORD, and the sizes of its files with the contents of the small Python ones.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import importlib.metadata
import io
import os
import re
from collections.abc import Mapping
from pathlib import Path

from bridgehead import files, names
from bridgehead.errors import ProjectError
from vm_daemons.home import VmHome

_FIXED = ("torch", "torchvision", "torchaudio", "triton", "jax", "jaxlib")
_FIXED_PREFIXES = ("nvidia-", "jax-cuda", "pytorch-triton")
_READ_MAX_BYTES = 64 * 1024  # of a Python file at the top of a package; the libraries' sizes have to do
_SHOWN = 5
Noted = dict[str, dict[str, str]]  # package -> {"version", "record", "files"}: hashes, "" where the image keeps none


def noted(home: VmHome) -> Noted:
    """The packages as this VM's first boot found them; empty before it. Raises OSError."""
    found = files.read_json(home.state / names.VM_IMAGE_PACKAGES)
    packages = found.get("packages") if isinstance(found, dict) else None
    return {str(name): dict(facts) for name, facts in packages.items()} if isinstance(packages, dict) else {}


def refuse_moved(home: VmHome) -> None:
    """Note the packages at the first call; raise ProjectError when one has moved since.

    The note is of this VM and stays: a second run of the cell does not take what an install has moved for the image.
    """
    before, path = noted(home), home.state / names.VM_IMAGE_PACKAGES
    if not before:
        with contextlib.suppress(OSError):  # a full disk is no reason not to boot; the next one notes them
            files.write_json(path, {"v": names.RECORD_VERSION, "packages": look()})
        return
    changed = moved(before, look())
    if changed:
        raise ProjectError(f"what the VM's image brings was moved: {told(changed)}", hint=hint(home))


def hint(home: VmHome) -> str:
    path = home.state / names.VM_IMAGE_PACKAGES
    return (
        "take what moved it out of [vm] requirements and start a fresh VM (delete the runtime);"
        f" if you meant it, remove {path} and run the cell again"
    )


def look() -> Noted:
    """The packages as they are now; about 0.2 s with torch and its CUDA libraries."""
    found: Noted = {}
    for distribution in importlib.metadata.distributions():
        name = canonical(distribution.metadata["Name"] or "")
        if name and name not in found and is_fixed(name):
            found[name] = _facts(distribution)
    return found


def moved(before: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]) -> list[str]:
    """One text for each package that is gone, of another version, or no longer the same files.

    A package that came to be is no move: an image without jax may get one.
    """
    return [text for name in sorted(before) if (text := _difference(name, before[name], now.get(name)))]


def told(changed: list[str]) -> str:
    more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
    return ", ".join(changed[:_SHOWN]) + more


def canonical(name: str) -> str:
    """A package's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_fixed(name: str) -> bool:
    """Whether a package of this canonical name must stay as it is."""
    return name in _FIXED or name.startswith(_FIXED_PREFIXES)


def _difference(name: str, old: Mapping[str, str], new: Mapping[str, str] | None) -> str:
    if new is None:
        return f"{name} {old.get('version', '')} is gone"
    if old.get("version") != new.get("version"):
        return f"{name} {old.get('version', '')} → {new.get('version', '')}"
    if old.get("record") != new.get("record"):
        return f"{name} {new.get('version', '')} was installed anew"
    if old.get("files") != new.get("files"):
        return f"{name} {new.get('version', '')} has other files"
    return ""


def _facts(distribution: importlib.metadata.Distribution) -> dict[str, str]:
    record = distribution.read_text("RECORD") or ""
    return {
        "version": distribution.version,
        "record": hashlib.sha256(record.encode()).hexdigest() if record else "",
        "files": _files_digest(distribution, record) if record else "",
    }


def _files_digest(distribution: importlib.metadata.Distribution, record: str) -> str:
    """Of path and size of each file, and of the bytes of the small .py files at a package's top."""
    root = Path(str(distribution.locate_file("")))
    digest = hashlib.sha256()
    for row in csv.reader(io.StringIO(record)):
        relative = row[0] if row else ""
        if not relative or relative.endswith(".pyc"):  # compiled anew by whoever imports it first
            continue
        digest.update(relative.encode() + b"\0")
        try:
            size = os.stat(root / relative).st_size
            digest.update(f"{size}\n".encode())
            if size <= _READ_MAX_BYTES and relative.endswith(".py") and relative.count("/") <= 1:
                digest.update((root / relative).read_bytes())
        except OSError:
            digest.update(b"gone\n")
    return digest.hexdigest()
