"""A sleep of the machine is seen in its clocks."""

from __future__ import annotations

import pytest

from bridge.tunnels.sleep import SleepWatch


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("wall_s", "monotonic_s", "slept"),
    [
        (2.1, 2.1, False),
        (3600.0, 2.0, True),  # Linux, macOS: the monotonic clock stood still
        (3600.0, 3600.0, True),  # Windows: it went on
        (12.0, 12.0, False),  # a busy machine
        (-3600.0, 2.0, False),  # somebody set the clock back
    ],
)
def test_far_more_time_than_the_pause_was_a_sleep(wall_s: float, monotonic_s: float, slept: bool) -> None:
    wall, monotonic = Clock(), Clock()
    watch = SleepWatch(wall=wall, monotonic=monotonic)
    wall.now += wall_s
    monotonic.now += monotonic_s
    assert watch.woke(2.0) is slept
    assert watch.woke(2.0) is False
