"""How long this VM lives, and what becomes of its runs before it ends.

Towards the end of a known cap each run is first asked for a checkpoint and goes on; at half of the time that is left
then, or as soon as a person asks for the VM's release, it is asked to save and leave, and the next VM gets it. A run
that was handed over has no exit.json: it has not ended. How far it is lies in its folder's handover.json:

    {"v": 1, "attempt": 1, "saving_since": …, "handing_since": …, "ended": …}
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

from bridgehead import checkpoints, files, names, processes
from bridgehead.errors import UsageError
from bridgehead.names import CheckpointLevel, StoreKind
from bridgehead.records import VmRules, duration
from vm_daemons import asked_release, daemons, uploads
from vm_daemons.gauges import age_s
from vm_daemons.home import VmHome

USUAL_CAP_H = {"colab": 12.0, "kaggle": 12.0}
OUTLIVED_S = 600.0  # past a cap that was only assumed: then it was wrong
CELL_SILENT_S = 120.0
LAST_MOMENT_S = 60.0  # what is mounted by then is not waited for any more
_PROC = Path("/proc")


class Phase(IntEnum):
    """What a run may do, by the time that is left."""

    OPEN = 0
    SAVING = 1  # none starts; each is asked for a checkpoint and goes on
    HANDING_OVER = 2  # each saves and leaves


@dataclass(frozen=True)
class Outlook:
    """Seconds; `cap_s` is 0 when none is known, `ends_at` is in seconds since 1970 and 0 then."""

    age_s: float
    cap_s: float = 0.0
    cap_from: str = ""
    ends_at: float = 0.0
    phase: Phase = Phase.OPEN
    note: str = ""

    @property
    def left_s(self) -> float:
        return self.cap_s - self.age_s if self.cap_s else float("inf")


def outlook(home: VmHome) -> Outlook:
    """From this VM's record, its clocks, and what a person asked for. Raises OSError when the record can't be read."""
    record = home.record()
    stored = has_store(record)
    seen = judge(rules(record), provider(), vm_age_s(record), stored=stored)
    wish = asked_release.pending(home)
    if wish is None:
        return seen
    note = f"line #{wish.seq} asks for its release: "
    if not stored:  # nothing can be handed over
        return replace(seen, note=note + "there is no durable store, so it goes once its runs have ended")
    return replace(seen, phase=Phase.HANDING_OVER, note=note + "no run starts here any more")


def judge(limits: VmRules, where: str, age: float, *, stored: bool = True, now: float | None = None) -> Outlook:
    """The decision alone. `where` is a provider; `stored`: there is a durable store to hand things over through."""
    cap_s, cap_from = limits.cap_h * 3600.0, "[vm] cap_h"
    if cap_s <= 0:
        cap_s, cap_from = USUAL_CAP_H.get(where, 0.0) * 3600.0, f"usual for {where.title()}; [vm] cap_h says otherwise"
        if cap_s and age > cap_s + OUTLIVED_S:
            return Outlook(age, note=f"this VM has outlived the usual {duration(cap_s)}: no cap is known")
    if cap_s <= 0:
        return Outlook(age)
    ends_at = (time.time() if now is None else now) + cap_s - age
    before_s = min(limits.save_before_cap_s, cap_s / 2)
    left_s, phase, note = cap_s - age, Phase.OPEN, ""
    if not stored:
        note = "there is no durable store: nothing can be handed over before the cap"
    elif left_s <= before_s:
        phase = Phase.SAVING if left_s > before_s / 2 else Phase.HANDING_OVER
        told = "has passed" if left_s <= 0 else "is near"
        note = f"no run starts here any more: the cap of {duration(cap_s)} {told} ({cap_from})"
    elif before_s < limits.save_before_cap_s:
        note = f"save_before_cap_s is more than half of the cap; {duration(before_s)} is used"
    return Outlook(age, cap_s, cap_from, ends_at, phase, note)


def rules(record: dict[str, Any]) -> VmRules:
    """[vm] as the laptop sent it; the defaults where it sent none."""
    try:
        return VmRules.from_json(record.get("vm_rules"))
    except UsageError:
        return VmRules()


def has_store(record: dict[str, Any]) -> bool:
    spec = record.get("store_spec")
    kind = spec.get("kind") if isinstance(spec, dict) else ""
    return bool(record.get("store")) or kind in (StoreKind.FOLDER, StoreKind.DRIVE, StoreKind.S3)


def provider() -> str:
    """colab, kaggle, local or "", by what the machine looks like; a daemon's environment is scrubbed of theirs."""
    if os.environ.get(names.ENV_LOCAL_VM):
        return "local"
    for name, folder in (("kaggle", "/kaggle/working"), ("colab", "/content")):
        if Path(folder).is_dir():
            return name
    return ""


def vm_age_s(record: dict[str, Any]) -> float:
    """Since the VM began, by the clock that goes on through suspends and that nobody sets.

    In a container the uptime is the host's, which may be weeks: what counts is the age of its first process. Of a
    local VM, a folder on somebody's machine, it is the time since its record was made.
    """
    clock_s = boot_clock_s()
    if not os.environ.get(names.ENV_LOCAL_VM) and (_PROC / "1/stat").exists():
        return max(0.0, clock_s - processes.start_ticks(1) / os.sysconf("SC_CLK_TCK"))
    began = record.get("started_clock_s")
    if isinstance(began, (int, float)) and record.get("boot_id") == processes.boot_id():
        return max(0.0, clock_s - began)
    return max(0.0, time.time() - float(record.get("started") or time.time()))


def cell_is_silent(home: VmHome) -> bool:
    """Whether the cell that keeps this VM has stopped beating; False where there never was one."""
    silent_s = age_s(home.state / daemons.CELL_MARK)
    return silent_s is not None and silent_s > CELL_SILENT_S


def boot_clock_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Deadline:
    """The phase, looked up once a second: it is asked for each run at each turn of a loop."""

    def __init__(self, home: VmHome) -> None:
        self._home = home
        self._phase = Phase.OPEN
        self._next_look = 0.0

    def phase(self) -> Phase:
        """Raises OSError."""
        if time.monotonic() >= self._next_look:
            self._phase = outlook(self._home).phase
            self._next_look = time.monotonic() + 1.0
        return self._phase


# --- one run's way to the next VM --------------------------------------------------------------------------


def handover(run_dir: Path, attempt: int) -> dict[str, Any]:
    """handover.json of this attempt, empty when there is none."""
    record = files.read_json(run_dir / names.HANDOVER)
    return record if isinstance(record, dict) and record.get("attempt") == attempt else {}


def ask_to_save(run_dir: Path, attempt: int) -> None:
    """Once per attempt: the stage saves at its next step, removes the file and goes on. Raises OSError."""
    if not handover(run_dir, attempt):
        (run_dir / names.SAVE_REQUEST).touch()
        _note(run_dir, attempt, saving_since=time.time())


def begin_handover(run_dir: Path, attempt: int) -> None:
    """Written before the stage is asked to leave, so that whoever sees it end knows that it has not failed."""
    if not is_handing_over(run_dir, attempt):
        _note(run_dir, attempt, handing_since=time.time())


def cancel_handover(run_dir: Path, attempt: int) -> bool:
    """Somebody asked for a stop meanwhile, so it ends here. False when there was none under way."""
    if not is_handing_over(run_dir, attempt):
        return False
    _note(run_dir, attempt, handing_since=0)
    return True


def end_handover(run_dir: Path, attempt: int) -> None:
    """Its processes are gone and their last checkpoint is on the disk."""
    _note(run_dir, attempt, ended=time.time())


def is_handing_over(run_dir: Path, attempt: int) -> bool:
    return bool(handover(run_dir, attempt).get("handing_since"))


def is_handed_over(run_dir: Path, attempt: int) -> bool:
    return is_handing_over(run_dir, attempt) and bool(handover(run_dir, attempt).get("ended"))


def _note(run_dir: Path, attempt: int, **values: float) -> None:
    record = {"v": names.RECORD_VERSION, "attempt": attempt, **handover(run_dir, attempt), **values}
    files.write_json(run_dir / names.HANDOVER, record)


# --- what is told of it -------------------------------------------------------------------------------------


def snapshot(home: VmHome) -> dict[str, Any]:
    """Heartbeat.lifetime. Never raises.

    `handing_over`: runs that are saving for the next VM. `handed_over`: those that have stopped and whose newest
    checkpoint is in the store, so that the next VM can have them now. `released`: this VM has given itself back, with
    when (seconds since 1970) and why.
    """
    told: dict[str, Any] = {"handing_over": [], "handed_over": [], "stays_because": "", "releases_at": None}
    with contextlib.suppress(OSError, UsageError):
        seen = outlook(home)
        told |= {"age_s": round(seen.age_s), "cap_s": seen.cap_s or None, "cap_from": seen.cap_from}
        told |= {"ends_at": seen.ends_at or None, "starts_runs": seen.phase is Phase.OPEN, "note": seen.note}
        under_way, done = handovers(home, seen)
        told |= {"handing_over": under_way, "handed_over": done, "release_asked": bool(asked_release.pending(home))}
        told |= _release_state(home)
    return told


def handovers(home: VmHome, seen: Outlook) -> tuple[list[str], list[str]]:
    """Run ids that are on their way to the next VM, and those that it can take up."""
    under_way: list[str] = []
    done: list[str] = []
    for path in sorted(home.runs.glob(f"*/{names.HANDOVER}")):
        run_dir = path.parent
        record = files.read_json(path)
        if not isinstance(record, dict) or not record.get("handing_since") or (run_dir / names.EXIT).exists():
            continue
        safe = in_store(run_dir) and uploads.all_arrived(run_dir)  # afterwards nobody takes its log from this VM
        ready = record.get("ended") and (safe or seen.left_s < LAST_MOMENT_S)
        (done if ready else under_way).append(run_dir.name)
    return under_way, done


def in_store(run_dir: Path) -> bool:
    """Whether the newest checkpoint on this disk is in the store, as high as this store lets it climb."""
    steps = [checkpoints.step_of(entry) for entry in (run_dir / names.CHECKPOINTS).glob("*")]
    newest = max((step for step in steps if step is not None), default=None)
    if newest is None:
        return True
    item = highest(run_dir)
    return item is not None and item.get("step", -1) >= newest


def highest(run_dir: Path) -> dict[str, Any] | None:
    """The newest checkpoint that is as high as this store lets one climb, as checkpoints.json has it."""
    record = files.read_json(run_dir / names.CHECKPOINT_LEVELS)
    levels = record.get("levels") if isinstance(record, dict) else None
    if not isinstance(record, dict) or not isinstance(levels, dict):
        return None
    wanted = CheckpointLevel.CONFIRMED if record.get("confirmed_by") else CheckpointLevel.MOUNTED
    reached = [levels.get(level) for level in (wanted, CheckpointLevel.CONFIRMED)]
    return max(
        (item for item in reached if isinstance(item, dict)), key=lambda item: item.get("step", -1), default=None
    )


def _release_state(home: VmHome) -> dict[str, Any]:
    """What the cell wrote down; it alone can release the VM."""
    record = files.read_json(home.state / names.VM_LIFETIME)
    found = record if isinstance(record, dict) else {}
    if found.get("released"):
        because = str(found.get("because", ""))
        return {"released": True, "released_at": found["released"], "released_because": because}
    cell_s = age_s(home.state / daemons.CELL_MARK)
    if cell_s is None or cell_s > CELL_SILENT_S:
        return {"stays_because": "the cell does not run, and it alone can release the VM"}
    return {"stays_because": str(found.get("stays_because", "")), "releases_at": found.get("releases_at")}
