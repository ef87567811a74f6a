"""What a gate leaves for later comparisons: each metric's mean over each part, and a table of what got worse.

Two models that were judged on the very same items, at different times, can then be compared pair by pair on a laptop,
without their weights: a champion against its challenger, the arms of a study against each other. Parts of a group
count the same here, however many items each has, so that values differ a little from a gate's own, which are by item.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bridgehead.errors import UsageError
from stages import judging
from stages.judging import Bootstrap, Criterion, Floats, Ints

Cell = dict[str, Any]  # group, part, slices, items, values: metric → mean


def make(values: Mapping[str, Floats], groups: Ints, parts: Ints, slices: Mapping[str, Sequence[str]]) -> list[Cell]:
    """One cell a part. `slices` names what else each item belongs to, and must be the same for all items of a part."""
    found = []
    for part in np.unique(parts):
        mask = parts == part
        first = int(np.flatnonzero(mask)[0])
        found.append(
            {
                "group": str(groups[first]),
                "part": str(part),
                "slices": {name: str(labels[first]) for name, labels in slices.items()},
                "items": int(mask.sum()),
                "values": {name: _number(numbers[mask].mean()) for name, numbers in values.items()},
            }
        )
    return found


def by_group(cells: Sequence[Mapping[str, Any]], metric: str) -> dict[str, dict[str, float]]:
    """Group → part → mean. Raises UsageError for cells that can't be read or that lack the metric."""
    found: dict[str, dict[str, float]] = {}
    try:
        for cell in cells:
            value = cell["values"][metric]
            number = float("nan") if value is None else float(value)
            found.setdefault(str(cell["group"]), {})[str(cell["part"])] = number
    except (KeyError, TypeError, ValueError):
        raise UsageError(f"the record holds no {metric!r} for each part", hint="run the gate again") from None
    return found


def compare(
    candidate: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]], asked: Criterion, how: Bootstrap
) -> judging.Comparison:
    """Raises UsageError unless both hold the same parts of the same groups."""
    return judging.compare_parts(by_group(candidate, asked.metric), by_group(other, asked.metric), asked, how)


def regressions(
    candidate: Sequence[Mapping[str, Any]], champion: Sequence[Mapping[str, Any]], asked: Criterion, how: Bootstrap
) -> list[dict[str, Any]]:
    """A row for the whole, each group and each slice, the worst change first; positive changes are better.

    The word is "worse" or "better" where the whole interval says so, "same" for a tie and else "unclear". Rows are many
    and their intervals are not corrected for that: a single "worse" among twenty is a question, not an answer.
    """
    rows = [_row("all", candidate, champion, asked, how)]
    chosen: list[tuple[str, Callable[[Mapping[str, Any]], str], str]] = []
    for group in sorted({_group(cell) for cell in candidate}):
        chosen.append((f"group {group}", _group, group))
    for kind in sorted({kind for cell in candidate for kind in cell.get("slices", {})}):
        of_kind = functools.partial(_label, kind)
        chosen += [(f"{kind} {label}", of_kind, label) for label in sorted({of_kind(cell) for cell in candidate})]
    for name, of, value in chosen:
        mine, theirs = ([cell for cell in side if of(cell) == value] for side in (candidate, champion))
        rows.append(_row(name, mine, theirs, asked, how))
    return [rows[0], *sorted(rows[1:], key=lambda row: (row["change"] is None, row["change"] or 0.0))]


def _group(cell: Mapping[str, Any]) -> str:
    return str(cell["group"])


def _label(kind: str, cell: Mapping[str, Any]) -> str:
    return str(cell["slices"].get(kind))


def _row(
    name: str,
    candidate: Sequence[Mapping[str, Any]],
    champion: Sequence[Mapping[str, Any]],
    asked: Criterion,
    how: Bootstrap,
) -> dict[str, Any]:
    found = compare(candidate, champion, asked, how).to_json()
    low, high = found["interval"]
    parts = len(candidate)
    if low is None or parts < 2:
        word = "unclear"
    elif low == high == 0.0:
        word = "same"
    else:
        word = "worse" if high < 0 else "better" if low > 0 else "unclear"
    return {
        "slice": name,
        "items": sum(int(cell["items"]) for cell in candidate),
        "parts": parts,
        "candidate": found["candidate"],
        "champion": found["baseline"],
        "change": found["effect"],
        "interval": found["interval"],
        "word": word,
    }


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
