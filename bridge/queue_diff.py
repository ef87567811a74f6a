"""Which lines of an edited queue.txt are new, which are the ones that were taken before, and which those became.

Mistakes are made on the side of not running something twice: a line that was moved is the same line, and a line
that stands where another one stood is an edit of it.
"""

from __future__ import annotations

import difflib
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

SIMILAR = 0.6  # from here on a line among several others counts as an edit of the one that it resembles
_COMPARE_MAX = 2500  # pairs of lines; above, edits are paired in order
_COMPARE_CHARS = 200


@dataclass
class Changes:
    """`same` and `edited` map places in the new text to places in the old one."""

    same: dict[int, int] = field(default_factory=dict)
    edited: dict[int, int] = field(default_factory=dict)
    new: list[int] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)  # places in the old text

    @property
    def only_added(self) -> bool:
        """All old lines are there, unchanged and in their order."""
        olds = list(self.same.values())
        return not self.edited and not self.removed and olds == sorted(olds)


def compare(old: Sequence[str], new: Sequence[str]) -> Changes:
    """Linear in the number of lines, except for finding which of a few lines resemble each other."""
    changes = Changes(same=_same(old, new))
    matched_old = {place: mate for mate, place in changes.same.items()}
    old_gaps = _gaps(len(old), matched_old, {place: place for place in matched_old})
    new_gaps = _gaps(len(new), changes.same, changes.same)
    for gap, places in new_gaps.items():
        changes.edited.update(_edits(old, new, old_gaps.get(gap, []), places))
    used = set(changes.edited.values())
    changes.new = [place for places in new_gaps.values() for place in places if place not in changes.edited]
    changes.removed = [place for places in old_gaps.values() for place in places if place not in used]
    changes.new.sort()
    return changes


def _same(old: Sequence[str], new: Sequence[str]) -> dict[int, int]:
    """New place → old place of equal lines: what is common at both ends first, then the rest in order."""
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    same = {place: place for place in range(start)}
    waiting: dict[str, deque[int]] = defaultdict(deque)
    for place in range(start, len(old) - end):
        waiting[old[place]].append(place)
    for place in range(start, len(new) - end):
        if waiting[new[place]]:
            same[place] = waiting[new[place]].popleft()
    same.update({len(new) - back: len(old) - back for back in range(end, 0, -1)})
    return same


def _gaps(count: int, matched: dict[int, int], anchors: dict[int, int]) -> dict[int, list[int]]:
    """The places that match nothing, grouped by the old place of the matched line before them (-1: none)."""
    gaps: dict[int, list[int]] = defaultdict(list)
    anchor = -1
    for place in range(count):
        if place in matched:
            anchor = anchors[place]
        else:
            gaps[anchor].append(place)
    return gaps


def _edits(old: Sequence[str], new: Sequence[str], olds: list[int], news: list[int]) -> dict[int, int]:
    """New place → old place within one gap."""
    if len(olds) == len(news) or len(olds) * len(news) > _COMPARE_MAX:
        return dict(zip(news, olds, strict=False))
    edits: dict[int, int] = {}
    left = list(olds)
    for place in news:
        scored = [(_similarity(old[candidate], new[place]), -candidate) for candidate in left]
        best, candidate = max(scored, default=(0.0, 0))
        if best >= SIMILAR:
            edits[place] = -candidate
            left.remove(-candidate)
    return edits


def _similarity(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one[:_COMPARE_CHARS], other[:_COMPARE_CHARS], autojunk=False).ratio()
