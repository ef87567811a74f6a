"""Orders, subsets and random numbers are pure functions, and good enough ones."""

from __future__ import annotations

import numpy as np
import pytest

from stage_support import Workshop
from stages import clips_pool, sampling

IDS = np.arange(5000, dtype=np.int64) * 7


def test_a_larger_subset_holds_every_smaller_one() -> None:
    sizes = [1, 10, 999, 5000]
    subsets = [set(sampling.subset(IDS, size, seed=3).tolist()) for size in sizes]
    assert [len(subset) for subset in subsets] == sizes
    assert all(small < large for small, large in zip(subsets, subsets[1:], strict=False))


def test_a_subset_is_no_head_slice(workshop: Workshop) -> None:
    """The head of this pool is of two subjects and two classes; a random thousand has them all."""
    pool = workshop.pool
    train = pool.of_subjects(clips_pool.TRAIN_SUBJECTS)
    chosen = train[sampling.subset(pool.clip_ids(train), 1000, seed=0)]
    assert len(sampling.histogram(pool.labels(train[:100]))) <= 4
    assert len(sampling.histogram(pool.labels(chosen))) == len(clips_pool.LABELS)
    assert len(sampling.histogram(pool.subjects(chosen))) == len(clips_pool.TRAIN_SUBJECTS)


def test_the_order_of_an_epoch_depends_on_seed_and_epoch_alone() -> None:
    first = sampling.epoch_order(IDS, seed=1, epoch=4)
    np.random.seed(99)
    assert np.array_equal(first, sampling.epoch_order(IDS, seed=1, epoch=4))
    assert sorted(first.tolist()) == list(range(len(IDS)))
    assert not np.array_equal(first, sampling.epoch_order(IDS, seed=1, epoch=5))
    assert not np.array_equal(first, sampling.epoch_order(IDS, seed=2, epoch=4))


def test_a_clips_numbers_do_not_depend_on_its_batch() -> None:
    together = sampling.uniforms(IDS[:10], 5, sampling.AUGMENT, 0, 1)
    assert np.array_equal(together[7:8], sampling.uniforms(IDS[7:8], 5, sampling.AUGMENT, 0, 1))


def test_the_numbers_are_the_same_in_every_version() -> None:
    """A golden value: were it to change, no run could be resumed across the change."""
    assert sampling.key(1, 2, 3) == 0xD0734750FDE362B3


def test_uniforms_are_uniform() -> None:
    drawn = sampling.uniforms(IDS, 20, sampling.AUGMENT, 7)
    assert drawn.min() >= 0 and drawn.max() < 1
    assert drawn.mean() == pytest.approx(0.5, abs=0.01)
    assert np.histogram(drawn, bins=10, range=(0, 1))[0].std() < 0.02 * drawn.size / 10
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1]) < 0.05


def test_histograms_are_in_the_order_of_their_values() -> None:
    assert list(sampling.histogram(np.array([10, 9, 10, 2]))) == ["2", "9", "10"]
