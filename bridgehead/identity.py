"""What a run is made of, and how that differs from what a checkpoint was made with: code, config, pool."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bridgehead import names
from bridgehead.files import canonical_json
from bridgehead.names import Allow
from bridgehead.records import RunRecord

CONFIG_VALUES = "config_values"  # in a checkpoint's meta, so that a difference can be named
_SHOWN_KEYS = 8
_SHOWN_CHARACTERS = 40


@dataclass(frozen=True)
class Identity:
    """Empty members are not known and are not compared. `config` holds only what decides the result."""

    code: str = ""  # SHA-256 of the payload, or of what was shipped for a shipped stage
    config: Mapping[str, Any] = field(default_factory=dict)
    pool: str = ""

    def meta(self) -> dict[str, Any]:
        """What goes into each checkpoint."""
        return {
            Allow.CODE.value: self.code,
            Allow.CONFIG.value: config_sha256(self.config),
            CONFIG_VALUES: dict(self.config),
            Allow.POOL.value: self.pool,
        }

    def differences(self, meta: Mapping[str, Any]) -> dict[str, str]:
        """What a checkpoint with this meta was made with and this run is not; in words, by what would allow it."""
        found = {}
        for kind, mine in ((Allow.CODE, self.code), (Allow.POOL, self.pool)):
            theirs = meta.get(kind)
            if mine and theirs and mine != theirs:
                found[kind.value] = f"{kind}: {_short(theirs)} → {_short(mine)}"
        if config := self._config_difference(meta):
            found[Allow.CONFIG.value] = config
        return found

    def _config_difference(self, meta: Mapping[str, Any]) -> str:
        digest, values = meta.get(Allow.CONFIG), meta.get(CONFIG_VALUES)
        if not digest or digest == config_sha256(self.config):
            return ""
        if not isinstance(values, dict):
            return f"{Allow.CONFIG}: another one; which keys was not noted"
        keys = [key for key in sorted({*values, *self.config}) if not _same(values, self.config, key)]
        more = f" and {len(keys) - _SHOWN_KEYS} more" if len(keys) > _SHOWN_KEYS else ""
        told = [f"{key} {_value(values, key)} → {_value(self.config, key)}" for key in keys[:_SHOWN_KEYS]]
        return f"{Allow.CONFIG}: {', '.join(told)}{more}" if keys else ""


def code_of(record: RunRecord) -> str:
    """Which text a run executes."""
    shipped = record.spec.command.startswith(names.SHIPPED_COMMAND_PREFIX)
    return record.ship_sha256 if shipped else record.payload_sha256


def config_sha256(config: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(dict(config))).hexdigest()


def _same(old: Mapping[str, Any], new: Mapping[str, Any], key: str) -> bool:
    """1 and 1.0 are one value, 1 and true are two; a key that is missing is none."""
    if (key in old) != (key in new):
        return False
    one, other = old[key], new[key]
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _value(values: Mapping[str, Any], key: str) -> str:
    return _short(canonical_json(values[key]).decode()) if key in values else "(not set)"


def _short(value: object) -> str:
    text = str(value)
    if len(text) == 64 and all(letter in "0123456789abcdef" for letter in text):
        return text[:12]
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
