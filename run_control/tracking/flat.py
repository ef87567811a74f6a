"""Nested JSON as names and plain values, for tools that know no more."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str | int | float | bool]:
    """{"a": {"b": 1}, "c": [1, 2]} → {"a.b": 1, "c": "[1, 2]"}; what is None or empty is left out."""
    found: dict[str, str | int | float | bool] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found.update(flat(value, f"{name}."))
        elif isinstance(value, str | int | float | bool):
            found.update({name: value} if value != "" else {})
        elif value:
            found[name] = json.dumps(value)
    return found
