"""How far the artefacts are, in one line: for the cell, for `bridgehead status` and for progress bars."""

from __future__ import annotations

from typing import Any

from bridgehead.records import duration


def line(told: object) -> str:
    """Of a heartbeat's `uploads`; empty when nothing is on its way. What can't be read counts as nothing."""
    if not isinstance(told, dict):
        return ""
    done, total = sums(told.get("runs"))
    paused = told.get("paused") is True
    if not total["files"]:
        return "artefacts are paused: they wait on the VM" if paused else ""
    size = f"{done['files']}/{total['files']} files, {size_text(done['bytes'])} of {size_text(total['bytes'])}"
    return f"artefacts: {size}, {'paused' if paused else speed(told)}"


def sums(runs: object) -> tuple[dict[str, int], dict[str, int]]:
    """What is done and what is to do: files and bytes."""
    listed: list[Any] = runs if isinstance(runs, list) else []
    done, total = {"files": 0, "bytes": 0}, {"files": 0, "bytes": 0}
    for run in listed:
        if isinstance(run, dict):
            for unit in done:
                done[unit] += _count(run.get(unit))
                total[unit] += _count(run.get(f"total_{unit}"))
    return done, total


def speed(told: dict[str, Any]) -> str:
    """`12.3 MB/s, 3m04s left`."""
    rate, eta_s = told.get("rate_bytes_s"), told.get("eta_s")
    text = f"{_count(rate) / 1e6:.1f} MB/s"
    return text + (f", {duration(eta_s)} left" if isinstance(eta_s, int | float) and eta_s >= 0 else "")


def size_text(size_bytes: int) -> str:
    if size_bytes >= 2**30:
        return f"{size_bytes / 2**30:.1f} GiB"
    return f"{size_bytes / 2**20:.1f} MiB" if size_bytes >= 2**20 else f"{size_bytes / 2**10:.0f} KiB"


def _count(value: object) -> int:
    return max(0, value) if isinstance(value, int) and not isinstance(value, bool) else 0
