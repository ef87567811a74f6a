"""Which lines of an edited queue.txt are new, which are the ones that were taken before, and which those became.

Mistakes are made on the side of not running something twice: a line that was moved is the same line, and a line
that stands where another one stood is an edit of it.
"""

from __future__ import annotations

import difflib
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bridge.ledger_rows import TakenLine

SIMILAR = 0.6  # from here on a line among several others counts as an edit of the one that it resembles
_COMPARE_MAX = 2500  # pairs of lines; above, edits are paired in order
_COMPARE_CHARS = 200
BACK_S = 600.0
_BLOCKS_MAX = 20


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

    def as_another_file(self) -> None:
        """What looks like an edit is a new line, and the old one is gone."""
        self.new = sorted([*self.new, *self.edited])
        self.removed = sorted([*self.removed, *self.edited.values()])
        self.edited = {}


class RemovedLines:
    """Lines that went away together, for a while: a checkout of another branch or a file put aside brings them back.

    A single line that comes back is a new one, since nobody can tell; so are several after BACK_S.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._blocks: deque[tuple[float, list[TakenLine]]] = deque(maxlen=_BLOCKS_MAX)

    def add(self, lines: list[TakenLine]) -> None:
        if len(lines) > 1:
            self._blocks.append((self._clock(), lines))

    def back(self, fresh: Mapping[int, str]) -> dict[int, int]:
        """Of these new lines (place → text) those of a block that came back whole and in its order: place → seq."""
        places = sorted(fresh)
        texts = [fresh[place] for place in places]
        for block in reversed(self._blocks):
            at, lines = block
            wanted = [line.text for line in lines]
            start = _find(texts, wanted) if self._clock() - at < BACK_S else -1
            if start >= 0:
                self._blocks.remove(block)
                return {places[start + number]: line.seq for number, line in enumerate(lines)}
        return {}


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


def _find(texts: Sequence[str], wanted: Sequence[str]) -> int:
    """Where `wanted` stands in `texts` without a gap; -1 when it does not."""
    first = wanted[0]
    for start in range(len(texts) - len(wanted) + 1):
        if texts[start] == first and list(texts[start : start + len(wanted)]) == list(wanted):
            return start
    return -1
