"""VMs that share a store: one with a real daemon, and others of which only traces are left."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

from bridgehead import checkpoints, files, names
from bridgehead.errors import TransferError
from bridgehead.pairing import Pairing
from bridgehead.records import AckRecord, Command, ExitRecord, RunRecord, VmRules
from command_rig import Laptop, Rig
from vm_daemons.home import VmHome
from vm_daemons.journal import Journal
from vm_daemons.peers import signer
from vm_daemons.storage.store import Store
from vm_run_support import vm_home
from vm_support import KEY

PATIENCE_S = 0.6
PAIRING = Pairing("http://127.0.0.1:9", "test-key", KEY, "0" * 64)


def paired(home: VmHome, lost_after_s: float = PATIENCE_S) -> VmHome:
    home.save_pairing(PAIRING)
    home.update_record(vm_rules=VmRules(lost_after_s=lost_after_s).to_json())
    return home


class AbsentLaptop(Laptop):
    """A laptop that can be off."""

    def __init__(self) -> None:
        super().__init__()
        self.off = threading.Event()
        self.off.set()

    def poll(self, after: int, wait_s: float) -> list[Command]:
        if self.off.is_set():
            raise TransferError("the laptop is off")
        return super().poll(after, wait_s)

    def ack(self, command_id: str, record: AckRecord) -> None:
        if self.off.is_set():
            raise TransferError("the laptop is off")
        super().ack(command_id, record)


class TakerRig(Rig):
    """The VM whose daemon is under test; the laptop is off until the test says otherwise."""

    def __init__(self, root: Path, drive: Path | None) -> None:
        super().__init__(root, drive)
        paired(self.home)
        self.laptop: AbsentLaptop = AbsentLaptop()

    def publish(self, drive: Path) -> None:
        """What the uploader does with the journal."""
        folder = drive / "demo" / names.STORE_VMS / str(self.home.record()["vm_id"])
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.home.journal, folder / names.VM_JOURNAL)


class Ghost:
    """Another VM: a home, a journal, and what of both the store holds."""

    def __init__(self, root: Path, drive: Path) -> None:
        self.home = paired(vm_home(root, store=drive))
        self.vm_id = str(self.home.record()["vm_id"])
        self.journal = Journal(self.home.journal, sign=signer(self.home))
        self.folder = drive / "demo" / names.STORE_VMS / self.vm_id
        self.number = 0
        self.beat()

    def beat(self, **more: object) -> None:
        self.number += 1
        self.folder.mkdir(parents=True, exist_ok=True)
        told = {"v": 1, "vm_id": self.vm_id, "boot_id": "b", "at": 0.0, "number": self.number, "runs": [], **more}
        files.write_json(self.folder / names.STORE_BEAT, told)

    def publish(self) -> None:
        temp = self.folder / ".journal"
        shutil.copyfile(self.home.journal, temp)
        os.replace(temp, self.folder / names.VM_JOURNAL)

    @contextlib.contextmanager
    def beating(self) -> Iterator[None]:
        stop = threading.Event()

        def beat() -> None:
            while not stop.wait(PATIENCE_S / 6):
                self.beat()

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(100)

    def had(self, command: Command, *, started: bool = True) -> Command:
        """It was given the command, and perhaps began with it."""
        command = dataclasses.replace(command, vm_id=self.vm_id)
        self.journal.accept([command])
        if started:
            self.journal.starting(command)
            self.journal.started(command)
        self.publish()
        return command

    def run_dir(self, command: Command) -> Path:
        run_dir = self.home.run(command.run_id)
        run_dir.mkdir(exist_ok=True)
        assert command.spec is not None
        record = RunRecord(
            command.run_id, command.spec.name, "demo", command.id, command.attempt, self.vm_id, 0.0, command.spec
        )
        files.write_json(run_dir / names.RUN_RECORD, record.to_json())
        return run_dir

    def saved(self, command: Command, step: int) -> None:
        """A checkpoint, in the store."""
        run_dir = self.run_dir(command)
        with checkpoints.staging(run_dir / names.CHECKPOINTS) as staged:
            (staged / "state.pt").write_bytes(b"state")
            checkpoints.commit(staged, run_dir / names.CHECKPOINTS, step, {})
        Store(self.home).mirror(run_dir)

    def ended(self, command: Command, state: names.RunState = names.RunState.DONE) -> None:
        """It ended there and all it made is in the store; the laptop never heard of it."""
        run_dir = self.run_dir(command)
        (run_dir / names.ARTIFACTS).mkdir()
        (run_dir / names.ARTIFACTS / "encoder.bin").write_bytes(b"encoder")
        (run_dir / names.LOG).write_text("trained over there\n")
        files.write_json(run_dir / names.EXIT, ExitRecord(command.run_id, command.attempt, state, 0).to_json())
        Store(self.home).mirror(run_dir)
        answer = AckRecord(self.vm_id, names.Ack.FINISHED, command.attempt, exit_code=0, state=str(state))
        self.journal.finished(command, answer)
        self.publish()
