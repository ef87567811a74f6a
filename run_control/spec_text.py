"""The text of a spec file as a table, with the line of each key: the same table from TOML and from YAML.

YAML is read without what the two forms, or two readers of YAML, would take for different things: see yaml_file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridgehead.errors import UsageError
from bridgehead.queue_lines import nearest
from run_control import plain_file, toml_lines, yaml_file

TOML = ".toml"
SUFFIXES = (TOML, ".yaml", ".yml")
SIZE_MAX_BYTES = 2**18  # PyYAML reads about as much in two seconds
DEEPEST = yaml_file.DEEPEST
_FORM = 'key = value, text in quotes, tables as [config]: stage = "train"'
_TABLE = re.compile(r"\[(config|resources)\]")
_LONG_NUMBER = re.compile(r"[0-9_]{4300,}")


@dataclass(frozen=True)
class SpecText:
    """A file that was read. `name`: of the file; `line_of`: of the deepest of these keys that is there, from 1."""

    name: str
    data: dict[str, Any]
    line_of: Callable[[list[str]], int]

    def where(self, keys: list[str]) -> str:
        """File, line and key, as a mistake begins."""
        return f"{self.name}:{self.line_of(keys)}: {'.'.join(keys)}"

    def as_written(self, example: str) -> str:
        """An example in TOML as this file would say it."""
        return example if self.name.lower().endswith(TOML) else in_yaml(example)


def in_yaml(example: str) -> str:
    return _TABLE.sub(r"\1:", example).replace(" = ", ": ")


def is_one(name: str) -> bool:
    """Whether the name is a spec file's."""
    return name.lower().endswith(SUFFIXES)


def read(path: Path, *, example: str) -> SpecText:
    """Raises UsageError with file and line. `example`: what an empty file could begin with, in TOML."""
    text = _text(path)
    empty = UsageError(f"{path.name}:1: the file is empty", hint=example if _is_toml(path) else in_yaml(example))
    if not text.strip():
        raise empty
    if _is_toml(path):
        data: Any = _toml(text, path.name)
        found = SpecText(path.name, data, lambda keys: toml_lines.line_of(text, keys))
        _check_depth(found, data, [])
        return found
    data, lines = yaml_file.parse(text, path.name, doubts=False)
    if data is None:
        raise empty
    if not isinstance(data, dict):
        kind = "a list" if isinstance(data, list) else "one value"
        line = lines.get((), 1)
        raise UsageError(f"{path.name}:{line}: {kind}; a spec file is a table of keys", hint=in_yaml(example))
    return SpecText(path.name, data, lambda keys: yaml_file.line_of(lines, keys))


def there(folder: Path) -> list[str]:
    """The names of the spec files in a folder."""
    return sorted(found.name for found in folder.glob("*") if is_one(found.name))


def _is_toml(path: Path) -> bool:
    return path.name.lower().endswith(TOML)


def _text(path: Path) -> str:
    try:
        if path.is_dir():
            raise UsageError(
                f"{path.name} is a folder", hint=f"name a spec file in it; {nearest(path.name, there(path))}"
            )
        if plain_file.size_bytes(path) > SIZE_MAX_BYTES:
            raise UsageError(
                f"{path.name} is over {SIZE_MAX_BYTES} bytes", hint="data belongs into a file that the stage reads"
            )
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        names = there(path.parent)
        hint = f"{nearest(path.name, names)} (in {path.parent})" if names else f"no spec file is in {path.parent}"
        raise UsageError(f"no spec file {path}", hint=hint) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path.name}:{line}: not UTF-8", hint="save it as UTF-8") from None
    except OSError as error:
        raise UsageError(
            f"{path.name[:80]} can't be read: {error.strerror}", hint="see that it is a file and that you may read it"
        ) from None


def _toml(text: str, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{name}:{toml_lines.syntax_line(error)}: not TOML: {error}", hint=_FORM) from None
    except ValueError:
        found = _LONG_NUMBER.search(text)
        line = text.count("\n", 0, found.start()) + 1 if found else 1
        raise UsageError(f"{name}:{line}: a number of thousands of digits", hint="text goes in quotes") from None
    except RecursionError:
        lines = text.splitlines()
        line = max(range(len(lines)), key=lambda number: lines[number].count("[") + lines[number].count("{")) + 1
        raise UsageError(f"{name}:{line}: nested too deep", hint="fewer brackets within brackets") from None


def _check_depth(found: SpecText, value: Any, keys: list[str]) -> None:
    """As deep as YAML may be. Raises UsageError."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if inner and len(keys) >= DEEPEST:
        raise UsageError(
            f"{found.name}:{found.line_of(keys)}: nested more than {DEEPEST} deep",
            hint="fewer brackets within brackets",
        )
    for key, item in inner:
        _check_depth(found, item, [*keys, str(key)])
