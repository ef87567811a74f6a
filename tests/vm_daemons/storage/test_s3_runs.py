"""Runs that are kept in object storage: mirrored, restored on another VM, and cut off at every request."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridgehead import checkpoints, files, names
from bridgehead.errors import StoreError
from bridgehead.names import CheckpointLevel, RunState
from bridgehead.records import ExitRecord, StoreSpec
from s3_rig import BUCKET, KEYS, Exchange, Gate, gate_before, s3_endpoint, store_at
from vm_daemons.home import VmHome
from vm_daemons.storage import store_slots
from vm_daemons.storage.store import Store
from vm_run_support import run_folder, vm_home

RUN = "train-0001-abc123"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_endpoint() as url:
        yield url


@pytest.fixture
def gate(endpoint: str) -> Iterator[Gate]:
    with gate_before(endpoint) as gate:
        yield gate


def _vm(root: Path, url: str, prefix: str) -> VmHome:
    """A VM that was told of the bucket by the project, and of its keys by the notebook's secrets."""
    home = vm_home(root)
    spec = StoreSpec("s3", bucket=BUCKET, prefix=prefix, endpoint=url)
    home.update_record(store_spec=spec.to_json())
    files.write_json(home.state / names.VM_STORE_SECRETS, KEYS, mode=0o600)
    return home


def _save(run_dir: Path, step: int) -> None:
    root = run_dir / names.CHECKPOINTS
    with checkpoints.staging(root) as staged:
        (staged / "state.pt").write_bytes(b"weights" + str(step).encode())
        checkpoints.commit(staged, root, step, {})


def test_a_run_is_mirrored_restored_and_its_outputs_fetched(gate: Gate, tmp_path: Path) -> None:
    home = _vm(tmp_path / "vm-a", gate.url, "whole")
    run_dir = run_folder(home, "python train.py")
    store = Store(home)
    _save(run_dir, 10)
    (run_dir / names.ARTIFACTS).mkdir()
    (run_dir / names.ARTIFACTS / "weights.bin").write_bytes(b"final")
    info = store.mirror(run_dir)
    assert info is not None and (info.step, info.level) == (10, CheckpointLevel.CONFIRMED)
    assert store.probe()["ok"]

    other = _vm(tmp_path / "vm-b", gate.url, "whole")
    taken_over = run_folder(other, "python train.py", attempt=2)
    restored = Store(other).restore(RUN, taken_over)
    assert restored is not None and restored.step == 10
    newest, _ = checkpoints.newest(taken_over / names.CHECKPOINTS)
    assert newest is not None and newest.step == 10

    files.write_json(taken_over / names.EXIT, ExitRecord(RUN, 2, RunState.DONE, 0).to_json())
    (taken_over / names.ARTIFACTS).mkdir(exist_ok=True)
    (taken_over / names.ARTIFACTS / "weights.bin").write_bytes(b"final")
    last = Store(other)
    last.mirror(taken_over)
    assert last.mirrored(taken_over)
    fetched = Store(_vm(tmp_path / "vm-c", gate.url, "whole")).fetch_run(RUN, tmp_path / "out")
    assert (fetched / names.ARTIFACTS / "weights.bin").read_bytes() == b"final"


def test_a_mirror_that_is_cut_at_any_write_leaves_the_checkpoint_before_it(gate: Gate, tmp_path: Path) -> None:
    home = _vm(tmp_path / "vm", gate.url, "cut")
    run_dir = run_folder(home, "python train.py")
    for step in (1, 2, 3, 4):  # four full slots: from here on each checkpoint first takes an old one's place
        _save(run_dir, step)
        Store(home).mirror(run_dir)
    newest = []
    for cut_after in range(20):
        _cut_off(gate, home, run_dir, 5 + cut_after, cut_after)
        newest.append(_newest_for_the_next_vm(gate, tmp_path / f"reader-{cut_after}"))
        if newest[-1] != 4:
            break
    # The old commit goes, what the slot held goes, data and manifest come, and with the commit all of it counts.
    assert len(newest) > 4 and newest == [4] * (len(newest) - 1) + [5 + len(newest) - 1]


def _cut_off(gate: Gate, home: VmHome, run_dir: Path, step: int, cut_after: int) -> None:
    """Mirror one more checkpoint, as a process that has just begun, and lose the store after so many writes."""
    writes = 0

    def cut(exchange: Exchange) -> None:
        nonlocal writes
        writes += 1
        exchange.pass_on() if writes <= cut_after else exchange.refuse(403, "AccessDenied")

    _save(run_dir, step)
    for method in ("PUT", "DELETE"):
        gate.spoil(method, f"/cut/demo/{names.STORE_RUNS}", cut, times=10_000)
    with contextlib.suppress(StoreError):
        Store(home).mirror(run_dir)
    gate.stop_spoiling()


def _newest_for_the_next_vm(gate: Gate, folder: Path) -> int:
    folder.mkdir()
    root = f"demo/{names.STORE_RUNS}/{RUN}/{names.CHECKPOINTS}"
    slot, _, _ = store_slots.restore_newest(store_at(gate.url, prefix="cut"), root, folder, -1)
    assert slot is not None
    newest, damaged = checkpoints.newest(folder)
    assert newest is not None and not damaged
    return newest.step
