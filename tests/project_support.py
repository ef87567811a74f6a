"""A project in a known state, made with the real ledger."""

from __future__ import annotations

from typing import Any

from bridge.ledger import Ledger
from bridgehead import files, names
from bridgehead.names import Ack, CheckpointLevel, RunState
from bridgehead.records import AckRecord, CheckpointInfo, Heartbeat, Status
from run_control import project_file
from run_control.project import Project

VM = "vm-abc123"
NOW = 1_000_000.0


class Seeded:
    """A project whose ledger holds runs, as if a VM had worked for it."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.now = NOW
        self.ledger = Ledger(project.ledger, clock=lambda: self.now)
        self.beat()

    def beat(self, now: float = NOW) -> None:
        self.now = now
        self.ledger.heartbeat(Heartbeat(VM, "boot", NOW, memory_free_bytes=2**30, store={"ok": True, "path": "/d"}))

    def take(self, *lines: str) -> list[str]:
        """Take the lines, give them to the VM, and return their run ids."""
        rows = self.ledger.take(list(enumerate(lines, start=1)), project_file.load(self.project.root))
        self.ledger.deliver(VM, 0)
        return [row.run_id for row in rows]

    def ack(self, run_id: str, ack: Ack, state: str = "", exit_code: int | None = None) -> None:
        row = self.ledger.find_run(run_id)
        self.ledger.ack(row.id, AckRecord(VM, ack, row.attempt, exit_code=exit_code, state=state))

    def finish(self, run_id: str, state: RunState, exit_code: int = 0) -> None:
        self.ack(run_id, Ack.STARTED)
        self.ack(run_id, Ack.FINISHED, state, exit_code)

    def status(
        self,
        run_id: str,
        *,
        state: RunState = RunState.RUNNING,
        step: int = 7,
        attempt: int = 1,
        levels: dict[str, Any] | None = None,
    ) -> None:
        """What the VM last said about the run."""
        checkpoint = CheckpointInfo(5, CheckpointLevel.MOUNTED, NOW - 60, 100, 1)
        status = Status(
            run_id,
            run_id.split("-")[0],
            state,
            VM,
            attempt,
            step,
            10,
            1,
            2,
            {"loss": 0.5},
            30.0,
            "",
            checkpoint,
            None,
            NOW,
            levels or {},
        )
        folder = self.project.run(run_id)
        folder.mkdir(parents=True, exist_ok=True)
        files.write_json(folder / names.STATUS, status.to_json())
