"""W&B's own package: what an offline folder holds, and that a server which never answers holds up nobody."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from project_support import Seeded
from tracking_rig import AT, end, progress, silent_server

from bridgehead import processes
from bridgehead.names import RunState
from run_control import query
from run_control.tracking import follower
from support import wait_until

wandb = pytest.importorskip("wandb", reason="wandb (extra wandb) is not installed")
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]
BLOCK = 32 * 1024
KEY = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the login nor the settings of who runs the tests."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "wandb-config"))


def track(seeded: Seeded, text: str) -> None:
    seeded.project.file.write_text(seeded.project.file.read_text() + f'\n[tracking]\nsinks = ["wandb"]\n{text}')


def records(seeded: Seeded) -> list[Any]:
    """Of the one offline folder that there is, each record of its file."""
    from wandb.proto import wandb_internal_pb2

    [path] = (seeded.project.private / "wandb").glob("offline-run-*/run-*.wandb")
    return [wandb_internal_pb2.Record.FromString(data) for data in _scan(path.read_bytes())]


def _scan(data: bytes) -> Iterator[bytes]:
    """The records of a log as LevelDB writes it: blocks of 32 KiB, pieces with checksum, length and place in a record.

    Source: doc/log_format.md of LevelDB; W&B puts 7 bytes of its own before it.
    """
    at, record = 7, b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
        _, length, kind = struct.unpack_from("<IHB", data, at)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""


def values(items: Any) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def rows(found: list[Any]) -> list[dict[str, Any]]:
    return [values(record.history.item) for record in found if record.WhichOneof("record_type") == "history"]


def summary(found: list[Any]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for record in found:
        if record.WhichOneof("record_type") == "summary":
            told |= values(record.summary.update)
    return told


def config(found: list[Any]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for record in found:
        if record.WhichOneof("record_type") == "run":
            told |= values(record.run.config.update)
        if record.WhichOneof("record_type") == "config":
            told |= values(record.config.update)
    return told


def test_an_ended_run_is_one_whole_offline_folder(seeded: Seeded) -> None:
    track(seeded, 'wandb_mode = "offline"\n')
    project = seeded.project
    [run_id, living] = seeded.take("run:pretrain seed=7", "run:pretrain seed=8")
    progress(project.run(living), 1, loss=1.0)
    for step in (1, 2, 3, 2, 3, 4):  # it died after 3, and did 2 and 3 again
        progress(project.run(run_id), step, loss=1.0 / step)
        progress(project.run(run_id), step, accuracy=step / 10)
    seeded.status(run_id, step=4)
    end(seeded, run_id, RunState.DONE, accuracy=0.9)
    for points in (4, 0):
        [feeder] = follower.once(project)
        assert not feeder.standing.trouble and feeder.standing.points == points
    found = records(seeded)
    [row] = [row for row in query.rows(project) if row["run_id"] == run_id]
    assert [(row["_step"], row["loss"], row["accuracy"]) for row in rows(found)] == [
        (1, 1.0, 0.1),
        (2, 0.5, 0.2),
        (3, 1 / 3, 0.3),
        (4, 0.25, 0.4),
    ]
    assert [row["_timestamp"] for row in rows(found)] == [AT + step for step in (1, 2, 3, 4)]
    told = summary(found)
    assert told["loss"] == row["metrics.loss"] and told["results.accuracy"] == row["results.accuracy"] == 0.9
    assert told["bridgehead.state"] == "done" and told["bridgehead.hours"] == row["hours"]
    assert config(found)["seed"] == 7 and config(found)["bridgehead"]["stage"] == "pretrain"
    [run] = [record.run for record in found if record.WhichOneof("record_type") == "run"][:1]
    assert (run.run_id, run.display_name, run.project, run.job_type) == (run_id, run_id, project.root.name, "pretrain")
    assert [record.exit.exit_code for record in found if record.WhichOneof("record_type") == "exit"] == [0]


def test_what_arrives_after_the_end_replaces_the_folder(seeded: Seeded) -> None:
    track(seeded, 'wandb_mode = "offline"\n')
    [run_id] = seeded.take("run:pretrain")
    progress(seeded.project.run(run_id), 1, loss=1.0)
    end(seeded, run_id, RunState.FAILED)
    follower.once(seeded.project)
    progress(seeded.project.run(run_id), 2, loss=0.5)
    [feeder] = follower.once(seeded.project)
    assert not feeder.standing.trouble
    found = records(seeded)
    assert [row["_step"] for row in rows(found)] == [1, 2] and summary(found)["bridgehead.state"] == "failed"
    assert [record.exit.exit_code for record in found if record.WhichOneof("record_type") == "exit"] == [1]


def test_a_server_that_never_answers_holds_up_nobody_and_learns_nothing_for_the_log(
    seeded: Seeded, monkeypatch: pytest.MonkeyPatch
) -> None:
    track(seeded, "timeout_s = 20\n")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    [run_id] = seeded.take("run:pretrain")
    progress(seeded.project.run(run_id), 1, loss=1.0)
    before = processes.descendants(os.getpid())
    with silent_server() as url:
        monkeypatch.setenv("WANDB_BASE_URL", url)
        [feeder] = follower.once(seeded.project)
    assert feeder.standing.trouble and feeder.standing.points == 0
    wait_until(lambda: processes.descendants(os.getpid()) <= before, 60, what="the end of all that it started")
    for path in (path for path in seeded.project.private.rglob("*") if path.is_file()):
        assert KEY.encode() not in path.read_bytes(), path


def test_without_a_key_it_says_how_to_log_in(seeded: Seeded) -> None:
    track(seeded, "timeout_s = 30\n")
    [run_id] = seeded.take("run:pretrain")
    progress(seeded.project.run(run_id), 1, loss=1.0)
    [feeder] = follower.once(seeded.project)
    assert "WANDB_API_KEY" in feeder.standing.next, feeder.standing
