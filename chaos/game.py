"""One round: build a world, let a pretraining run in it, strike, wait until it has recovered on its own, and judge."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bridgehead import names
from bridgehead.errors import BridgeDownError
from chaos import judge, workload, world
from chaos.attendant import Attendant
from chaos.fault import Fault, Missed
from chaos.faults import FAULTS
from chaos.plan import Plan, Strike, When
from chaos.proxy import Mode
from chaos.reference import Reference
from chaos.verdict import Verdict
from chaos.watch import Watch
from chaos.world import World
from run_control import queue_writer
from run_control.views import RunView

ROUND_S = 150.0  # a round that takes longer has not recovered
_TICK_S = 0.004
_LOOK_AT_LAPTOP_S = 0.25
_MOMENT_S = 20.0  # after so long without its moment (an upload, an answer, a resume) a fault strikes anyhow
_RETRY_S = 8.0  # how long a fault may wait for something to strike at


@dataclass
class Pending:
    """A strike on its way."""

    strike: Strike
    armed_at: float = 0.0  # monotonic; 0: the fault before it has not struck yet
    due_at: float = 0.0  # its moment has come, the delay runs
    starts: int = 0  # what the watch had counted when it was armed
    saves: int = 0
    moments: int = 0  # uploads seen
    was_uploading: bool = False
    ack_seen: threading.Event = field(default_factory=threading.Event)
    ack_let_go: threading.Event = field(default_factory=threading.Event)
    struck_at: float = 0.0
    healed_at: float = 0.0
    fault: Fault | None = None
    missed: str = ""
    forced: bool = False

    @property
    def over(self) -> bool:
        return bool(self.missed or self.healed_at)

    def to_json(self) -> dict[str, Any]:
        told = self.strike.to_json()
        if self.missed:
            told["missed"] = self.missed
        elif self.forced:
            told["at"] += " (its moment did not come)"
        return told


@dataclass
class Outcome:
    """What the campaign prints of a round, and a few figures for its summary."""

    number: int
    seed: int
    faults: list[dict[str, Any]]
    attempts: int
    recover_s: float | None
    seconds: float
    verdict: Verdict
    folder: str = ""

    def to_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "round": self.number,
            "seed": self.seed,
            "faults": self.faults,
            "attempts": self.attempts,
            "recover_s": self.recover_s,
            "seconds": round(self.seconds, 1),
            "ok": self.verdict.ok,
            "why": "; ".join(self.verdict.why),
        }
        return {**told, **({"folder": self.folder} if self.folder else {})}


def play(
    plan: Plan,
    *,
    code: Path,
    pool: Path,
    reference: Reference,
    where: Path,
    stop: threading.Event,
    tunnel: str = "none",
) -> Outcome:
    """Whatever happens is the round's verdict, and nothing is left running. `stop` ends it early."""
    folder = Path(tempfile.mkdtemp(prefix=f"round-{plan.number}-", dir=where))
    drive_seed = plan.seed + plan.number if plan.on_drive else None
    place = World(folder, folder.name, code, pool, tunnel, drive_seed)
    game = _Round(plan, place, reference, stop)
    began = time.monotonic()
    try:
        with contextlib.ExitStack() as cleaning:
            cleaning.push(lambda kind, *_: _clean_up(place, game.verdict, broke=kind is not None))
            place.build()
            game.run()
    except (OSError, world.CommandRefused, subprocess.SubprocessError) as error:
        game.verdict.fail(f"the round broke: {type(error).__name__}: {error}")
    except Exception:  # noqa: BLE001 - process edge: the other rounds are still to be played
        game.verdict.fail(f"the campaign itself failed: {traceback.format_exc()[-600:]}")
    outcome = Outcome(
        plan.number,
        plan.seed,
        [item.to_json() for item in game.pending],
        game.watch.starts,
        game.recover_s,
        time.monotonic() - began,
        game.verdict,
    )
    if outcome.verdict.ok or stop.is_set():
        world.remove(folder)
    else:
        outcome.folder = str(folder)
    return outcome


def _clean_up(place: World, verdict: Verdict, *, broke: bool) -> None:
    left = place.clean_up(keep=broke or not verdict.ok)
    if left and verdict.ok:
        verdict.judge_left("left after `down`", dict(enumerate(left)))


class _Round:
    def __init__(self, plan: Plan, place: World, reference: Reference, stop: threading.Event) -> None:
        self._stop = stop
        self.plan = plan
        self.world = place
        self.verdict = Verdict()
        self.watch = Watch(place, names.PRETRAIN)
        self.pending = [Pending(strike) for strike in plan.strikes]
        self.recover_s: float | None = None
        self._reference = reference
        self._random = random.Random(f"{plan.seed}:{plan.number}:blows")
        self._attendant = Attendant(place, tell_the_ledger=plan.tell_the_ledger)
        self._confirmed = judge.ConfirmedWatch(place, self.verdict)
        self._looked_at = 0.0
        self._views: list[RunView] = []
        self._queued_late = False
        self._shells: list[workload.Shell] = []
        self._struck_view_updated = 0.0

    def run(self) -> None:
        self.world.proxy.hold_ack = self._hold_ack
        self.world.up()
        self._queue_first()
        self.world.start_vm(tell_the_ledger=False)
        began = time.monotonic()
        try:
            while not self._done():
                if self._stop.is_set():
                    self.verdict.fail("interrupted")
                    return
                allowed_s = ROUND_S + sum(item.fault.hold_s for item in self.pending if item.fault is not None)
                if time.monotonic() > began + allowed_s:
                    self._heal_all()
                    self.verdict.fail(f"not over after {allowed_s:.0f} s: {self._states()}")
                    break
                self._turn()
                time.sleep(_TICK_S)
        finally:
            self._heal_all()
            self._attendant.close()
        if self.world.proxy.acks < len(self._views):
            self.verdict.fail("VMs spoke past the proxy: nothing that broke the tunnel was felt")
        judge.after(self.world, self.verdict, self._reference, self._shells)

    # --- queue -------------------------------------------------------------------------------------

    def _queue_first(self) -> None:
        stages = [names.PRETRAIN, workload.LINES, *([workload.DICE] if self.plan.with_dice else [])]
        self._shells = [workload.shell(number, 20) for number in (1, 2)]
        lines = [queue_writer.run_line(stage, []) for stage in stages]
        queue_writer.append(self.world.project.queue, [queue_writer.shell_line(self._shells[0].text), *lines])

    def _queue_late(self) -> None:
        """One more command while the run is on its way: it meets whatever goes on."""
        if not self._queued_late and self.watch.fraction > 0.3:
            with contextlib.suppress(OSError):  # the laptop's disk may be full just now
                queue_writer.append(self.world.project.queue, [queue_writer.shell_line(self._shells[1].text)])
                self._queued_late = True

    # --- turns -------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self.watch.look()
        self._queue_late()
        for index, item in enumerate(self.pending):
            if item.fault is None and not item.missed:
                before = self.pending[index - 1] if index else None
                self._aim(item, before)
            elif item.fault is not None and not item.healed_at:
                if time.monotonic() >= item.struck_at + item.fault.hold_s:
                    self._heal(item)
        self._attendant.step()
        if time.monotonic() - self._looked_at > _LOOK_AT_LAPTOP_S:
            self._looked_at = time.monotonic()
            with contextlib.suppress(BridgeDownError):  # a full disk, and no bridge that has it open
                self._views = self.world.runs()
            self._confirmed.look(self._views)
            self._time_recovery()

    def _aim(self, item: Pending, before: Pending | None) -> None:
        """Strike when the moment has come."""
        if before is not None and not (before.struck_at or before.missed):
            return
        now = time.monotonic()
        if not item.armed_at:
            item.armed_at, item.starts, item.saves = now, self.watch.starts, self.watch.saves
        if not item.due_at:
            came = self._moment_came(item)
            chancy = item.strike.when not in (When.STEP, When.SAVE)
            item.forced = not came and chancy and self.watch.starts > 0 and now - item.armed_at > _MOMENT_S
            if came or item.forced:
                item.due_at = now + (item.strike.delay_s if came else 0.0)
        if item.due_at and now >= item.due_at:
            self._strike(item)

    def _moment_came(self, item: Pending) -> bool:
        strike = item.strike
        if strike.when is When.STEP:
            return self.watch.starts > 0 and self.watch.fraction >= strike.value
        if strike.when is When.SAVE:
            return self.watch.saves >= strike.value and self.watch.saving_now
        if strike.when is When.UPLOAD:
            uploading = self.watch.uploading_now()
            item.moments += uploading and not item.was_uploading
            item.was_uploading = uploading
            return uploading and item.moments >= strike.value
        if strike.when is When.ACK:
            return item.ack_seen.is_set()
        if strike.when is When.RESUME:
            return self.watch.starts > item.starts
        return time.monotonic() - item.armed_at >= strike.value

    def _strike(self, item: Pending) -> None:
        fault = FAULTS[item.strike.kind](self.world, self.watch, self._random)
        try:
            fault.strike()
        except Missed as error:
            if time.monotonic() - item.due_at > _RETRY_S or self._all_ended():
                item.missed = str(error)
                item.ack_let_go.set()
            return
        except OSError as error:  # what it wanted to damage was replaced this moment
            if time.monotonic() - item.due_at > _RETRY_S:
                item.missed = str(error)
            return
        item.fault, item.struck_at = fault, time.monotonic()
        self._struck_view_updated = time.time()
        self.recover_s = None
        item.ack_let_go.set()
        if not fault.hold_s:
            item.healed_at = item.struck_at

    def _heal(self, item: Pending) -> None:
        if item.fault is not None:
            item.fault.heal()
        item.healed_at = time.monotonic()

    def _heal_all(self) -> None:
        for item in self.pending:
            item.ack_let_go.set()
            if item.fault is not None and not item.healed_at:
                self._heal(item)
        self.world.proxy.set_mode(Mode.OPEN)
        for name in list(self.world.frozen):
            self.world.thaw(name)

    def _hold_ack(self, number: int, side: str) -> threading.Event | None:
        """In the proxy's thread: whether this answer to the queue is to wait for a fault."""
        for item in self.pending:
            waiting = item.fault is None and not item.missed and item.armed_at
            if waiting and item.strike.when is When.ACK and item.strike.side == side and number >= item.strike.value:
                item.ack_seen.set()
                return item.ack_let_go
        return None

    # --- the end -----------------------------------------------------------------------------------

    def _done(self) -> bool:
        if not self._all_ended():
            return False
        for item in self.pending:
            if item.fault is None and not item.missed:
                item.missed = "everything had ended"
        return all(item.over for item in self.pending)

    def _all_ended(self) -> bool:
        wanted = 3 + self.plan.with_dice + self._queued_late
        return self._queued_late and len(self._views) >= wanted and all(view.ended for view in self._views)

    def _time_recovery(self) -> None:
        """From the last blow to the first step after it that the laptop knows of, or to the run's end."""
        struck = max((item.struck_at for item in self.pending), default=0.0)
        if not struck or self.recover_s is not None:
            return
        for view in self._views:
            if view.stage == names.PRETRAIN:
                fresh = self.watch.current()
                stepped = fresh is not None and fresh.progressed_at > struck and view.step >= min(fresh.step, 1)
                told = view.status_age_s is not None and time.time() - view.status_age_s > self._struck_view_updated
                if view.ended or (stepped and told):
                    self.recover_s = round(time.monotonic() - struck, 2)

    def _states(self) -> str:
        shown = [f"{view.run_id} {view.state}" + (f" ({view.reason})" if view.reason else "") for view in self._views]
        return json.dumps([*shown, *self._attendant.troubles[-3:]])
