"""The user at the laptop and the provider behind the VM: what they would do, and nothing else.

A dead bridge is started again by `up`, a VM that died or stands still too long is replaced by a new one, a cell that
ended is run again. One thing at a time, in a thread, so that faults can strike while it is done.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable

from bridgehead.errors import BridgeheadError
from chaos.workload import LOST_AFTER_S
from chaos.world import CommandRefused, World
from compute_backends.notebook_host import CellState

_LOOK_S = 0.3
_FROZEN_PATIENCE_S = LOST_AFTER_S + 1.5
_CELL_PATIENCE_S = 1.5  # between two presses of the same button


class Attendant:
    """Call `step` often."""

    def __init__(self, world: World, *, tell_the_ledger: bool) -> None:
        self._world = world
        self._tell_the_ledger = tell_the_ledger
        self._busy: threading.Thread | None = None
        self._looked_at = 0.0
        self._frozen_since: dict[str, float] = {}
        self._pressed_at: dict[str, float] = {}
        self._closed = False
        self.started_vms = 0
        self.troubles: list[str] = []

    def step(self) -> None:
        now = time.monotonic()
        if self._closed or now - self._looked_at < _LOOK_S or (self._busy is not None and self._busy.is_alive()):
            return
        self._looked_at = now
        action = self._what_to_do(now)
        if action is not None:
            self._busy = threading.Thread(target=self._do, args=(action,), name="attendant")
            self._busy.start()

    def close(self) -> None:
        """Finish what is under way and do nothing more."""
        self._closed = True
        if self._busy is not None:
            self._busy.join(timeout=150)

    def _what_to_do(self, now: float) -> Callable[[], None] | None:
        bridge = self._world.bridge_pid()
        if (bridge is None or not bridge.alive) and not self._world.laptop_is_off:
            return self._world.up
        if not self._has_working_vm(now):
            return self._new_vm
        for vm in self._world.living():
            # A press that comes too early is lost: the host acts on it once its cell has ended.
            pressed_lately = now - self._pressed_at.get(vm.name, 0.0) < _CELL_PATIENCE_S
            ended = vm.cell in (CellState.KERNEL_DEAD, CellState.ERROR, CellState.DONE)
            if ended and vm.name not in self._world.frozen and not pressed_lately:
                self._pressed_at[vm.name] = now
                return lambda name=vm: self._world.backend.run_cell(name)  # type: ignore[misc]
        return None

    def _has_working_vm(self, now: float) -> bool:
        for vm in self._world.living():
            if vm.name not in self._world.frozen:
                self._frozen_since.pop(vm.name, None)
                return True
            if now - self._frozen_since.setdefault(vm.name, now) < _FROZEN_PATIENCE_S:
                return True
        return False

    def _new_vm(self) -> None:
        if self._world.laptop_is_off:
            self._world.start_vm_without_laptop()
            self.started_vms += 1
            return
        # `up --runtime local` finds a frozen VM alive and leaves it at that: a person starts a second one then.
        tell = self._tell_the_ledger and not self._world.frozen
        self._world.start_vm(tell_the_ledger=tell)
        self.started_vms += 1

    def _do(self, action: Callable[[], None]) -> None:
        """What is refused (a full disk, a mount that is away) is tried again at the next look."""
        try:
            action()
        except (CommandRefused, BridgeheadError, OSError, subprocess.SubprocessError) as error:
            text = str(error)[:200]
            if text not in self.troubles:
                self.troubles.append(text)
            with contextlib.suppress(OSError):
                time.sleep(0.5)
