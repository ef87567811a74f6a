"""Random views of a clip. Each number comes from (seed, epoch, clip id), so a resumed run sees the same views."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stages import sampling
from stages.sampling import Ints

_PARAMETERS = 8  # per clip and view: scale, jitter size, crop length, crop start, 3 for a rotation, mask start
_SCALE = 0.25
_JITTER = 0.15
_MIN_CROP = 0.5
_MAX_ROTATION = 0.6
_MASK = 12


def two_views(clips: Tensor, ids: Ints, seed: int, epoch: int, std: Tensor) -> tuple[Tensor, Tensor]:
    """Two augmented copies of clips (B, T, C), raw units; `std` is the pool's, per channel."""
    return _view(clips, ids, seed, epoch, 0, std), _view(clips, ids, seed, epoch, 1, std)


def one_view(clips: Tensor, ids: Ints, seed: int, epoch: int, std: Tensor) -> Tensor:
    """The first of them."""
    return _view(clips, ids, seed, epoch, 0, std)


def _view(clips: Tensor, ids: Ints, seed: int, epoch: int, number: int, std: Tensor) -> Tensor:
    length, channels = clips.shape[1:]
    count = _PARAMETERS + length * channels
    draws = torch.from_numpy(sampling.uniforms(ids, count, sampling.AUGMENT, seed, epoch, number)).to(clips.device)
    u = draws[:, :_PARAMETERS]
    jitter = (draws[:, _PARAMETERS:].view(-1, length, channels) - 0.5) * (3.46 * _JITTER)
    view = _crop(clips, u[:, 2], u[:, 3])
    view = _rotate(view, u[:, 4:7])
    view = view * torch.exp((u[:, 0] * 2 - 1) * _SCALE)[:, None, None]
    view = view + jitter * u[:, 1, None, None] * std
    return _mask(view, u[:, 7])


def _crop(clips: Tensor, u_length: Tensor, u_start: Tensor) -> Tensor:
    """Cut a part of the clip and stretch it back to full length, linearly."""
    length = clips.shape[1]
    span = (length - 1) * (_MIN_CROP + (1 - _MIN_CROP) * u_length)
    start = (length - 1 - span) * u_start
    at = start[:, None] + span[:, None] * torch.linspace(0, 1, length, device=clips.device)[None, :]
    low = at.floor().clamp(max=length - 2)
    weight = (at - low)[:, :, None]
    index = low.long()[:, :, None].expand(-1, -1, clips.shape[2])
    return clips.gather(1, index) * (1 - weight) + clips.gather(1, index + 1) * weight


def _rotate(clips: Tensor, u: Tensor) -> Tensor:
    """Turn accelerometer and gyroscope together, as if the watch sat askew (Rodrigues' formula)."""
    axis = u[:, :3] * 2 - 1
    norm = axis.norm(dim=1, keepdim=True).clamp(min=1e-6)
    angle = norm[:, 0] * (_MAX_ROTATION / math.sqrt(3))
    x, y, z = (axis / norm).unbind(1)
    zero = torch.zeros_like(x)
    cross = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], dim=1).view(-1, 3, 3)
    sin, cos = angle.sin()[:, None, None], angle.cos()[:, None, None]
    turn = torch.eye(3, device=clips.device) + sin * cross + (1 - cos) * (cross @ cross)
    return torch.cat([clips[:, :, :3] @ turn, clips[:, :, 3:] @ turn], dim=2)


def _mask(clips: Tensor, u_start: Tensor) -> Tensor:
    length = clips.shape[1]
    start = (u_start * (length - _MASK)).floor()[:, None]
    steps = torch.arange(length, device=clips.device)[None, :]
    return clips * ((steps < start) | (steps >= start + _MASK))[:, :, None]
