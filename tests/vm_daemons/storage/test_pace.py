"""Token buckets on a clock of the test's own, and the store that waits for them."""

from __future__ import annotations

from pathlib import Path

from store_support import Faulty

from vm_daemons.storage.folder_store import FolderStore
from vm_daemons.storage.pace import Bucket, PacedStore


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def bucket(clock: Clock, rate: float, burst: float) -> Bucket:
    return Bucket(rate, burst, clock=lambda: clock.now, sleep=clock.sleep)


def test_a_burst_passes_and_then_the_rate_holds() -> None:
    clock = Clock()
    paced = bucket(clock, 10.0, 5.0)
    for _ in range(25):
        paced.take()
    assert abs(clock.now - 102.0) < 1e-6
    assert clock.slept[0] > 0 and len(clock.slept) == 20


def test_more_than_a_burst_is_lent_and_waited_for() -> None:
    clock = Clock()
    paced = bucket(clock, 100.0, 100.0)
    paced.take(1000)
    assert abs(clock.now - 109.0) < 1e-6


def test_no_rate_is_no_limit() -> None:
    clock = Clock()
    bucket(clock, 0.0, 0.0).take(1e12)
    assert clock.slept == []


def test_idle_time_saves_up_no_more_than_a_burst() -> None:
    clock = Clock()
    paced = bucket(clock, 1.0, 2.0)
    clock.now += 1000
    for _ in range(3):
        paced.take()
    assert clock.slept == [1.0]


def test_a_folder_pays_for_each_piece_and_another_store_for_the_whole(tmp_path: Path) -> None:
    source = tmp_path / "big"
    source.write_bytes(bytes(5 << 20))
    (tmp_path / "drive").mkdir()
    for inner, pauses in ((FolderStore(tmp_path / "drive", proves=False), 4), (Faulty(tmp_path / "drive"), 1)):
        clock = Clock()
        free = bucket(clock, 0.0, 0.0)
        store = PacedStore(inner, free, bucket(clock, float(1 << 20), float(1 << 20)))
        store.put("demo/big", source)
        assert abs(clock.now - 104.0) < 1e-6 and len(clock.slept) == pauses


def test_each_request_pays(tmp_path: Path) -> None:
    clock = Clock()
    store = PacedStore(Faulty(tmp_path), bucket(clock, 1.0, 1.0), bucket(clock, 0.0, 0.0))
    store.put_bytes("a", b"x")
    store.read("a", 9)
    store.find("a")
    store.list("")
    store.empty("a")
    store.delete("a")
    assert clock.slept == [1.0] * 5 and (store.kind, store.proves, store.where) == ("mount", False, str(tmp_path))
