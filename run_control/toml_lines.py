"""Which line of a TOML text a key stands on. tomllib keeps no positions, so the text is scanned once more."""

from __future__ import annotations

import re
import tomllib

_HEADER = re.compile(r"\s*\[{1,2}\s*([^\]]+?)\s*\]{1,2}\s*(?:#.*)?\Z")
_KEY = re.compile(r"\s*((?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'))*)\s*=")
_PART = re.compile(r"[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'")
_SYNTAX = re.compile(r"at line (\d+)")


def line_of(text: str, keys: list[str]) -> int:
    """The line (from 1) of the key, or of the nearest table that would hold it; 1 when there is none."""
    best_line, best_depth = 1, 0
    table: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        header = _HEADER.match(line)
        if header is not None:
            table = _parts(header[1])
            here = table
        else:
            key = _KEY.match(line)
            if key is None:
                continue
            here = [*table, *_parts(key[1])]
        depth = min(len(here), len(keys))  # a header such as [stage.gate] is where the unknown key `stage` stands
        if here[:depth] == keys[:depth] and depth > best_depth:
            best_line, best_depth = number, depth
    return best_line


def syntax_line(error: tomllib.TOMLDecodeError) -> int:
    """The line that tomllib complains about."""
    match = _SYNTAX.search(str(error))
    if match is not None:
        return int(match[1])
    document = getattr(error, "doc", "")
    return document.count("\n") + 1 if document else 1


def _parts(text: str) -> list[str]:
    return [part.strip("\"'") for part in _PART.findall(text)]
