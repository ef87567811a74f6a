"""What may start now: pure functions over what waits, what runs, what the machine has and how inputs stand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from bridgehead.names import FailureClass
from bridgehead.records import Needs
from vm_daemons.capacity import Capacity

_SLACK = 1e-6  # sums of floats: 0.1 + 0.2 must fit into 0.3


@dataclass(frozen=True)
class Waiting:
    """A command that has not started."""

    key: str
    label: str  # how to call it in a message
    needs: Needs
    inputs: Mapping[str, str] = field(default_factory=dict)  # stage -> run id


class InputState(Enum):
    """How a run that another one comes after stands, seen from this VM."""

    READY = auto()  # done, and its output is here or in the store
    PENDING = auto()
    BROKEN = auto()  # failed or stopped
    MISSING = auto()  # not here, and there is no store to look into


@dataclass(frozen=True)
class Refusal:
    """A command that will never start, and why."""

    key: str
    failure_class: FailureClass
    message: str


@dataclass(frozen=True)
class Plan:
    start: list[str]
    refuse: list[Refusal]


def plan(
    waiting: Iterable[Waiting],
    running: Iterable[Needs],
    capacity: Capacity,
    input_state: Callable[[str], InputState],
) -> Plan:
    """Decide for each waiting command in queue order: start, refuse, or leave waiting.

    A big one that does not fit yet may be overtaken by a small one that does. More cpus or memory than the machine
    has count as all of it; more GPU memory than it has is refused, since that stage would die for lack of memory.
    """
    used = [_capped(needs, capacity) for needs in running]
    start: list[str] = []
    refuse: list[Refusal] = []
    for item in waiting:
        refusal = _refusal(item, capacity, input_state)
        if refusal is not None:
            refuse.append(refusal)
            continue
        if any(input_state(run_id) is not InputState.READY for run_id in item.inputs.values()):
            continue
        needs = _capped(item.needs, capacity)
        if _fits([*used, needs], capacity):
            used.append(needs)
            start.append(item.key)
    return Plan(start, refuse)


def _refusal(item: Waiting, capacity: Capacity, input_state: Callable[[str], InputState]) -> Refusal | None:
    for stage, run_id in item.inputs.items():
        state = input_state(run_id)
        if state is InputState.BROKEN:
            message = f"{item.label} comes after {stage}, and {run_id} did not succeed"
            return Refusal(item.key, FailureClass.UPSTREAM, message)
        if state is InputState.MISSING:
            message = f"the output of {run_id} is not on this VM, and no durable store is mounted to get it from"
            return Refusal(item.key, FailureClass.ENVIRONMENT, message)
    wanted_gb = item.needs.gpu_memory_gb
    if wanted_gb > capacity.gpu_memory_gb + _SLACK:
        has = f"has {capacity.gpu_memory_gb:.1f} GB" if capacity.gpu_memory_gb else "has no GPU"
        message = f"{item.label} needs {wanted_gb:g} GB of GPU memory and this VM {has}"
        return Refusal(item.key, FailureClass.ENVIRONMENT, message)
    return None


def _capped(needs: Needs, capacity: Capacity) -> Needs:
    return Needs(needs.gpu_memory_gb, min(needs.cpus, capacity.cpus), min(needs.memory_gb, capacity.memory_gb))


def _fits(all_needs: list[Needs], capacity: Capacity) -> bool:
    return (
        sum(needs.gpu_memory_gb for needs in all_needs) <= capacity.gpu_memory_gb + _SLACK
        and sum(needs.cpus for needs in all_needs) <= capacity.cpus + _SLACK
        and sum(needs.memory_gb for needs in all_needs) <= capacity.memory_gb + _SLACK
    )
