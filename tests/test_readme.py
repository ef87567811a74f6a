"""The README's table "what survives what": each row is shown by a test or by a kind of fault of the campaign."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from chaos.faults import FAULTS

ROOT = Path(__file__).parents[1]
_SHOWN_BY = re.compile(r"<!-- (.+) -->")


def test_every_row_of_what_survives_what_is_a_test() -> None:
    rows = _rows()
    assert len(rows) > 12
    for row in rows:
        shown_by = _SHOWN_BY.search(row)
        assert shown_by is not None, row
        unknown = [name for name in shown_by[1].split() if not _exists(name)]
        assert not unknown, (row, unknown)


def test_every_kind_of_fault_is_in_the_table() -> None:
    told = {name for row in _rows() for name in row.split()}
    assert set(FAULTS) <= told, set(FAULTS) - told


def _rows() -> list[str]:
    section = (ROOT / "README.md").read_text().split("## What survives what")[1].split("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| ") and "what dies" not in line]


def _exists(name: str) -> bool:
    path, colons, test = name.partition("::")
    if not colons:
        return name in FAULTS
    tree = ast.parse((ROOT / path).read_text())
    return any(isinstance(node, ast.FunctionDef) and node.name == test for node in tree.body)
