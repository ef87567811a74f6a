"""Reads a stage's `config` from run.json into a frozen dataclass; a mistake names the key and what is allowed."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from bridgehead.errors import UsageError
from bridgehead.files import canonical_json

C = TypeVar("C")
_HOW = ("threads",)  # how a run is computed, not what: these may differ on resume (and are then called drift)


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


def config_fingerprint(config: Any) -> str:
    """SHA-256 of all that decides the outcome; a checkpoint of another one is refused."""
    values = {key: value for key, value in dataclasses.asdict(config).items() if key not in _HOW}
    return hashlib.sha256(canonical_json(values)).hexdigest()


def _fits(hint: Any, value: object) -> bool:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(option, value) for option in typing.get_args(hint))
    if origin is list:
        return isinstance(value, list) and all(_fits(typing.get_args(hint)[0], item) for item in value)
    if isinstance(value, bool):
        return hint is bool
    if hint is float:
        return isinstance(value, int | float)
    return isinstance(value, hint)


def _in_words(hint: Any) -> str:
    return "a list of integers" if typing.get_origin(hint) is list else getattr(hint, "__name__", str(hint))
