"""YAML as people expect it: the scalars of YAML 1.2, no anchors, no tags, no key twice, and the line of every mistake.

PyYAML parses; the values are made here. By itself it reads YAML 1.1, where `no` is false, `1e-3` is text and a date is
no text, which has spoilt many a config.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bridgehead import files
from bridgehead.errors import NotFoundError, UsageError
from bridgehead.records import is_number
from run_control import plain_file

MAX_BYTES = 4 * 2**20
DEEPEST = 20
_FORM = "key: value, two blanks more for what is inside, text with : or # in quotes"
_INT = re.compile(r"[-+]?[0-9]{1,4000}\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?\Z")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+\Z")
_ODD_NUMBER = re.compile(r"[-+]?(\.?(inf|nan)|0o[0-7_]+|[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?)\Z", re.IGNORECASE)
_TAG = "tag:yaml.org,2002:"
_DOUBTS = {  # what YAML 1.1 makes of a word that is text here
    "bool": "it is true or false to some readers of YAML and a word to others",
    "timestamp": "a date is text here",
    "merge": "nothing is merged here",
}
_WORDS: dict[str, Any] = {"null": None, "~": None, "": None, "true": True, "false": False}

Lines = dict[tuple[str, ...], int]


def load(path: Path) -> tuple[Any, Lines]:
    """The document and the line of each key in it. Raises NotFoundError, UsageError that names file and line."""
    return parse(_read(path), path.name)


def parse(text: str, name: str, *, doubts: bool = True) -> tuple[Any, Lines]:
    """The same of the text of the file `name`. None for a document without anything.

    `doubts=False` refuses unquoted words that YAML 1.1 and 1.2 read as different things, such as no, 010, 0x1f, .nan
    or a date, and keys without a value. Raises UsageError that names file and line.
    """
    import yaml

    try:
        for event in _checked(yaml.parse(text, Loader=yaml.SafeLoader), name):
            if not doubts and isinstance(event, yaml.ScalarEvent):
                _refuse_doubt(event, name)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise UsageError(f"{name}:{line}: not YAML: {error.problem or error.context}", hint=_form(error)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UsageError(f"{name}:{line}: not YAML: a character that can't be printed", hint="take it out") from None
    lines: Lines = {}
    return (None if node is None else _value(node, name, (), lines)), lines


def save(path: Path, value: Any, *, head: str = "") -> None:
    """Write it atomically, keys in the order given; what is text is read back as text."""
    files.write_atomic(path, (head + dump(value)).encode())


def dump(value: Any) -> str:
    import yaml

    # Never makes anchors, which the reader would refuse.
    dumper_type: Any = type("Dumper", (yaml.SafeDumper,), {"ignore_aliases": lambda self, data: True})

    def text(dumper: Any, data: str) -> Any:
        plain = isinstance(_scalar(data), str) and not _doubt(data)
        style = "|" if "\n" in data else None if plain else '"'
        return dumper.represent_scalar(f"{_TAG}str", data, style=style)

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
        if plain_file.size_bytes(path) > MAX_BYTES:
            raise UsageError(f"{path.name} is over {MAX_BYTES} bytes", hint="data belongs into a file of its own")
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise NotFoundError(f"no {path.name} in {path.parent}") from None
    except IsADirectoryError:
        raise UsageError(f"{path.name} is a folder", hint="a file has to be there") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path.name} is not UTF-8 (byte {error.start})", hint="save it as UTF-8") from None
    except OSError as error:
        raise UsageError(f"{path.name} can't be read: {error.strerror}", hint="see that you may read it") from None


def _checked(events: Iterable[Any], name: str) -> Iterator[Any]:
    """The events of a document that is not too deep and has neither anchors nor tags. Raises UsageError."""
    import yaml

    depth = 0
    for event in events:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise UsageError(f"{name}:{line}: anchors are not used here", hint="write it out")
        tag = getattr(event, "tag", None)
        if tag is not None:
            hint = "take it out, or put the value in quotes"
            raise UsageError(f"{name}:{line}: tags are not used here: {tag}", hint=hint)
        opens = isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent)
        depth += opens - isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent)
        if depth > DEEPEST:
            raise UsageError(f"{name}:{line}: nested more than {DEEPEST} deep", hint="a flatter table")
        yield event


def _refuse_doubt(event: Any, name: str) -> None:
    """Raises UsageError for a plain word that another reader of YAML would take for something else."""
    text, line = event.value, event.start_mark.line + 1
    if event.style is not None:
        return
    if not text:
        raise UsageError(f"{name}:{line}: a key without a value", hint='take the key out, or write null or ""')
    why = _doubt(text)
    if why:
        instead = "true or false" if why == _DOUBTS["bool"] else "a plain decimal number"
        hint = f'for text put it in quotes: "{text[:40]}"; else {instead}'
        raise UsageError(f"{name}:{line}: {text[:40]}: {why}", hint=hint)


def _doubt(text: str) -> str:
    """What other readers make of this plain word, where that may be something else than it is here; else ""."""
    import yaml

    value = _scalar(text)
    if value is None or isinstance(value, bool) or is_number(value) and not _LEADING_ZERO.match(text):
        return ""
    kind = yaml.SafeLoader("").resolve(yaml.ScalarNode, text, (True, False)).removeprefix(_TAG)
    if kind in ("int", "float") or _ODD_NUMBER.match(text):
        return "no finite decimal number, or not the same one to every reader of YAML"
    return _DOUBTS.get(kind, "")


def _form(error: Any) -> str:
    return "blanks in place of the tab" if "'\\t'" in str(error.problem) else _FORM


def _value(node: Any, name: str, at: tuple[str, ...], lines: Lines) -> Any:
    import yaml

    line = node.start_mark.line + 1
    lines.setdefault(at, line)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, name, (*at, str(place)), lines) for place, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, name, at, lines)
    return _whole(node, name) if node.style is not None else _scalar(node.value)


def _mapping(node: Any, name: str, at: tuple[str, ...], lines: Lines) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(getattr(key_node, "value", None), str) or not key_node.value:
            raise UsageError(f"{name}:{line}: a key has to be a word", hint=_FORM)
        key = _whole(key_node, name)
        if key in made:
            raise UsageError(
                f"{name}:{line}: {key} is given twice", hint="another name for one of them, or take one out"
            )
        lines[(*at, key)] = line
        made[key] = _value(value_node, name, (*at, key), lines)
    return made


def _whole(node: Any, name: str) -> str:
    """Its text; two escapes that are one character in JSON are one here too. Raises UsageError for half of one."""
    try:
        return str(node.value).encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        line = node.start_mark.line + 1
        raise UsageError(f"{name}:{line}: half a character", hint="write it out, not as an escape") from None


def _scalar(text: str) -> Any:
    """YAML 1.2's core schema, without octal, hexadecimal, .inf and .nan: those stay text."""
    if text.lower() in _WORDS and text in (text.lower(), text.capitalize(), text.upper()):
        return _WORDS[text.lower()]
    if _INT.match(text):
        return int(text)
    return float(text) if _FLOAT.match(text) else text
