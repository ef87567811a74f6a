"""The status daemon against a real bridge, with what the uploader tells it; faults are injected where they occur."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_client import STAGE, LiveBridge, live_bridge, project
from bridgehead import checkpoints, files, names
from bridgehead.records import AckRecord, RunRecord, Status
from support import wait_until
from vm_daemons import daemons, run_mirror, status_daemon
from vm_daemons import uploader as uploader_module
from vm_daemons.artefacts import Artefacts
from vm_daemons.client import BridgeClient
from vm_daemons.home import VmHome
from vm_daemons.status_daemon import StatusDaemon
from vm_daemons.storage import store_state
from vm_daemons.storage.objects import ObjectStore
from vm_daemons.uploader import Uploader
from vm_support import end_run, make_run, paired_home


class Rig:
    """A bridge, a VM home with a run that was given to it, and daemons that are stopped at the end."""

    def __init__(self, live: LiveBridge, tmp_path: Path) -> None:
        self.live = live
        self.home = paired_home(tmp_path / "vm", live)
        self.store_folder = tmp_path / "drive"
        self.store_folder.mkdir()
        self.home.update_record(store=str(self.store_folder))
        self.client = BridgeClient(self.home)
        self.run_id = live.bridge.ledger.take([(1, f"run:{STAGE}")], project())[0].run_id
        self.client.poll(0, 0)
        self.arrived = live.arrivals / self.run_id
        self._stops: list[Callable[[], None]] = []

    def run_folder(self) -> Path:
        return make_run(self.home, self.run_id)

    def start(self) -> StatusDaemon:
        daemon = StatusDaemon(self.home, self.client)
        self._run(daemon.run, daemon.stop)
        return daemon

    def start_uploader(self, choose: Callable[[], ObjectStore | None] | None = None) -> Uploader:
        uploader = Uploader(self.home, choose=choose)
        self._run(uploader.run, uploader.stop)
        return uploader

    def _run(self, run: Callable[[], None], stop: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._stops += [stop, lambda: thread.join(100)]

    def stop(self) -> None:
        for stop in self._stops:
            stop()

    def mirrored(self, run_dir: Path) -> dict[str, Any]:
        found: dict[str, Any] = wait_until(lambda: files.read_json(run_dir / names.MIRRORED), 20, what="mirrored.json")
        return found


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    for name in ("MIRROR_EVERY_S", "STATE_EVERY_S"):
        monkeypatch.setattr(uploader_module, name, 0.05)
    root = tmp_path / "project"
    root.mkdir()
    with live_bridge(root) as live:
        rig = Rig(live, tmp_path)
        yield rig
        rig.stop()


def tell_store(home: VmHome, number: int = 1, **told: Any) -> None:
    """store.json as the uploader would write it."""
    record = {"v": 1, "number": number, "kind": "mount", "path": "/drive", "ok": True, "error": "", **told}
    files.write_json(home.state / names.VM_STORE_STATE, record)


def tell_levels(run_dir: Path, **told: Any) -> None:
    files.write_json(run_dir / names.CHECKPOINT_LEVELS, {"v": 1, "attempt": 1, "levels": {}, **told})


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def test_log_and_progress_arrive_as_they_grow(rig: Rig) -> None:
    rig.start()
    run_dir = rig.run_folder()
    with (run_dir / names.LOG).open("ab", buffering=0) as log:
        for part in (b"one\n", b"\x00\xffbinary", b"50%\r60%\r"):
            log.write(part)
            wait_until(lambda: _read(rig.arrived / names.LOG) == _read(run_dir / names.LOG), what="the log")
    files.append_line(run_dir / names.PROGRESS, '{"event":"progress","step":3,"total_steps":9}')
    wait_until(lambda: (files.read_json(rig.arrived / names.STATUS) or {}).get("step") == 3, what="the status")
    wait_until(lambda: b"step 3/9" in _read(rig.arrived / names.STATUS_LINE), what="status.txt")


def test_an_ended_run_arrives_whole_and_is_mirrored(rig: Rig) -> None:
    rig.start_uploader()
    rig.start()
    run_dir = rig.run_folder()
    (run_dir / names.LOG).write_bytes(b"all of it\n")
    files.write_json(run_dir / names.RESULTS, {"loss": 1.0})
    for relative in (f"{names.ARTIFACTS}/deep/a.bin", f"{names.BUNDLE}/{names.BUNDLE_RECORD}", "artifacts/not ours!"):
        (run_dir / relative).parent.mkdir(parents=True, exist_ok=True)
        (run_dir / relative).write_bytes(b"made")
    end_run(run_dir)
    told = rig.mirrored(run_dir)
    assert told["store"] == "complete" and list(told["refused"]) == ["artifacts/not ours!"]
    assert (rig.arrived / names.LOG).read_bytes() == b"all of it\n"
    assert (rig.arrived / names.ARTIFACTS / "deep/a.bin").read_bytes() == b"made"
    assert (rig.arrived / names.BUNDLE / names.BUNDLE_RECORD).read_bytes() == b"made"
    for name in (names.RESULTS, names.EXIT, names.RUN_RECORD, names.STATUS):
        assert (rig.arrived / name).read_bytes() == (run_dir / name).read_bytes()
    assert Status.from_json(files.read_json(rig.arrived / names.STATUS)).state is names.RunState.DONE
    assert (rig.store_folder / "demo/runs" / rig.run_id / names.EXIT).exists()


def test_while_uploads_are_paused_logs_and_status_arrive_and_artefacts_wait(rig: Rig) -> None:
    paused = rig.live.root / names.PRIVATE_FOLDER / names.UPLOADS_PAUSED
    paused.touch()
    daemon = rig.start()
    wait_until(lambda: daemon._pace.paused, 20, what="the hint")
    run_dir = rig.run_folder()
    (run_dir / names.LOG).write_bytes(b"line\n")
    (run_dir / names.ARTIFACTS).mkdir()
    (run_dir / names.ARTIFACTS / "model").write_bytes(b"made")
    end_run(run_dir)
    wait_until(lambda: (_read(rig.arrived / names.LOG), (rig.arrived / names.STATUS).exists()) == (b"line\n", True), 20)
    wait_until(lambda: daemon._pace.told().get("runs"), 20, what="the artefacts to wait their turn")
    assert not (rig.arrived / names.ARTIFACTS).exists()
    paused.unlink()
    daemon._pace.heed({"paused": False})  # as the next heartbeat does in a few seconds
    wait_until(lambda: _read(rig.arrived / names.ARTIFACTS / "model") == b"made", 20, what="the artefact")


def test_a_run_that_ended_is_not_kept_waiting_by_gigabytes_of_another_one(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_daemon, "SMALL_BYTES", 1000)
    [other] = rig.live.bridge.ledger.take([(2, f"run:{STAGE}")], project())
    rig.client.poll(0, 0)
    under_way, go_on, real = threading.Event(), threading.Event(), Artefacts.send

    def send(self: Artefacts, run_dir: Path, *more: Any) -> dict[str, str]:
        if run_dir.name == rig.run_id:  # the big one, on a slow line
            under_way.set()
            assert go_on.wait(60)
        return real(self, run_dir, *more)

    monkeypatch.setattr(Artefacts, "send", send)
    rig.start()
    big, small = rig.run_folder(), make_run(rig.home, other.run_id)
    for run_dir, size in ((big, 5000), (small, 500)):
        (run_dir / names.ARTIFACTS).mkdir()
        (run_dir / names.ARTIFACTS / "weights").write_bytes(bytes(size))
    end_run(big)
    assert under_way.wait(100)
    end_run(small)
    wait_until((rig.live.arrivals / small.name / names.EXIT).exists, 20, what="the end of the small one")
    assert not (rig.arrived / names.EXIT).exists()
    go_on.set()
    wait_until((rig.arrived / names.EXIT).exists, 20, what="the end of the big one")
    assert (rig.arrived / names.ARTIFACTS / "weights").read_bytes() == bytes(5000)


def test_the_last_status_knows_that_the_checkpoint_is_in_the_store(rig: Rig) -> None:
    rig.start_uploader()
    run_dir = rig.run_folder()
    root = run_dir / names.CHECKPOINTS
    with checkpoints.staging(root) as staged:
        (staged / "state.bin").write_bytes(b"weights")
        checkpoints.commit(staged, root, 7, {})
    end_run(run_dir)
    rig.start()
    rig.mirrored(run_dir)
    last = Status.from_json(files.read_json(rig.arrived / names.STATUS)).checkpoint
    assert last is not None and (last.step, last.level) == (7, names.CheckpointLevel.MOUNTED)


def test_the_cell_hears_that_the_laptop_knows_of_its_release_and_not_before(rig: Rig) -> None:
    goodbye = rig.home.state / daemons.GOODBYE_MARK
    daemon = rig.start()
    wait_until(lambda: (rig.home.state / daemons.CONTACT_MARK).exists(), what="a heartbeat")
    assert not goodbye.exists()
    files.write_json(rig.home.state / names.VM_LIFETIME, {"released": 5.0, "because": "idle"})
    daemon._heartbeat_step()
    assert goodbye.exists()
    [vm] = rig.live.bridge.ledger.vms()
    told = vm.heartbeat["lifetime"]
    assert (told["released"], told["released_at"], told["released_because"]) == (True, 5.0, "idle")


def test_a_folder_that_gets_its_run_json_later_is_not_left_for_the_next_look(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_daemon, "WATCHED_IDLE_S", 60.0)
    rig.start()
    wait_until(lambda: (rig.home.state / daemons.CONTACT_MARK).exists(), what="a heartbeat")
    rig.home.run(rig.run_id).mkdir()
    looks: list[bool] = []
    real = StatusDaemon._discover
    monkeypatch.setattr(StatusDaemon, "_discover", lambda self: (looks.append(True), real(self))[1])
    wait_until(lambda: len(looks) > 2, what="looks at the new folder")
    rig.run_folder()
    wait_until(lambda: (rig.arrived / names.STATUS).exists(), what="the status")


def test_what_happened_while_the_laptop_was_away_arrives_afterwards(rig: Rig) -> None:
    rig.start_uploader()
    port = rig.live.bridge.port
    rig.live.call(rig.live.bridge.stop())
    rig.start()
    run_dir = rig.run_folder()
    (run_dir / names.LOG).write_bytes(b"while away\n")
    end_run(run_dir)
    wait_until(lambda: (run_dir / names.STATUS).exists(), what="a status without the laptop")
    with live_bridge(rig.live.root, port=port):
        rig.mirrored(run_dir)
    assert _read(rig.arrived / names.LOG) == b"while away\n"


def test_an_uploader_that_is_silent_is_given_up_after_a_while_and_said(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_daemon, "STORE_DEAD_AFTER_S", 0.5)
    monkeypatch.setattr(store_state, "SILENT_AFTER_S", 0.3)
    tell_store(rig.home)
    daemon = rig.start()
    run_dir = rig.run_folder()
    end_run(run_dir)
    assert rig.mirrored(run_dir)["store"] == "dead"
    assert daemon._beat().store["error"] == "the uploader is silent"


def test_a_store_that_takes_nothing_of_a_run_does_not_hold_up_its_end_for_ever(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_daemon, "STORE_DEAD_AFTER_S", 0.5)
    run_dir = rig.run_folder()
    tell_store(rig.home, trouble="the store is full")
    tell_levels(run_dir, failing=True, trouble="the store is full")
    daemon = rig.start()
    end_run(run_dir)
    assert rig.mirrored(run_dir)["store"] == "dead"
    told = daemon._beat().store
    assert (told["ok"], told["error"]) == (False, "the store is full")


def test_a_store_that_comes_back_catches_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_daemon, "STORE_DEAD_AFTER_S", 0.0)
    rig.store_folder.rmdir()
    rig.start_uploader()
    rig.start()
    run_dir = rig.run_folder()
    end_run(run_dir)
    assert rig.mirrored(run_dir)["store"] == "dead"
    rig.store_folder.mkdir()
    wait_until(lambda: rig.mirrored(run_dir)["store"] == "complete", 30, what="the store to catch up")


def test_without_a_store_the_laptop_is_enough(rig: Rig) -> None:
    rig.home.update_record(store="")
    rig.start()
    run_dir = rig.run_folder()
    end_run(run_dir)
    assert rig.mirrored(run_dir)["store"] == "none"


def test_a_lease_lost_in_the_store_is_written_down_for_the_command_daemon(rig: Rig) -> None:
    expected = [{"run_id": rig.run_id, "attempt": 1}]
    tell_store(rig.home, superseded=expected)
    rig.start()
    rig.run_folder()
    wait_until(lambda: status_daemon.read_revoked(rig.home) == expected, what="revoked.json")


def test_a_run_that_another_vm_has_is_revoked_by_signed_hints(rig: Rig) -> None:
    rig.run_folder()
    ledger = rig.live.bridge.ledger
    ledger.sweep_lost(-1.0)
    rig.live.knows("vm-other")
    (lent,) = ledger.deliver("vm-other", 0)
    ledger.ack(lent.id, AckRecord("vm-other", names.Ack.ACCEPTED, lent.attempt))
    rig.start()
    expected = [{"run_id": rig.run_id, "attempt": 1}]
    wait_until(lambda: status_daemon.read_revoked(rig.home) == expected, 15, what="revoked.json")


def test_a_revoked_run_is_shipped_no_more(rig: Rig) -> None:
    files.write_json(rig.home.state / names.VM_REVOKED, [{"run_id": rig.run_id, "attempt": 1}])
    run_dir = rig.run_folder()
    (run_dir / names.LOG).write_bytes(b"too late\n")
    rig.start()
    wait_until(lambda: (rig.home.state / daemons.CONTACT_MARK).exists(), what="a heartbeat")
    assert not (rig.arrived / names.LOG).exists() and not (run_dir / names.STATUS).exists()


def test_the_heartbeat_tells_of_the_vm(rig: Rig) -> None:
    rig.start_uploader()
    (rig.home.state / daemons.CELL_MARK).touch()
    rig.run_folder()
    rig.start()

    def beats_with_run() -> dict[str, Any] | None:
        for vm in rig.live.bridge.ledger.vms():
            if vm.heartbeat.get("store", {}).get("ok") and vm.heartbeat.get("runs"):
                return dict(vm.heartbeat)
        return None

    beat = wait_until(beats_with_run, 15, what="a heartbeat")
    assert beat["memory_total_bytes"] > beat["memory_free_bytes"] > 0
    assert beat["disk_total_bytes"] > 0 and beat["cpu_count"] >= 1
    assert beat["cell_age_s"] < 60
    [told] = beat["runs"]
    assert told.pop("running_s") >= 0
    assert told == {"run_id": rig.run_id, "state": "running", "attempt": 1}


def _spawn(home: VmHome) -> subprocess.Popen[bytes]:
    environment = {**os.environ, names.ENV_HOME: str(home.root), "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", f"vm_daemons.{names.STATUS_DAEMON}"]
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_killed_and_started_again_it_loses_and_repeats_nothing(rig: Rig) -> None:
    rig.start_uploader()
    run_dir = rig.run_folder()
    (run_dir / names.LOG).write_bytes(b"before\n")
    first = _spawn(rig.home)
    try:
        wait_until(lambda: _read(rig.arrived / names.LOG) == b"before\n", 15, what="the first part")
    finally:
        first.kill()
        first.wait(100)
    with (run_dir / names.LOG).open("ab") as log:
        log.write(b"after\n")
    end_run(run_dir)
    second = _spawn(rig.home)
    try:
        rig.mirrored(run_dir)
        assert _read(rig.arrived / names.LOG) == b"before\nafter\n"
        second.send_signal(signal.SIGTERM)
        assert second.wait(100) == 0
    finally:
        second.kill()
        second.wait(100)


def test_idle_it_is_small(rig: Rig) -> None:
    process = _spawn(rig.home)
    try:
        wait_until(lambda: (rig.home.state / daemons.CONTACT_MARK).exists(), 15, what="a heartbeat")
        rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        pss_kb = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
        assert pss_kb < 40 * 1024
    finally:
        process.terminate()
        process.wait(100)


@pytest.mark.parametrize("odd", ["folder", "fifo", "loop"])
@pytest.mark.parametrize("name", [names.RESULTS, names.PROGRESS])
def test_an_odd_file_in_one_run_holds_up_no_other(rig: Rig, name: str, odd: str) -> None:
    rig.start_uploader()
    sick = make_run(rig.home, "other-0099-abc123")
    if odd == "folder":
        (sick / name).mkdir()
    elif odd == "fifo":
        os.mkfifo(sick / name)
    else:
        (sick / name).symlink_to(name)
    rig.start()
    run_dir = rig.run_folder()
    (run_dir / names.LOG).write_text("healthy\n")
    end_run(run_dir)
    assert rig.mirrored(run_dir)["store"] == "complete"
    assert (rig.arrived / names.LOG).read_text() == "healthy\n"


def test_a_clock_that_is_put_back_does_not_stop_the_status(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_mirror, "STATUS_EVERY_S", 0.0)
    run_dir = rig.run_folder()
    record = RunRecord.from_json(files.read_json(run_dir / names.RUN_RECORD))
    mirror = run_mirror.RunMirror(rig.client, run_dir, record)
    for step, now in ((1, 9000.0), (2, 1000.0)):
        event = {"v": 1, "at": now, "attempt": 1, "event": "progress", "step": step}
        files.append_line(run_dir / names.PROGRESS, json.dumps(event))
        mirror.compose(now)
        assert files.read_json(run_dir / names.STATUS)["step"] == step
