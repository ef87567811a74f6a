"""Reads a stage's `config` from run.json into a frozen dataclass; a mistake names the key and what is allowed."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from bridgehead.errors import UsageError

C = TypeVar("C")
# How a run is computed or measured, not what: these may differ on a resume (another thread count is told as drift).
NEUTRAL = ("threads", "measure_memory")


def read_config(cls: type[C], values: Mapping[str, Any], stage: str) -> C:
    """`values` as `cls`, missing keys at their defaults. Raises UsageError for unknown keys and wrong types."""
    hints = typing.get_type_hints(cls)
    for key, value in values.items():
        if key not in hints:
            near = difflib.get_close_matches(key, hints, n=1)
            hint = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(sorted(hints))}"
            raise UsageError(f"[stages.{stage}.config] has no key {key!r}", hint=hint)
        if not _fits(hints[key], value):
            raise UsageError(f"[stages.{stage}.config] {key} = {value!r} is not {_in_words(hints[key])}")
    return cls(**values)


def require(condition: bool, stage: str, what: str) -> None:
    """Raises UsageError: a value that has the right type and can't work."""
    if not condition:
        raise UsageError(f"[stages.{stage}.config] {what}")


def _fits(hint: Any, value: object) -> bool:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(option, value) for option in typing.get_args(hint))
    if origin is list:
        return isinstance(value, list) and all(_fits(typing.get_args(hint)[0], item) for item in value)
    if origin is dict:
        return isinstance(value, dict)
    if isinstance(value, bool):
        return hint is bool
    if hint is float:
        return isinstance(value, int | float)
    return isinstance(value, hint)


def _in_words(hint: Any) -> str:
    if typing.get_origin(hint) is not list:
        return getattr(hint, "__name__", str(hint))
    return "a list of tables" if typing.get_origin(typing.get_args(hint)[0]) is dict else "a list of integers"
