"""The bootstrap notebook with a pairing code in it."""

from __future__ import annotations

import stat
from pathlib import Path

from bridgehead import files
from bridgehead.pairing import Pairing, decode
from compute_backends.notebook_host import code_cells
from run_control import notebook

PAIRING = Pairing("http://127.0.0.1:8766", "key-1", bytes(range(32)), "0" * 64)


def test_the_code_is_the_first_line_of_the_one_cell(tmp_path: Path) -> None:
    path = notebook.write(tmp_path / "bootstrap.ipynb", PAIRING)
    [cell] = code_cells(path)
    first = cell.splitlines()[0]
    assert first.startswith('PAIRING = "bh1.')
    assert decode(first.split('"')[1]) == PAIRING


def test_it_is_readable_by_its_owner_alone_also_over_a_wider_one(tmp_path: Path) -> None:
    path = tmp_path / "bootstrap.ipynb"
    path.write_text("{}")
    path.chmod(0o644)
    notebook.write(path, PAIRING)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_nothing_but_that_line_differs_from_the_shipped_one(tmp_path: Path) -> None:
    one, other = notebook.filled("bh1.one"), notebook.filled("bh1.other")
    files.write_json(tmp_path / "one", one)
    files.write_json(tmp_path / "other", other)
    text, changed = (tmp_path / "one").read_text(), (tmp_path / "other").read_text()
    assert text.replace("bh1.one", "bh1.other") == changed
