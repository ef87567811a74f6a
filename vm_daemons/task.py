"""One run or shell command in the hands of the command daemon."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from enum import Enum, auto

from bridgehead.records import Command, Needs


class Phase(Enum):
    """waiting → preparing → running → leaving → gone; waiting → leaving when it never starts."""

    WAITING = auto()  # for its inputs or for room on the machine
    PREPARING = auto()  # checkpoint and inputs are on their way from the store
    RUNNING = auto()  # its runner was started
    LEAVING = auto()  # exit.json is there; what it made is on its way to the laptop
    GONE = auto()  # finished, or another VM's


class Proof(Enum):
    """needed → told → given: whether this VM may begin what another one had."""

    NEEDED = auto()  # the laptop has not heard of that VM: one sign; it may live
    TOLD = auto()  # the store has not either; the laptop has to agree, or to be away itself
    GIVEN = auto()


@dataclass
class Task:
    command: Command
    phase: Phase = Phase.WAITING
    proof: Proof = Proof.GIVEN
    contested_at: float = 0.0  # monotonic; since then another VM holds its lease in the store. 0: none does
    runner: subprocess.Popen[bytes] | None = None  # to reap it; None when an earlier daemon started it
    told_started: bool = False
    stops: list[Command] = field(default_factory=list)  # to be passed on to the runner
    stops_passed: list[Command] = field(default_factory=list)  # passed on, and not yet answered
    disputed: bool = False  # the bridge says, unsigned, that another VM owns it: it does not start meanwhile
    bad_copies: int = 0
    trouble: str = ""  # the last one that was written to the run's log

    @property
    def is_ours(self) -> bool:
        """Whether nobody else may still own it, so that this VM can start it or give it away."""
        return self.proof is Proof.GIVEN and not self.contested_at and not self.disputed

    @property
    def needs(self) -> Needs:
        return self.command.spec.needs if self.command.spec is not None else Needs()
