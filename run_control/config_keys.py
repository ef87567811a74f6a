"""Which keys the config of a stage has. What the VM would refuse after minutes of boot is refused here at once."""

from __future__ import annotations

import ast
import functools
import importlib.resources
from collections.abc import Iterable

from bridgehead import names
from bridgehead.queue_lines import nearest
from bridgehead.records import StageSpec


def of_shipped(command: str) -> frozenset[str]:
    """The keys that a shipped stage's config has; empty for a command of the user's, whose keys are its own affair."""
    shipped = command.removeprefix(names.SHIPPED_COMMAND_PREFIX)
    return _members(shipped) if shipped != command and shipped in names.SHIPPED_STAGES else frozenset()


def known(stage: StageSpec) -> frozenset[str]:
    """Those that the project file gives it, and of a shipped stage all that it has; empty: any key may be right."""
    return frozenset(stage.config) | of_shipped(stage.command)


def misspelt(command: str, keys: Iterable[str]) -> tuple[str, str] | None:
    """(key, next step) of the first that a shipped stage has not; None when all are right, or not ours to judge."""
    allowed = of_shipped(command)
    wrong = next((key for key in keys if allowed and key not in allowed), None)
    return (wrong, nearest(wrong, allowed)) if wrong is not None else None


@functools.cache
def _members(shipped: str) -> frozenset[str]:
    """The members of the stage's config class. Its source is read and not imported: a laptop has no torch."""
    source = importlib.resources.files("stages").joinpath(f"{shipped}.py").read_text(encoding="utf-8")
    wanted = f"{shipped.capitalize()}Config"
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == wanted]
    members = (member for found in classes for member in found.body if isinstance(member, ast.AnnAssign))
    return frozenset(member.target.id for member in members if isinstance(member.target, ast.Name))
