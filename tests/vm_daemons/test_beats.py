"""Silence of a daemon, counted on the watcher's own clock."""

from __future__ import annotations

import os
from pathlib import Path

from bridgehead import names
from vm_daemons import beats
from vm_daemons.home import VmHome
from vm_support import paired_home


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def sign(home: VmHome, name: str, mtime: float) -> None:
    beats.path(home, name).touch()
    os.utime(beats.path(home, name), (mtime, mtime))


def test_silence_is_the_time_since_the_sign_changed_whatever_its_date(tmp_path: Path) -> None:
    home, clock = paired_home(tmp_path), Clock()
    watch = beats.Watch(home, clock)
    sign(home, names.STATUS_DAEMON, 5.0)  # 1970: the time of day is of no interest
    assert watch.look() == {names.STATUS_DAEMON: 0.0}
    clock.now += 30
    assert watch.look() == {names.STATUS_DAEMON: 30.0}
    sign(home, names.STATUS_DAEMON, 4.0)  # a clock that went back
    assert watch.look() == {names.STATUS_DAEMON: 0.0}


def test_after_a_sleep_nobody_has_been_silent(tmp_path: Path) -> None:
    home, clock = paired_home(tmp_path), Clock()
    watch = beats.Watch(home, clock)
    sign(home, names.COMMAND_DAEMON, 5.0)
    watch.look()
    clock.now += 36_000
    assert watch.look() == {names.COMMAND_DAEMON: 0.0}


def test_a_daemon_that_never_gave_a_sign_is_not_judged(tmp_path: Path) -> None:
    assert beats.Watch(paired_home(tmp_path), Clock()).look() == {}


def test_a_sign_of_life_that_can_not_be_given_is_no_trouble(tmp_path: Path) -> None:
    home = VmHome(tmp_path / "gone")
    beats.beat(home, names.STATUS_DAEMON)
    assert not beats.path(home, names.STATUS_DAEMON).exists()
