"""docs/preflight.md against the code: every named check is in its tables, with the ways in which it can end."""

from __future__ import annotations

import ast
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOC = ROOT / "docs/preflight.md"
STATES = ("pass", "warn", "refuse", "fail")
# The table under each heading, and the files whose checks are in it.
TABLES = {
    "On the laptop": ("run_control/doctor.py", "run_control/preflight.py"),
    "Of a launch": ("run_control/plan.py", "run_control/memo_scope.py", "run_control/launch_notes.py"),
    "On the VM": ("vm_daemons/preflight.py", "vm_daemons/preflight_machine.py"),
}


def _pattern(node: ast.expr) -> str:
    """The name as the code writes it; `*` for what is filled in, "" for one that only passes another's name on."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)
    return ""


def _in_code(paths: tuple[str, ...]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in paths:
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Check", "Finding"):
                pattern = _pattern(node.args[0])
                states = {part.id.lower() for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}
                if pattern:
                    found.setdefault(pattern, set()).update(states & set(STATES))
    return found


def _in_doc(heading: str) -> dict[str, set[str]]:
    section = DOC.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \|([^|]+)\|([^|]+)\|", section, re.M)
    return {name: {word.strip() for word in states.split(",")} for name, _, states in rows}


@pytest.mark.parametrize("heading", TABLES)
def test_the_list_of_checks_is_the_codes(heading: str) -> None:
    code, doc = _in_code(TABLES[heading]), _in_doc(heading)
    assert code and doc
    for pattern, states in code.items():
        told = {name: doc[name] for name in doc if fnmatch(name, pattern)}
        assert told, f"{pattern} is missing under {heading!r}"
        for name, ends in told.items():
            assert ends == states, f"{name} under {heading!r}"
    for name in doc:
        assert any(fnmatch(name, pattern) for pattern in code), f"no code has a check {name}"
