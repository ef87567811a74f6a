"""The double of a mounted Drive does what makes the real one dangerous, and only when it is told to."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from doubles.drivefs_mount import DriveFsMount, is_mounted, why_not
from doubles.google_cloud import Cloud
from support import wait_until

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    return Cloud(tmp_path / "cloud")


@pytest.fixture
def mount(cloud: Cloud, tmp_path: Path) -> Iterator[DriveFsMount]:
    with DriveFsMount(cloud, tmp_path / "drive") as mounted:
        yield mounted


def code_of(action: object) -> int | None:
    try:
        action()  # type: ignore[operator]
    except OSError as error:
        return error.errno
    return None


def synced(path: Path, data: bytes) -> None:
    with path.open("wb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())


def test_a_write_is_visible_at_once_and_arrives_later(cloud: Cloud, mount: DriveFsMount) -> None:
    mount.faults(hold=True)
    (mount.root / "a" / "b").mkdir(parents=True)
    synced(mount.root / "a" / "b" / "x.bin", b"weights" * 1000)
    assert (mount.root / "a" / "b" / "x.bin").read_bytes() == b"weights" * 1000
    assert cloud.tree() == {}, "fsync must not mean that anything was uploaded"
    assert os.getxattr(mount.root / "a" / "b" / "x.bin", "user.drive.id").startswith(b"local-")
    mount.faults(hold=False)
    mount.drain()
    assert cloud.read("a/b/x.bin") == b"weights" * 1000
    assert os.getxattr(mount.root / "a" / "b" / "x.bin", "user.drive.id").decode() == cloud.at("a/b/x.bin")[0].id


def test_what_was_not_uploaded_dies_with_the_machine(cloud: Cloud, mount: DriveFsMount) -> None:
    synced(mount.root / "old", b"1")
    mount.drain()
    mount.faults(hold=True)
    synced(mount.root / "new", b"2")
    synced(mount.root / "old", b"3")
    mount.kill()
    assert code_of(lambda: os.listdir(mount.root)) == errno.ENOTCONN
    mount.remount(hold=False)
    assert os.listdir(mount.root) == ["old"]
    assert (mount.root / "old").read_bytes() == b"1"


def test_order_is_kept_unless_told_otherwise(cloud: Cloud, mount: DriveFsMount) -> None:
    def order() -> list[str]:
        names = [f"f{index}" for index in range(12)]
        for name in names:
            synced(mount.root / name, b"x")
        mount.drain()
        found = [entry.name for entry in cloud.children()]
        for entry in cloud.children():
            cloud.delete(entry.id)
        wait_until(lambda: os.listdir(mount.root) == [], what="the mount hears of it")
        assert sorted(found) == sorted(names)
        return found

    assert order() == [f"f{index}" for index in range(12)]
    mount.faults(reorder=True, delay_s=(0.0, 0.5))
    assert order() != [f"f{index}" for index in range(12)]


def test_dropped_zeroed_and_doubled_uploads_can_only_be_seen_over_there(cloud: Cloud, mount: DriveFsMount) -> None:
    data = bytes(range(1, 256)) * 100
    for name, fault in (("dropped", "drop"), ("zeroed", "zero"), ("doubled.pt", "duplicate")):
        mount.faults(**{"drop": 0.0, "zero": 0.0, "duplicate": 0.0, fault: 1.0})
        synced(mount.root / name, data)
        mount.drain()
        assert (mount.root / name).read_bytes() == data
    assert cloud.at("dropped") == []
    arrived = cloud.read("zeroed")
    assert len(arrived) == len(data) and arrived != data and bytes(4096) in arrived
    assert len(cloud.at("doubled.pt")) == 2
    mount.remount()
    assert sorted(os.listdir(mount.root)) == ["doubled (1).pt", "doubled.pt", "zeroed"]


def test_a_doubled_overwrite_leaves_the_old_content_under_the_bare_name(cloud: Cloud, mount: DriveFsMount) -> None:
    synced(mount.root / "x", b"old")
    mount.drain()
    mount.faults(duplicate=1.0)
    synced(mount.root / "x", b"new")
    mount.drain()
    mount.remount(duplicate=0.0)
    assert (mount.root / "x").read_bytes() == b"old"
    assert (mount.root / "x (1)").read_bytes() == b"new"


def test_faults_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    def arrived(seed: int, place: str) -> list[str]:
        cloud = Cloud(tmp_path / place)
        with DriveFsMount(cloud, tmp_path / "m", seed=seed, drop=0.5) as mount:
            for index in range(16):
                synced(mount.root / f"f{index}", b"x")
            mount.drain()
        return sorted(cloud.tree())

    assert arrived(1, "a") == arrived(1, "b") != arrived(2, "c")


def test_removing_and_replacing_fill_the_trash(cloud: Cloud, mount: DriveFsMount) -> None:
    synced(mount.root / "a", b"12345")
    synced(mount.root / "b", b"123")
    mount.drain()
    (mount.root / "a").unlink()
    mount.drain()
    assert cloud.usage().trashed == 5
    synced(mount.root / ".tmp", b"1234567")
    mount.drain()
    os.replace(mount.root / ".tmp", mount.root / "b")
    mount.drain()
    assert cloud.read("b") == b"1234567"
    assert (cloud.usage().used, cloud.usage().trashed) == (15, 8)


def test_a_full_account_refuses_in_silence(cloud: Cloud, mount: DriveFsMount) -> None:
    cloud.set_quota(10)
    synced(mount.root / "big", b"x" * 100)
    wait_until(lambda: mount.state()["counts"]["refused"], what="a refused upload")
    assert (mount.root / "big").stat().st_size == 100
    assert cloud.tree() == {}
    cloud.set_quota(1000)
    mount.drain()
    assert cloud.tree() == {"big": 100}


def test_each_way_to_fail(mount: DriveFsMount) -> None:
    synced(mount.root / "x", b"1")
    for fault, expected in (
        ({"full": True}, errno.ENOSPC),
        ({"full_after_bytes": 1000}, errno.ENOSPC),
        ({"error": 1.0}, errno.EIO),
        ({"read_only": True}, errno.EROFS),
        ({"dead": True}, errno.ENOTCONN),
    ):
        mount.faults(**fault)
        assert code_of(lambda: synced(mount.root / "y", b"2" * 2000)) == expected, fault
        mount.faults(**dict.fromkeys(fault, 0))
    assert (mount.root / "x").read_bytes() == b"1"


def test_it_dies_in_the_middle_of_a_write(cloud: Cloud, mount: DriveFsMount) -> None:
    mount.faults(die_after_bytes=300_000)
    code = code_of(lambda: synced(mount.root / "x", b"1" * 1_000_000))
    assert code in (errno.ENOTCONN, errno.ECONNABORTED)
    assert code_of(lambda: os.listdir(mount.mountpoint)) == errno.ENOTCONN
    mount.remount(die_after_bytes=0)
    assert os.listdir(mount.root) == []


def test_a_hanging_mount_holds_its_callers_until_it_is_let_go(mount: DriveFsMount) -> None:
    mount.faults(hang=True)
    done = threading.Event()
    caller = threading.Thread(target=lambda: (os.listdir(mount.root), done.set()), daemon=True)
    caller.start()
    assert not done.wait(0.3)
    mount.faults(hang=False)
    assert done.wait(100)


def test_stale_listings_do_not_show_what_another_machine_did(cloud: Cloud, mount: DriveFsMount) -> None:
    assert os.listdir(mount.root) == []
    mount.faults(stale=True)
    cloud.create("theirs", content=b"1")
    assert os.listdir(mount.root) == []
    mount.faults(stale=False)
    assert os.listdir(mount.root) == ["theirs"]


def test_two_mounts_of_one_account_hear_of_each_other(cloud: Cloud, mount: DriveFsMount, tmp_path: Path) -> None:
    with DriveFsMount(cloud, tmp_path / "other") as other:
        synced(mount.root / "x", b"one")
        mount.drain()
        assert (other.root / "x").read_bytes() == b"one"
        synced(other.root / "x", b"other")
        other.drain()
        assert (mount.root / "x").read_bytes() == b"other"


def test_the_mount_goes_with_its_owner(cloud: Cloud, tmp_path: Path) -> None:
    mount = DriveFsMount(cloud, tmp_path / "drive")
    mount.start()
    assert mount._process is not None and mount._process.stdin is not None
    mount._process.stdin.close()
    wait_until(lambda: not is_mounted(mount.mountpoint), what="the unmount")
    mount.close()
