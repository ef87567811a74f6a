"""What a fault is: a blow, how long it lasts, and what a user or a provider would undo of it."""

from __future__ import annotations

import random
import signal
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from chaos.watch import Watch
from chaos.world import Pid, World
from compute_backends.local_notebook import LocalVm


class Missed(Exception):
    """There is nothing to strike at just now."""


@dataclass
class Fault(ABC):
    """One blow. `hold_s` is how long it lasts before `heal`."""

    world: World
    watch: Watch
    random: random.Random
    hold_s: float = 0.0
    kind: ClassVar[str] = ""
    tunnel: ClassVar[str] = ""  # the campaign's tunnel that it needs; empty: any
    hold_range_s: ClassVar[tuple[float, float]] = (0.0, 0.0)

    def __post_init__(self) -> None:
        self.hold_s = self.random.uniform(*self.hold_range_s)

    @classmethod
    def missing(cls) -> str:
        """Why this kind can't be had on this machine; empty when it can."""
        return ""

    @abstractmethod
    def strike(self) -> None:
        """Raises Missed."""

    def heal(self) -> None:  # noqa: B027 - most blows leave nothing to undo
        """Undo what a user or a provider would undo."""

    def _run_dir(self) -> Path:
        run = self.watch.current()
        if run is None:
            raise Missed("no run on a VM yet")
        return run.folder

    def _vm(self) -> LocalVm:
        """The VM that has the run, else any live one."""
        run = self.watch.current()
        living = [vm for vm in self.world.living() if vm.name not in self.world.frozen]
        for vm in living:
            if run is not None and vm.name == run.vm:
                return vm
        if not living:
            raise Missed("no live VM")
        return living[-1]


def kill(process: Pid | None, what: str) -> None:
    if process is None or not process.send(signal.SIGKILL):
        raise Missed(f"no {what} lives")
