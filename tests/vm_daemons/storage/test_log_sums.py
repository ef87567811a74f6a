"""What of a log in the store is believed: drives zero blocks, cut files and bring old versions back."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_support import save

from bridgehead import names
from command_rig import Rig
from vm_daemons import inherit
from vm_daemons.storage import log_sums
from vm_daemons.storage.folder_store import FolderStore
from vm_daemons.storage.objects import Stored
from vm_daemons.storage.store import Store
from vm_run_support import vm_home
from vm_support import make_run

LOG = "".join(f"line {number}\n" for number in range(2000)).encode()
SIZES = (4_000, 9_000, 15_000)


def sums(*sizes: int) -> list[list[object]]:
    return [[size, hashlib.sha256(LOG[:size]).hexdigest()] for size in sizes]


def left(tmp_path: Path, data: bytes, listed: list[list[object]]) -> tuple[int, bytes]:
    path = tmp_path / "log"
    path.write_bytes(data)
    return inherit._cut_what_is_damaged(path, listed), path.read_bytes()


def zeroed(data: bytes, at: int) -> bytes:
    return data[:at] + bytes(100) + data[at + 100 :]


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        (LOG[:15_000], 15_000),
        (LOG[:9_000], 9_000),  # an old version came back
        (LOG[:16_000], 16_000),  # the VM died before it had noted the sum of the last copy
        (zeroed(LOG[:15_000], 100), 0),
        (zeroed(LOG[:15_000], 5_000), 4_000),
        (zeroed(LOG[:15_000], 14_000), 9_000),
        (zeroed(LOG[:16_000], 15_500), 15_000),
        (bytes(15_000), 0),
        (LOG[:2_000], 2_000),  # older than all that is known
        (b"", 0),
    ],
)
def test_the_longest_beginning_that_was_put_is_kept(tmp_path: Path, data: bytes, kept: int) -> None:
    assert left(tmp_path, data, sums(*SIZES)) == (len(data) - kept, data[:kept])


def test_without_sums_all_of_it_is_believed(tmp_path: Path) -> None:
    assert left(tmp_path, zeroed(LOG, 100), []) == (0, zeroed(LOG, 100))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, len(LOG)), max_size=8), st.integers(0, len(LOG)))
def test_every_copy_that_was_put_is_known_by_its_sum(sizes: list[int], size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(LOG[:size])
        assert log_sums.good_bytes(path, sums(*sizes)) == max((known for known in sizes if known <= size), default=0)


@pytest.mark.parametrize(("at", "left_out"), [(2_000, 9_000), (6_000, 5_000)])
def test_a_new_vm_leaves_out_what_the_drive_has_zeroed_and_says_so(tmp_path: Path, at: int, left_out: int) -> None:
    drive, run_id = tmp_path / "drive", "train-0001-abcdef"
    drive.mkdir()
    old, new = (vm_home(tmp_path / name, store=drive) for name in ("old", "new"))
    run_dir, store = make_run(old, run_id), Store(old)
    for step, size in ((1, 4_000), (2, 9_000)):
        (run_dir / names.LOG).write_bytes(LOG[:size])
        save(run_dir, step)
        store.mirror(run_dir)
    copy = next(drive.rglob(f"{run_id}/{names.LOG}"))
    copy.write_bytes(zeroed(LOG[:9_000], at))
    command = Rig(tmp_path / "rig").run("python train.py", attempt=2, run_id=run_id)
    make_run(new, run_id, attempt=2)
    inherit.logs(new, Store(new), command)
    found = (new.run(run_id) / names.LOG).read_bytes()
    kept = LOG[: 9_000 - left_out]
    assert (
        found == kept + f"--- the store's copy of the former log is damaged: {left_out} bytes are left out\n".encode()
    )


def test_the_sums_of_former_copies_stay_and_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FolderStore(tmp_path, proves=False)
    known: log_sums.Sums = {}
    monkeypatch.setattr(log_sums, "KEPT", 2)
    for size in SIZES:
        sent = {"log": Stored("log", size, "", sums(size)[0][1])}  # type: ignore[arg-type]
        log_sums.note(store, "runs/a", known, sent, ["log", "progress.jsonl"])
    assert log_sums.read(store, "runs/a")["log"] == sums(*SIZES[1:])


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"log": 3}', b'{"log": [[1], ["a", "b"], [-1, "c"]]}', b"[" * 9999]
)
def test_sums_that_make_no_sense_are_none(tmp_path: Path, data: bytes) -> None:
    store = FolderStore(tmp_path, proves=False)
    store.put_bytes("runs/a/log_sums.json", data)
    assert log_sums.read(store, "runs/a").get("log", []) == []
