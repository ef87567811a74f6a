"""The texts of a bundle of the clips pipeline: licence, notice of the data, model card."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from typing import Any

from stages import clips_pool

LICENSE = """\
MIT License

Copyright (c) the people who trained this model

Permission is hereby granted, free of charge, to any person obtaining a copy of
this software and associated documentation files (the "Software"), to deal in
the Software without restriction, including without limitation the rights to
use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies
of the Software, and to permit persons to whom the Software is furnished to do
so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
SOFTWARE.
"""

_NOTICE = """\
The model was trained on, and samples/ holds clips of, the watch data set that comes with seglearn (a part of SPAR:
D. M. Burns et al., "Shoulder physiotherapy exercise recognition", 2018, arXiv:1802.01489), under this licence:

"""

_CARD = """\
# {name}

Tells seven shoulder exercises apart from {window} samples ({seconds:g} s at {rate} Hz) of a wrist-worn
accelerometer and gyroscope.

- Input `clips`: float32, batch × {window} × {channels}, channels {channel_names}, raw: the normalisation is inside
  the graph.
- Outputs: `logits` ({labels}), and `embedding`.
- Training and validation used people {seen}; it is judged on people {held_out}, whom it has never seen.
- Accuracy there: {candidate:.3f}, against {baseline:.3f} of the baseline ({baseline_id}).
  Difference {effect:+.3f}, {confidence:.0%} interval [{low:+.3f}, {high:+.3f}] by subject and recording.
{more}- Limits: two held-out people and one watch. An exercise that is none of the seven still gets one of their labels.
  The comparison shows that the whole procedure beats the baseline, not how much of that the pretraining adds.
"""


def notice() -> str:
    """Names the data and holds its licence, word for word from the installed package."""
    return _NOTICE + (importlib.metadata.distribution("seglearn").read_text("LICENSE") or "BSD 3-Clause\n")


def model_card(name: str, gate: Mapping[str, Any], origin: Mapping[str, Any]) -> str:
    """Filled from the records of its runs alone: what the gate measured, and where the model comes from."""
    low, high = gate["interval"]
    return _CARD.format(
        name=name,
        window=clips_pool.WINDOW,
        seconds=clips_pool.WINDOW / clips_pool.RATE_HZ,
        rate=clips_pool.RATE_HZ,
        channels=len(clips_pool.CHANNELS),
        channel_names=" ".join(clips_pool.CHANNELS),
        labels=" ".join(clips_pool.LABELS),
        seen=", ".join(map(str, gate["leak_check"]["seen_subjects"])),
        held_out=", ".join(map(str, gate["leak_check"]["held_out_subjects"])),
        candidate=gate["candidate_accuracy"],
        baseline=gate["baseline_accuracy"],
        baseline_id=gate["baseline"]["id"],
        effect=gate["effect"],
        confidence=gate["confidence"],
        low=low,
        high=high,
        more="".join(f"- {line}\n" for line in [*_asked(gate), *_leaks(gate), *_from(origin)]),
    )


def _asked(gate: Mapping[str, Any]) -> list[str]:
    """Each criterion with its verdict, in the gate's own words."""
    return [
        f"Gate, {item['metric']}: {item['verdict']}: {'; '.join(item['why'])}." for item in gate.get("criteria", [])
    ]


def _leaks(gate: Mapping[str, Any]) -> list[str]:
    return [
        f"Leakage check of the {side['who']}: {side['trained_on']} clips against {side['judged_on']} evaluated ones, "
        f"{side['equal']} equal, {side['near']} nearly equal, shared people: {len(side['shared_groups'])}."
        for side in gate["leak_check"].get("sides", [])
    ]


def _from(origin: Mapping[str, Any]) -> list[str]:
    runs = [
        f"{stage} `{value['run_id']}`"
        for stage, value in origin.items()
        if isinstance(value, Mapping) and "run_id" in value
    ]
    pool = origin.get("pool", {})
    code = str(origin.get("ship_sha256") or "")[:16] or "unknown"
    return [f"Made by {', '.join(runs)}; pool {str(pool.get('fingerprint'))[:16]}, code {code}."]
