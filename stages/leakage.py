"""Has a model met what it is judged on? Equal items, nearly equal items and shared groups. Pure numpy.

Both sides of a comparison are checked: a baseline that was trained on the evaluation set makes the comparison as empty
as a candidate that was.

Nearly equal: a root mean square difference of at most `tolerance`, in units of each channel's own deviation over the
evaluation set. The search misses none: means of blocks of samples can't differ by more than the samples do
(Cauchy-Schwarz), nor can their projection onto one direction, so what is far apart there is left out unseen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bridgehead.errors import VerificationError

Ints = NDArray[np.int64]
Items = NDArray[np.float32]

TOLERANCE = 0.05
_CHUNK = 1024
_BLOCK = 10  # samples that are averaged for the first look
_SLACK = 1e-3  # of float32 sums
_EXAMPLES = 5


@dataclass(frozen=True)
class Side:
    """Items by number. `read` gives some of them: items × time × channels (or items × features)."""

    ids: Ints
    groups: Ints
    read: Callable[[Ints], Items]  # positions in `ids`

    def chunks(self) -> Iterator[tuple[Ints, Items]]:
        for first in range(0, len(self.ids), _CHUNK):
            places = np.arange(first, min(first + _CHUNK, len(self.ids)))
            yield places, np.asarray(self.read(places), dtype=np.float32)


@dataclass(frozen=True)
class Leakage:
    """What one model's training set shares with the evaluation set."""

    who: str
    trained_on: int  # items
    judged_on: int
    tolerance: float
    equal: int  # items of the evaluation set that are in the training set, byte for byte
    near: int  # … that have a nearly equal one there, the equal ones among them
    shared_groups: list[int]
    examples: list[list[int]] = field(default_factory=list)  # pairs of ids: evaluated, trained on

    @property
    def clean(self) -> bool:
        return not (self.equal or self.near or self.shared_groups)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "clean": self.clean}

    def words(self) -> str:
        found = []
        if self.shared_groups:
            found.append(f"groups {self.shared_groups} are in its training and in the gate")
        if self.equal:
            found.append(f"{self.equal} of {self.judged_on} evaluated items are in its training set")
        if self.near > self.equal:
            found.append(f"{self.near - self.equal} more have a nearly equal item there")
        return f"the {self.who}: " + ("; ".join(found) or "nothing of its training set is in the evaluation set")


def check(who: str, trained: Side, judged: Side, *, tolerance: float = TOLERANCE) -> Leakage:
    """Compare all of the training set with all of the evaluation set; some seconds for 10^5 by 10^4 clips."""
    scale = _Scale(judged)
    pairs = _near_pairs(scale.of(trained), scale.of(judged), tolerance)
    equal = _equal(trained, judged)
    near = dict(pairs)
    near.update(equal)
    examples = [[int(judged.ids[place]), int(trained.ids[other])] for place, other in sorted(near.items())]
    shared = sorted(set(np.unique(trained.groups).tolist()) & set(np.unique(judged.groups).tolist()))
    return Leakage(
        who, len(trained.ids), len(judged.ids), tolerance, len(equal), len(near), shared, examples[:_EXAMPLES]
    )


def refuse(found: list[Leakage]) -> None:
    """Raises VerificationError for the first side that has met what it is judged on."""
    for item in found:
        if not item.clean:
            raise VerificationError(
                f"{item.words()}: the comparison would mean nothing", hint="train without them and queue the gate again"
            )


def _equal(trained: Side, judged: Side) -> dict[int, int]:
    """Place in `judged` → one place in `trained`."""
    known: dict[bytes, list[int]] = {}
    for places, items in judged.chunks():
        for place, item in zip(places.tolist(), items, strict=True):
            known.setdefault(_digest(item), []).append(place)
    found: dict[int, int] = {}
    for places, items in trained.chunks():
        for place, item in zip(places.tolist(), items, strict=True):
            for other in known.get(_digest(item), ()):
                found.setdefault(other, place)
    return found


def _digest(item: Items) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(item).tobytes(), digest_size=16).digest()


class _Scale:
    """Items in units of each channel's deviation over the evaluation set, channel by channel in one row."""

    def __init__(self, judged: Side) -> None:
        total, squares, count = np.zeros(1), np.zeros(1), 0
        for _, items in judged.chunks():
            flat = items.reshape(-1, items.shape[-1]).astype(np.float64)
            total, squares, count = total + flat.sum(axis=0), squares + (flat**2).sum(axis=0), count + len(flat)
        self.mean = total / max(1, count)
        deviation = np.sqrt(np.maximum(squares / max(1, count) - self.mean**2, 0.0))
        self.deviation = np.where(deviation > 0, deviation, 1.0)

    def rows(self, items: Items) -> Items:
        scaled = ((items - self.mean) / self.deviation).astype(np.float32)
        return np.ascontiguousarray(np.moveaxis(scaled, 1, -1).reshape(len(items), -1))

    def of(self, side: Side) -> _Scaled:
        return _Scaled(side, self)


class _Scaled:
    """A side with the short description of each of its items."""

    def __init__(self, side: Side, scale: _Scale) -> None:
        self.side, self.scale = side, scale
        self.features = 0
        short = []
        for _, items in side.chunks():
            rows = scale.rows(items)
            self.features = rows.shape[1]
            short.append(_block_means(rows))
        self.short = np.concatenate(short) if short else np.zeros((0, 1), dtype=np.float32)

    def full(self, places: Ints) -> Items:
        return self.scale.rows(np.asarray(self.side.read(places), dtype=np.float32))


def _block_means(rows: Items) -> Items:
    """Scaled so that two rows are never further apart here than they are themselves."""
    missing = -rows.shape[1] % _BLOCK
    padded = np.pad(rows, ((0, 0), (0, missing)))
    means = padded.reshape(len(rows), -1, _BLOCK).mean(axis=2) * np.sqrt(_BLOCK)
    return np.asarray(means, dtype=np.float32)


def _near_pairs(trained: _Scaled, judged: _Scaled, tolerance: float) -> list[tuple[int, int]]:
    """(place in judged, place in trained), one for each judged item that has a near one."""
    if not len(trained.short) or not len(judged.short):
        return []
    reach = tolerance * np.sqrt(judged.features) + _SLACK
    along = _direction(judged.short)
    order, line = _sorted_along(trained.short, along)
    judged_order, judged_line = _sorted_along(judged.short, along)
    found: dict[int, int] = {}
    for first in range(0, len(order), _CHUNK):
        places = order[first : first + _CHUNK]
        ends = line[first] - reach, line[min(first + _CHUNK, len(order)) - 1] + reach
        near = judged_order[np.searchsorted(judged_line, ends[0]) : np.searchsorted(judged_line, ends[1], side="right")]
        near = near[[place not in found for place in near.tolist()]] if found else near
        for mine, other in _close(trained.short[places], judged.short[near], reach):
            place, source = int(near[other]), int(places[mine])
            if place not in found and _rms(trained, source, judged, place) <= tolerance:
                found[place] = source
    return list(found.items())


def _direction(short: Items) -> NDArray[np.float32]:
    """The unit vector along which the items differ most."""
    centred = short - short.mean(axis=0)
    _, vectors = np.linalg.eigh((centred.T @ centred).astype(np.float64))
    return np.asarray(vectors[:, -1], dtype=np.float32)


def _sorted_along(short: Items, along: NDArray[np.float32]) -> tuple[Ints, NDArray[np.float32]]:
    line = short @ along
    order = np.argsort(line, kind="stable")
    return order.astype(np.int64), line[order]


def _close(first: Items, second: Items, reach: float) -> NDArray[np.int64]:
    """Pairs of rows that are within `reach`, the squares rounded in favour of a closer look."""
    if not len(second):
        return np.zeros((0, 2), dtype=np.int64)
    lengths = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1)[None, :]
    squares = lengths - 2.0 * (first @ second.T)
    return np.argwhere(squares <= reach**2 + 1e-5 * lengths)


def _rms(trained: _Scaled, source: int, judged: _Scaled, place: int) -> float:
    gap = trained.full(np.array([source])) - judged.full(np.array([place]))
    return float(np.sqrt(np.mean(gap.astype(np.float64) ** 2)))
