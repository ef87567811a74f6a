"""Helpers that many tests share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 5.0  # a deadline is there to end a test that hangs; a busy machine is no failure


def wait_until(predicate: Callable[[], T], timeout_s: float = 10.0, *, what: str = "the condition") -> T:
    """Poll until `predicate()` is truthy and return its value; AssertionError after the deadline.

    `timeout_s` is what a quiet machine may need at most; one that is busy gets PATIENCE times as long.
    """
    deadline = time.monotonic() + timeout_s * PATIENCE
    pause_s = 0.005
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s * PATIENCE:g} s for {what}")
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.1)
