"""What can be told beyond the class, from the numbers in the very lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from bridgehead.names import FailureClass as F

_UNITS: Final = {"B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TIB": 2**40}
_ASKED = re.compile(r"Tried to allocate ([\d.]+) ([KMGT]?i?B)", re.IGNORECASE)
_IDLE = re.compile(r"([\d.]+) ([KMGT]?i?B) is reserved by PyTorch but unallocated", re.IGNORECASE)
_WORK = re.compile(r"SeqNum=(\d+), OpType=(\w+)")
_LEAST_IDLE: Final = 64 * 2**20


def of(failure: F, lines: Sequence[str]) -> tuple[str, str]:
    """(detail, next step); both empty when the class says it all."""
    if failure == F.GPU_OOM:
        return _fragmentation(lines)
    if failure == F.NCCL_TIMEOUT:
        return _diverged(lines)
    return "", ""


def _fragmentation(lines: Sequence[str]) -> tuple[str, str]:
    """Memory that PyTorch holds unused would have been enough: it lies in pieces."""
    for line in lines:
        asked, idle = _size(_ASKED.search(line)), _size(_IDLE.search(line))
        if asked and idle > max(asked, _LEAST_IDLE):
            step = "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; if that is not enough, a smaller batch"
            return "fragmentation: more was reserved and unused than was asked for", step
    return "", ""


def _size(found: re.Match[str] | None) -> float:
    if found is None:
        return 0.0
    try:
        return float(found.group(1)) * _UNITS.get(found.group(2).upper(), 0)
    except ValueError:
        return 0.0


def _diverged(lines: Sequence[str]) -> tuple[str, str]:
    """Two ranks were in different collectives under the same number: their programs took different ways."""
    operations: dict[str, set[str]] = {}
    for line in lines:
        for number, operation in _WORK.findall(line):
            operations.setdefault(number, set()).add(operation)
    for number, kinds in operations.items():
        if len(kinds) > 1:
            step = "the ranks took different ways: look for a collective under an if, or loaders of unequal length"
            return f"diverged ranks: collective {number} was {' on one, '.join(sorted(kinds))} on another", step
    return "", ""
