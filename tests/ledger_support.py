"""What the ledger's tests share: a project, a clock, and what a VM says."""

from __future__ import annotations

from bridge.ledger import Ledger
from bridge.project import ProjectView
from bridgehead.names import Ack
from bridgehead.records import AckRecord, Command, Heartbeat, StageSpec

PROJECT = ProjectView(
    "watch",
    {
        "pretrain": StageSpec("pretrain", "bridgehead:pretrain", config={"epochs": 40, "seed": 1}),
        "finetune": StageSpec("finetune", "bridgehead:finetune", after=["pretrain"]),
        "gate": StageSpec("gate", "bridgehead:gate", after=["finetune"]),
    },
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def ack(ledger: Ledger, command: Command, kind: Ack, **values: object) -> None:
    ledger.ack(command.id, AckRecord(command.vm_id, kind, command.attempt, **values))  # type: ignore[arg-type]


def beat(vm_id: str, *runs: tuple[str, int]) -> Heartbeat:
    listed = [{"run_id": run_id, "attempt": attempt, "state": "running"} for run_id, attempt in runs]
    return Heartbeat(vm_id, "boot", 0.0, runs=listed)


def keep_listening(ledger: Ledger, clock: Clock, seconds: int, lost_after_s: float = 60.0) -> list[str]:
    """Let time pass with the sweeps that a live bridge makes."""
    lost = []
    for _ in range(seconds):
        clock.now += 1
        lost += ledger.sweep_lost(lost_after_s)
    return lost
