"""Orders, subsets and random numbers as pure functions of integers.

Nothing here has a state that a checkpoint could lose. A 64-bit mixing function (splitmix64's) stands in for a
generator, so the numbers are the same on every machine and in every version of numpy and torch.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

UInts = NDArray[np.uint64]
Ints = NDArray[np.int64]

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
# One tag for each use, so that no two uses of a seed ever share a random number.
SUBSET, ORDER, AUGMENT, BOOTSTRAP = 1, 2, 3, 4


def mix(values: UInts) -> UInts:
    """splitmix64's finaliser, elementwise: a bijection whose output looks random."""
    z = values + np.uint64(_GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: UInts = z ^ (z >> np.uint64(31))
    return mixed


def key(*parts: int) -> int:
    """One 64-bit number from several integers; their order counts."""
    state = np.zeros(1, dtype=np.uint64)
    for part in parts:
        state = mix(state ^ np.array([part & _MASK], dtype=np.uint64))
    return int(state[0])


def hashes(ids: Ints, *parts: int) -> UInts:
    """A random-looking number for each id, a pure function of (parts, id)."""
    return mix(mix(ids.astype(np.uint64)) ^ np.uint64(key(*parts)))


def uniforms(ids: Ints, count: int, *parts: int) -> NDArray[np.float32]:
    """`count` numbers in [0, 1) for each id (ids × count), a pure function of (parts, id)."""
    lanes = mix(np.arange(count, dtype=np.uint64))
    bits = mix(hashes(ids, *parts)[:, None] ^ lanes[None, :])
    return (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def permutation(ids: Ints, *parts: int) -> Ints:
    """The positions of `ids` in a random order, a pure function of (parts, the ids)."""
    return np.argsort(hashes(ids, *parts), kind="stable").astype(np.int64)


def subset(ids: Ints, count: int, seed: int) -> Ints:
    """Positions of the first `count` of a seeded permutation: larger subsets hold the smaller ones.

    Never a head slice: the first thousand clips of this pool are of two classes and two subjects.
    """
    return permutation(ids, SUBSET, seed)[:count]


def epoch_order(ids: Ints, seed: int, epoch: int) -> Ints:
    """The order of one epoch, a pure function of (seed, epoch)."""
    return permutation(ids, ORDER, seed, epoch)


def histogram(values: NDArray[Any]) -> dict[str, int]:
    """How often each value occurs, in order of the values; keys are text, as JSON has it."""
    return {str(value): count for value, count in sorted(Counter(values.tolist()).items())}
