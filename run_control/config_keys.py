"""Which keys the config of a stage has, and of which kind their values are.

What the VM would refuse after minutes of boot is refused here at once, in the VM's own words.
"""

from __future__ import annotations

import ast
import functools
import importlib.resources
from collections.abc import Mapping
from typing import Any  # noqa: F401 - a stage says it of its members, see _shape

from bridgehead import names
from bridgehead.errors import UsageError
from bridgehead.queue_lines import nearest
from bridgehead.records import StageSpec

OF_THAT_KIND = "give it a value of that kind"


def of_shipped(command: str) -> frozenset[str]:
    """The keys that a shipped stage's config has; empty for a command of the user's, whose keys are its own affair."""
    return frozenset(_kinds(command))


def known(stage: StageSpec) -> frozenset[str]:
    """Those that the project file gives it, and of a shipped stage all that it has; empty: any key may be right."""
    return frozenset(stage.config) | of_shipped(stage.command)


def misspelt(command: str, keys: Mapping[str, object]) -> tuple[str, str] | None:
    """(key, next step) of the first that a shipped stage has not; None when all are right, or not ours to judge."""
    allowed = of_shipped(command)
    wrong = next((key for key in keys if allowed and key not in allowed), None)
    return (wrong, nearest(wrong, allowed)) if wrong is not None else None


def mistyped(command: str, config: Mapping[str, object]) -> tuple[str, str] | None:
    """(key, `'ten' is not int`) of the first value of a shipped stage that is of another kind than its key's.

    The next step is OF_THAT_KIND.
    """
    from stages.config import read_config

    kinds = _kinds(command)
    for key, value in config.items():
        if key not in kinds:
            continue
        try:
            read_config(_shape(kinds[key]), {"value": value}, "")
        except UsageError as error:
            return key, error.message.partition(" = ")[2]
    return None


def _shape(kind: str) -> type:
    """A config class of one member, `value`, to be read as the VM reads the stage's own."""
    space = {"__annotations__": {"value": kind}, "__init__": lambda self, value: None, "__module__": __name__}
    return type("Config", (), space)


def _kinds(command: str) -> dict[str, str]:
    shipped = command.removeprefix(names.SHIPPED_COMMAND_PREFIX)
    return _members(shipped) if shipped != command and shipped in names.SHIPPED_STAGES else {}


@functools.cache
def _members(shipped: str) -> dict[str, str]:
    """Key -> annotation of the stage's config class. Its source is read and not imported: a laptop has no torch."""
    source = importlib.resources.files("stages").joinpath(f"{shipped}.py").read_text(encoding="utf-8")
    wanted = f"{shipped.capitalize()}Config"
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == wanted]
    members = (member for found in classes for member in found.body if isinstance(member, ast.AnnAssign))
    return {
        member.target.id: ast.unparse(member.annotation) for member in members if isinstance(member.target, ast.Name)
    }
