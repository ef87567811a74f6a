"""What a VM gets from the laptop before anything else: our own packages in one zip, the same bytes on each build.

The zip's SHA-256 is part of the pairing code, so the VM runs exactly what the laptop has, whoever holds the tunnel.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bridgehead import names
from bridgehead.errors import VerificationError

_STAMP = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can hold
_UNIX = 3
_REGULAR_644 = 0o100644 << 16


@dataclass(frozen=True)
class BootArchive:
    data: bytes = field(repr=False)
    sha256: str


def build() -> BootArchive:
    """Zip the shipped packages. They are found, not imported: `stages` and `export` would want torch.

    Raises VerificationError when a package is missing or another one of that name comes first on the path.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, path in _files():
            info = zipfile.ZipInfo(name, _STAMP)
            info.create_system = _UNIX
            info.external_attr = _REGULAR_644
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, path.read_bytes())
    data = buffer.getvalue()
    return BootArchive(data, hashlib.sha256(data).hexdigest())


def _files() -> list[tuple[str, Path]]:
    """(name in the archive, file), sorted by name: python files and package data, nothing that a tool left behind."""
    found = []
    for root in _roots():
        for path in root.rglob("*"):
            inside = path.relative_to(root.parent)
            hidden = any(part.startswith(".") or part == "__pycache__" for part in inside.parts)
            if path.is_file() and not hidden and path.suffix != ".pyc" and not path.name.endswith("~"):
                found.append((inside.as_posix(), path))
    return sorted(found)


def _roots() -> Iterator[Path]:
    home = None
    for package in names.SHIPPED_PACKAGES:
        spec = importlib.util.find_spec(package)
        folders = list(spec.submodule_search_locations or ()) if spec is not None else []
        root = Path(folders[0]) if folders else None
        home = home or (root.parent if root else None)
        if root is None or root.parent != home or not (root / "__init__.py").is_file():
            raise VerificationError(
                f"the package {package!r} is not the one that belongs to Bridgehead: {root or 'not found'}",
                hint="start bridgehead from its own environment, or install it again",
            )
        yield root
