"""YAML as people expect it: the scalars of YAML 1.2, no anchors, no tags, no key twice, and the line of every mistake.

PyYAML parses; the values are made here. By itself it reads YAML 1.1, where `no` is false, `1e-3` is text and a date is
no text, which has spoilt many a config.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bridgehead import files
from bridgehead.errors import NotFoundError, UsageError

MAX_BYTES = 4 * 2**20
DEEPEST = 20
_FORM = "key: value, two blanks more for what is inside, text with : or # in quotes"
_INT = re.compile(r"[-+]?[0-9]{1,18}\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?\Z")
_WORDS: dict[str, Any] = {"null": None, "~": None, "": None, "true": True, "false": False}

Lines = dict[tuple[str, ...], int]


def load(path: Path) -> tuple[Any, Lines]:
    """The document and the line of each key in it. Raises NotFoundError, UsageError that names file and line."""
    import yaml

    text = _read(path)
    try:
        events = list(yaml.parse(text, Loader=yaml.SafeLoader))
        for event in events:
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise UsageError(
                    f"{path.name}:{event.start_mark.line + 1}: anchors are not used here", hint="write it out"
                )
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise UsageError(f"{path.name}:{line}: not YAML: {error.problem or error.context}", hint=_FORM) from None
    except (yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"{path.name}: not YAML: {(str(error).splitlines() or ['?'])[0][:100]}", hint=_FORM) from None
    lines: Lines = {}
    return (None if node is None else _value(node, path.name, (), lines)), lines


def save(path: Path, value: Any, *, head: str = "") -> None:
    """Write it atomically, keys in the order given; what is text is read back as text."""
    files.write_atomic(path, (head + dump(value)).encode())


def dump(value: Any) -> str:
    import yaml

    # Never makes anchors, which the reader would refuse.
    dumper_type: Any = type("Dumper", (yaml.SafeDumper,), {"ignore_aliases": lambda self, data: True})

    def text(dumper: Any, data: str) -> Any:
        plain = isinstance(_scalar(data), str)
        style = "|" if "\n" in data else None if plain else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", data, style=style)

    dumper_type.add_representer(str, text)
    dumped: str = yaml.dump(value, Dumper=dumper_type, sort_keys=False, width=110, allow_unicode=True)
    return dumped


def line_of(lines: Lines, keys: list[str]) -> int:
    """The line of the deepest of these keys that is there; 1 when none is."""
    for length in range(len(keys), 0, -1):
        found = lines.get(tuple(keys[:length]))
        if found is not None:
            return found
    return 1


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"{path.name} is over {MAX_BYTES} bytes", hint="data belongs into a file of its own")
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise NotFoundError(f"no {path.name} in {path.parent}") from None
    except IsADirectoryError:
        raise UsageError(f"{path.name} is a folder", hint="a file has to be there") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path.name} is not UTF-8 (byte {error.start})", hint="save it as UTF-8") from None


def _value(node: Any, name: str, at: tuple[str, ...], lines: Lines) -> Any:
    import yaml

    line = node.start_mark.line + 1
    lines.setdefault(at, line)
    if len(at) > DEEPEST:
        raise UsageError(f"{name}:{line}: nested more than {DEEPEST} deep", hint="a flatter table")
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, name, (*at, str(place)), lines) for place, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, name, at, lines)
    if node.style is not None:
        return str(node.value)
    if not node.tag.startswith("tag:yaml.org,2002:") or node.tag.endswith("binary"):
        raise UsageError(
            f"{name}:{line}: tags are not used here: {node.tag}", hint="take it out, or put the value in quotes"
        )
    return _scalar(node.value)


def _mapping(node: Any, name: str, at: tuple[str, ...], lines: Lines) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = getattr(key_node, "value", None)
        if not isinstance(key, str) or not key:
            raise UsageError(f"{name}:{line}: a key has to be a word", hint=_FORM)
        if key in made:
            raise UsageError(
                f"{name}:{line}: {key} is given twice", hint="another name for one of them, or take one out"
            )
        lines[(*at, key)] = line
        made[key] = _value(value_node, name, (*at, key), lines)
    return made


def _scalar(text: str) -> Any:
    """YAML 1.2's core schema, without octal, hexadecimal, .inf and .nan: those stay text."""
    if text.lower() in _WORDS and text in (text.lower(), text.capitalize(), text.upper()):
        return _WORDS[text.lower()]
    if _INT.match(text):
        return int(text)
    return float(text) if _FLOAT.match(text) else text
