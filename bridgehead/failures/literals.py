"""Which pieces of plain text a regex can't do without, so that most lines are passed over without running it."""

from __future__ import annotations

from typing import Any

try:  # the parser has no public name; without it every regex is run on every line, which is only slower
    from re import _parser as parser  # type: ignore[attr-defined]
except ImportError:  # pragma: no cover - of a Python to come
    parser = None

_LEAST = 3  # letters; shorter pieces are in every line


def needed(regex: str) -> tuple[str, ...]:
    """Lower-case pieces one of which is in every match; empty when there are none that help."""
    if parser is None:
        return ()
    return tuple(sorted(_of_sequence(list(parser.parse(regex)))))


def _of_sequence(items: list[Any]) -> frozenset[str]:
    """The best of its members: the one whose shortest piece is longest."""
    found: list[frozenset[str]] = []
    run = ""
    for name, value in [*((str(item[0]), item[1]) for item in items), ("END", None)]:
        if name == "LITERAL":
            run += chr(value)
            continue
        found.append(frozenset({run.lower()}))
        run = ""
        found.append(_of_item(name, value))
    usable = [pieces for pieces in found if pieces and min(map(len, pieces)) >= _LEAST]
    return max(usable, key=lambda pieces: min(map(len, pieces)), default=frozenset())


def _of_item(name: str, value: Any) -> frozenset[str]:
    if name == "SUBPATTERN":
        return _of_sequence(list(value[-1]))
    if name == "BRANCH":
        branches = [_of_sequence(list(branch)) for branch in value[1]]
        return frozenset().union(*branches) if all(branches) else frozenset()
    if name in ("MAX_REPEAT", "MIN_REPEAT") and value[0] >= 1:
        return _of_sequence(list(value[2]))
    return frozenset()
