"""How laptop and VM write down which parts of an upload are missing: `0-3,7`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bridgehead.errors import UsageError


def write(numbers: Iterable[int], limit: int = 2000) -> str:
    """Ascending numbers as ranges; the first of them, when all would take more than about `limit` characters."""
    text = ""
    for first, last in _ranges(numbers):
        text += ("," if text else "") + (str(first) if first == last else f"{first}-{last}")
        if len(text) > limit:
            break
    return text


def read(text: str, count: int) -> list[int]:
    """The numbers, each below `count`. Raises UsageError."""
    found: list[int] = []
    for item in filter(None, text.split(",")):
        first, dash, last = item.partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else True)):
            raise UsageError(f"not a list of parts: {text[:40]!r}")
        numbers = range(int(first), int(last or first) + 1)
        if not numbers or numbers[-1] >= count or (found and numbers[0] <= found[-1]):
            raise UsageError(f"not a list of {count} parts: {text[:40]!r}")
        found += numbers
    return found


def _ranges(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    first = last = -1
    for number in numbers:
        if first >= 0 and number == last + 1:
            last = number
            continue
        if first >= 0:
            yield first, last
        first = last = number
    if first >= 0:
        yield first, last
