"""VMs, runs, curves and lines to put states of the panel together from."""

from __future__ import annotations

import math
from typing import Any

State = dict[str, Any]
NOW = 1_795_000_000.0
GIB = 2**30


def vm(name: str, **more: Any) -> State:
    base: State = {
        "id": name,
        "state": "live",
        "accelerator": "A100 40 GB",
        "up_s": 13_260.0,
        "cap_s": 43_200.0,
        "seen_s": 0.0,
        "seen_at": NOW - 1.2,
        "kept_alive_by": "cell",
        "tunnel": "",
        "image_drift": "",
        "note": "",
        "order": 1,
        "local": False,
        "gauges": {
            "gpu": {"use": 0.97},
            "gpu_memory": {"used": 31.2 * GIB, "total": 40 * GIB},
            "ram": {"used": 11.6 * GIB, "total": 83.5 * GIB},
            "disk": {"used": 61 * GIB, "total": 235 * GIB},
            "store": {"used": 11.3 * GIB, "total": 15 * GIB},
        },
    }
    return {**base, **more}


def run(name: str, stage: str = "", **more: Any) -> State:
    base: State = {
        "id": name,
        "stage": stage or name.rpartition("-")[0],
        "vm": "colab-a",
        "state": "running",
        "waits_for": "",
        "attempt": 1,
        "step": 0,
        "total_steps": 0,
        "epoch": 0,
        "total_epochs": 0,
        "rate_per_s": None,
        "eta_s": None,
        "metrics": {},
        "checkpoint": {"local": None, "mounted": None, "confirmed": None},
        "at_risk": None,
        "verdict": "",
        "failure": "",
        "reason": "",
        "next": "",
        "created": NOW - 9000,
        "updated": NOW - 2,
        "exit_code": None,
        "log_bytes": 0,
        "resumed": [],
        "bar": "",
        "message": "",
        "order": 1,
    }
    return {**base, **more}


def curve(start: float, end: float, steps: int, wobble: float = 0.05, points: int = 260) -> list[list[float]]:
    """A loss that falls, with a deterministic unrest."""
    made = []
    for at in range(points):
        part = at / (points - 1)
        noise = math.sin(at * 1.7) * math.cos(at * 0.63) + 0.4 * math.sin(at * 4.1)
        made.append(
            [round(part * steps), end + (start - end) * math.exp(-4 * part) + noise * wobble * (start - end) * 0.35]
        )
    return made


def log(count: int, name: str = "finetune-03", first: int = 1) -> list[State]:
    lines = []
    for n in range(first, first + count):
        step = 40_000 + n
        text, level = f"step={step} loss={0.41 - n * 1e-5:.4f} lr=2.1e-04 clips/s=4811", "info"
        if n % 97 == 0:
            text, level = f"UserWarning: batch {n} has 3 clips shorter than the window; padded", "warn"
        if n % 60 == 0:
            text = f"checkpoint {step}: local 412 MiB in 1.3 s, copied to the store, confirmed by the Drive API"
        lines.append(line(n, text, level, name))
    return lines


def line(n: int, text: str, level: str = "info", name: str = "finetune-03") -> State:
    return {"n": n, "t": NOW - 600 + n * 0.3, "vm": "colab-a", "run": name, "level": level, "text": text}


def queue(n: int, text: str, state: str = "done", **more: Any) -> State:
    return {
        "n": n,
        "id": f"line-{n:04d}-0000",
        "line": text,
        "state": state,
        "run": "",
        "why": "",
        "exit_code": None,
        "t": NOW - 60 * (40 - n),
        **more,
    }


def artifact(name: str, path: str, size: float, kind: str, **more: Any) -> State:
    return {
        "run": name,
        "path": path,
        "size": int(size),
        "hash_state": "verified",
        "kind": kind,
        "t": NOW - 900,
        "note": "",
        **more,
    }


def level(step: int, age_s: float) -> State:
    return {"step": step, "age_s": age_s, "at": NOW - age_s}
