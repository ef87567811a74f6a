"""Views of a clip: random, and a pure function of (seed, epoch, clip id)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stage_support import Workshop
from stages import augment, pretrain


def test_views_depend_on_seed_epoch_and_clip_and_on_nothing_else(workshop: Workshop) -> None:
    pool = workshop.pool
    positions = np.array([3, 400, 77])
    clips, ids, std = torch.from_numpy(pool.read(positions)), pool.clip_ids(positions), torch.tensor(pool.std)
    one, other = augment.two_views(clips, ids, 0, 4, std)
    torch.manual_seed(123)
    again, _ = augment.two_views(clips, ids, 0, 4, std)
    alone, _ = augment.two_views(clips[1:2], ids[1:2], 0, 4, std)
    assert torch.equal(one, again) and torch.equal(one[1:2], alone)
    assert not torch.equal(one, other)
    for seed, epoch in ((1, 4), (0, 5)):
        assert not torch.equal(one, augment.two_views(clips, ids, seed, epoch, std)[0])


def test_a_view_stays_near_its_clip(workshop: Workshop) -> None:
    pool = workshop.pool
    positions = np.arange(0, 4000, 40)
    clips = torch.from_numpy(pool.read(positions))
    view, _ = augment.two_views(clips, pool.clip_ids(positions), 0, 0, torch.tensor(pool.std))
    assert view.shape == clips.shape and torch.isfinite(view).all()
    assert 0.5 < float(view.square().mean() / clips.square().mean()) < 1.5


def test_the_loss_is_least_when_partners_agree() -> None:
    views = torch.nn.functional.one_hot(torch.arange(4)).float()
    agreeing = float(pretrain.contrastive_loss(torch.cat([views, views]), 0.1))
    crossed = float(pretrain.contrastive_loss(torch.cat([views, views.roll(1, 0)]), 0.1))
    assert agreeing == pytest.approx(0.0, abs=0.01) and crossed > 5.0
