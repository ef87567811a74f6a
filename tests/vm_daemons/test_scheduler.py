"""Who may start: needs that fit run side by side, order is kept among those that can run, inputs come first."""

from __future__ import annotations

from bridgehead.names import FailureClass
from bridgehead.records import Needs
from vm_daemons.capacity import Capacity
from vm_daemons.scheduler import InputState, Plan, Waiting, plan

MACHINE = Capacity(cpus=2.0, memory_gb=8.0, gpu_memory_gb=16.0)


def waiting(key: str, *, gpu: float = 0.0, cpus: float = 1.0, memory: float = 0.0, **inputs: str) -> Waiting:
    return Waiting(key, key, Needs(gpu, cpus, memory), inputs)


def decide(*items: Waiting, running: tuple[Needs, ...] = (), **states: InputState) -> Plan:
    return plan(items, running, MACHINE, lambda run_id: states[run_id.replace("-", "_")])


def test_those_that_fit_together_start_together() -> None:
    assert decide(waiting("a", gpu=8), waiting("b", gpu=8), waiting("c", gpu=8)).start == ["a", "b"]


def test_what_runs_counts() -> None:
    assert decide(waiting("a", gpu=9), running=(Needs(8.0, 1.0),)).start == []


def test_a_small_one_overtakes_a_big_one_that_does_not_fit_yet() -> None:
    assert decide(waiting("big", gpu=16), waiting("small", gpu=2), running=(Needs(8.0, 1.0),)).start == ["small"]


def test_order_is_kept_among_those_that_can_run() -> None:
    assert decide(waiting("a", cpus=2), waiting("b", cpus=2)).start == ["a"]


def test_more_cpus_or_memory_than_there_are_count_as_all_of_them() -> None:
    assert decide(waiting("a", cpus=64, memory=500)).start == ["a"]
    assert decide(waiting("a", cpus=64), running=(Needs(0.0, 1.0),)).start == []


def test_more_gpu_memory_than_there_is_never_starts_and_says_so() -> None:
    refusal = decide(waiting("a", gpu=40)).refuse[0]
    assert refusal.failure_class is FailureClass.ENVIRONMENT
    assert refusal.message == "a needs 40 GB of GPU memory and this VM has 16.0 GB"


def test_tenths_add_up() -> None:
    tenths = Needs(0.0, 0.2, 0.0)
    assert decide(waiting("a", cpus=0.2), running=(tenths,) * 9).start == ["a"]


def test_an_input_that_is_not_done_is_waited_for() -> None:
    decided = decide(waiting("a", up="up-1"), up_1=InputState.PENDING)
    assert decided == Plan([], [])


def test_an_input_that_is_done_lets_it_start() -> None:
    assert decide(waiting("a", up="up-1"), up_1=InputState.READY).start == ["a"]


def test_a_failed_input_fails_it_and_is_named() -> None:
    refusal = decide(waiting("a", up="up-1"), up_1=InputState.BROKEN).refuse[0]
    assert refusal.failure_class is FailureClass.UPSTREAM
    assert "up-1" in refusal.message


def test_an_input_that_nobody_can_bring_fails_it() -> None:
    refusal = decide(waiting("a", up="up-1"), up_1=InputState.MISSING).refuse[0]
    assert refusal.failure_class is FailureClass.ENVIRONMENT
