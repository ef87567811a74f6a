"""The bootstrap notebook with this project's pairing code in it: what is uploaded to Colab, or run by a local VM."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

from bridgehead import files
from bridgehead.errors import BridgeheadError, UsageError
from bridgehead.pairing import Pairing

_PACKAGE = "notebooks"
_FILE = "bootstrap.ipynb"
_EMPTY_LINE = 'PAIRING = ""'


def write(path: Path, pairing: Pairing) -> Path:
    """Write the filled-in notebook, readable by its owner alone: it holds the key."""
    files.write_json(path, filled(pairing.encode()), mode=0o600)
    return path


def check(path: Path) -> None:
    """Raises UsageError that names `path` when no file can be written there."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint=f"bridgehead notebook --out {path / _FILE}")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise UsageError(f"{path} can't be written: no folder to write into", hint="bridgehead notebook --out FILE")


def filled(code: str) -> dict[str, object]:
    """The shipped notebook with `PAIRING = "<code>"` as the first line of its code cell."""
    notebook: dict[str, object] = json.loads(_shipped().read_text(encoding="utf-8"))
    cells = notebook["cells"]
    assert isinstance(cells, list)
    for cell in cells:
        source = cell["source"]
        lines = source.splitlines(keepends=True) if isinstance(source, str) else list(source)
        if cell["cell_type"] == "code" and lines and lines[0].startswith(_EMPTY_LINE):
            lines[0] = lines[0].replace(_EMPTY_LINE, f'PAIRING = "{code}"', 1)
            cell["source"] = lines
            return notebook
    raise BridgeheadError(f"{_FILE} has no code cell that starts with {_EMPTY_LINE}", hint="reinstall Bridgehead")


def cell_text(code: str) -> str:
    """The one code cell of the filled notebook, for who pastes it by hand. It is a secret."""
    cells = filled(code)["cells"]
    assert isinstance(cells, list)
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return next(text for text in texts if code in text)


def _shipped() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / _FILE
        if path.is_file():
            return path
    raise BridgeheadError(f"{_FILE} is not installed", hint="reinstall Bridgehead")
