"""Records against the golden samples: what crosses the wire or lies on a disk does not change by accident."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bridgehead.errors import UsageError
from bridgehead.names import Ack, CheckpointLevel, RunState
from bridgehead.records import (
    AckRecord,
    CheckpointInfo,
    Command,
    ExitRecord,
    Heartbeat,
    Needs,
    ProcessRecord,
    Record,
    RunRecord,
    StageSpec,
    Status,
)

GOLDEN = Path(__file__).parents[1] / "golden"
SPEC = StageSpec("pretrain", "bridgehead:pretrain", ["a"], Needs(8.0, 2.0, 4.0), {"epochs": 3}, 5, 0.0, 3, 60.0)
SAMPLES: dict[str, Record] = {
    "stage_spec": SPEC,
    "command": Command(
        "5f" * 16, 1, 2, "vm-3fa9c1", "run", "pretrain", 1796011344.5, 2, "pretrain-0001-5f5f5f",
        {"a": "a-0001-abcdef"}, SPEC,
    ),
    "run": RunRecord(
        "pretrain-0001-5f5f5f", "pretrain", "clips", "5f" * 16, 1, "vm-3fa9c1", 1796011344.5, SPEC, {}, "ab" * 32,
        "cd" * 32,        {"python": "3.13.1"},
    ),
    "process": ProcessRecord("boot", 100, 12345, 101, 12346, 101, 1796011344.5),
    "status": Status(
        "pretrain-0001-5f5f5f", "pretrain", RunState.RUNNING, "vm-3fa9c1", 1, 120, 400, 3, 10, {"loss": 0.5}, 62.0, "",
        CheckpointInfo(100, CheckpointLevel.MOUNTED, 1796011300.0, 4096, 2), 80, 1796011344.5,
    ),
    "exit": ExitRecord(
        "pretrain-0001-5f5f5f", 1, RunState.FAILED, 3, "", "user_error", "the stage exited with 3", 1.0, 2.0,
        ["101 sleep 5"],
    ),
    "ack": AckRecord("vm-3fa9c1", Ack.FINISHED, 1, "", 0, "done", "", 1796011344.5),
    "heartbeat": Heartbeat(
        "vm-3fa9c1", "boot", 1796011344.5, "ab" * 32, 1796011000.0, "host", "3.13.1", 2, 0.5, 10, 5, 100, 50,
        [{"name": "T4", "memory_total_mb": 15360, "memory_used_mb": 100, "use": 0.5}], {"ok": True}, 12.0,
        [{
            "run_id": "pretrain-0001-5f5f5f", "state": "running", "attempt": 1, "running_s": 1800,
            "cost": {"rate": "1.07 CU", "so_far": "0.535 CU", "to_finish": "1.07 CU", "cap_left_s": 9000.0},
        }],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAMPLES)
def test_a_record_writes_its_golden_sample(name: str) -> None:
    path = GOLDEN / f"{name}.json"
    assert json.loads(path.read_text()) == json.loads(json.dumps(SAMPLES[name].to_json())), (
        f"{path.name} differs. If the wire was meant to change, raise PROTOCOL and write the sample anew"
    )


@pytest.mark.parametrize("name", SAMPLES)
def test_a_golden_sample_reads_back_as_the_record(name: str) -> None:
    sample = SAMPLES[name]
    assert type(sample).from_json(json.loads((GOLDEN / f"{name}.json").read_text())) == sample


def test_a_reader_ignores_what_it_does_not_know() -> None:
    assert Needs.from_json({"v": 1, "cpus": 2, "colour": "red"}) == Needs(cpus=2.0)


@pytest.mark.parametrize(
    "data",
    [None, [], "x", {"v": 2}, {"v": 1}, {"name": 3, "command": "x"}, {"name": "a", "command": "b", "after": "c"},
     {"name": "a", "command": "b", "checkpoint_every_epochs": True}],
)  # fmt: skip
def test_what_is_no_record_is_refused_in_words(data: object) -> None:
    with pytest.raises(UsageError):
        StageSpec.from_json(data)


def test_an_unknown_state_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown value"):
        ExitRecord.from_json({"run_id": "r", "attempt": 1, "state": "sleeping"})


def test_the_status_line_says_it_all_in_one_line() -> None:
    status = SAMPLES["status"]
    assert isinstance(status, Status)
    assert status.line() == (
        "pretrain-0001-5f5f5f · running · epoch 3/10 · step 120/400 · loss 0.5 · ETA 1m02s · checkpoint 100 mounted"
    )
