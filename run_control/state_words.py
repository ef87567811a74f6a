"""What the states of runs and VMs mean, in words that say what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bridgehead import names
from bridgehead.errors import PairingError
from bridgehead.names import ENDED, CheckpointLevel, RunState
from bridgehead.records import duration
from bridgehead.upload_text import size_text
from run_control.project import Project

if TYPE_CHECKING:
    from bridge.ledger_room import Shortage

WAITS = "waits for a VM"  # shown in place of the ledger's "lost": nothing of the run is
RELEASED = "released"
_SHOWN_MAX = 3
_TRASH_BYTES = 2**27  # less of it is not worth a word


def shown(state: str, vm_state: str) -> str:
    """A run's state for a table. `state`: the ledger's; `vm_state`: what its VM last said of it, "" for nothing."""
    if state == RunState.LOST:
        return WAITS
    return f"{vm_state}, arriving" if _is_arriving(state, vm_state) else state


def waits_for(project: Project, state: str, vm_state: str, checkpoints: str, *, family: str = "") -> str:
    """Why a run that has not ended stands still, and what to do; "" when it does not.

    `checkpoints`: its newest; `family`: the pairing whose next VM it waits for.
    """
    if state == RunState.LOST:
        newest = f"newest checkpoint: {checkpoints}" if checkpoints else "no checkpoint of it was heard of"
        return f"{WAITS}{_how_to_get_one(project, family)}; {newest}"
    if state == RunState.QUEUED and family and (key_id := _other_pairing(project, family)):
        return f"{WAITS}{_of_its_pairing(key_id)}: it comes after a run of that one"
    if _is_arriving(state, vm_state):
        return f"it is {vm_state} on its VM; what it made is on its way here"
    return ""


def no_room(shortages: Sequence[Shortage]) -> str:
    """What of a run the laptop's disk has no room for, and what to do; "" when there is nothing."""
    if not shortages:
        return ""
    named = [item.path.partition("/")[2] or "small files" for item in shortages]
    shown = ", ".join(named[:_SHOWN_MAX]) + (f" and {len(named) - _SHOWN_MAX} more" if len(named) > _SHOWN_MAX else "")
    size = size_text(sum(item.wanted_bytes for item in shortages))
    return f"no room on this laptop for {shown} ({size}): make room, it waits on the VM and is sent again"


def checkpoints(levels: Mapping[str, Any], newest: Mapping[str, Any] | None) -> str:
    """`1200 local, 1100 confirmed`: of each step the highest level that it has. Without ages, so it changes seldom."""
    known = {str(level): levels[level] for level in CheckpointLevel if level in levels}
    if not known and newest:
        known = {str(newest["level"]): newest}
    by_step = {item["step"]: f"{item['step']} {level}" for level, item in known.items()}
    return ", ".join(by_step[step] for step in sorted(by_step, reverse=True))


def store(told: Mapping[str, Any]) -> str:
    """A VM's store for a table, from its heartbeat."""
    if not told:
        return "NONE"  # nothing of this VM outlives it
    trash_bytes = told.get("trash_bytes") or 0
    trash = f", {size_text(trash_bytes)} in its trash" if trash_bytes >= _TRASH_BYTES else ""
    if told.get("ok"):
        return ("ok, nothing confirmed" if told.get("error") else "ok") + trash
    return str(told.get("error") or "ill") + trash


def release_of(heartbeat: Mapping[str, Any]) -> dict[str, Any]:
    """`{"at", "because"}` when a VM's last word was that it gives itself back; empty otherwise. `at` may be None."""
    lifetime = heartbeat.get("lifetime")
    if not isinstance(lifetime, dict) or not lifetime.get("released"):
        return {}
    at, because = lifetime.get("released_at"), lifetime.get("released_because")
    when = float(at) if isinstance(at, int | float) and not isinstance(at, bool) else None
    return {"at": when, "because": str(because or "everything is done and safe")[:300]}


def release_text(release: Mapping[str, Any], now: float) -> str:
    """`gave itself back 3m04s ago: …`."""
    when = f" {duration(now - release['at'])} ago" if release["at"] else ""
    return f"gave itself back{when}: {release['because']}"


def _is_arriving(state: str, vm_state: str) -> bool:
    return state not in ENDED and vm_state in ENDED


def _how_to_get_one(project: Project, family: str) -> str:
    key_id = _other_pairing(project, family) if family else ""
    if key_id:
        return _of_its_pairing(key_id)
    local = project.vms.is_dir() and any(project.vms.iterdir())
    return ": bridgehead up --runtime local" if local else ": open the notebook and run the cell"


def _of_its_pairing(key_id: str) -> str:
    return f" of its own pairing: bridgehead notebook --key {key_id}, and run its cell"


def _other_pairing(project: Project, family: str) -> str:
    """The good key of this pairing when it is not the one that the usual notebook holds; else ""."""
    from bridge.keys import KeyStore

    path = project.private / names.KEYS_FILE
    if not path.is_file():
        return ""
    try:
        keys = KeyStore(path)
    except PairingError:  # told by whatever needs the keys
        return ""
    good = [item for item in keys.all() if item.family == family and item.usable]
    current = keys.get(keys.current()[0])
    return "" if not good or (current is not None and current.family == family) else good[-1].id
