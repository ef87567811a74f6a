"""Post-mortems of run folders, whole and broken."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bridgehead import files, names
from bridgehead.failures import postmortem
from bridgehead.failures.page import page
from bridgehead.failures.postmortem import Measured

EXIT = {"run_id": "a-1", "attempt": 2, "state": "failed", "exit_code": 1, "failure_class": "user_error", "retries": 0}


def _folder(tmp_path: Path, log: bytes = b"RuntimeError: CUDA out of memory. Tried to allocate\n") -> Path:
    files.write_json(
        tmp_path / names.RUN_RECORD, {"run_id": "a-1", "stage": "pretrain", "attempt": 2, "spec": {"config": {}}}
    )
    files.write_json(tmp_path / names.EXIT, {**EXIT, "started": 100.0, "ended": 160.0})
    (tmp_path / names.LOG).write_bytes(log)
    (tmp_path / names.PROGRESS).write_text('{"step": 7, "total_steps": 9, "metrics": {"loss": 0.5}}\n{"event": "che')
    files.write_json(tmp_path / names.STATUS, {"levels": {"confirmed": {"step": 5, "at": 1.0}}})
    return tmp_path


def test_it_holds_class_evidence_metrics_checkpoint_cost_and_whether_to_try_again(tmp_path: Path) -> None:
    record = postmortem.write(_folder(tmp_path), Measured(), written_by="vm")
    assert record == files.read_json(tmp_path / names.POSTMORTEM)
    assert (record["verdict"]["class"], record["end"]["failure_class"]) == ("gpu_oom", "user_error")
    assert [item["decides"] for item in record["verdict"]["evidence"]].count(True) == 1
    assert record["metrics"]["step"] == 7 and record["checkpoint"]["levels"]["confirmed"]["step"] == 5
    assert record["cost"]["duration_s"] == 60.0 and record["cost"]["money"] is None
    assert record["retry"]["allowed"] is False
    text = (tmp_path / names.POSTMORTEM_PAGE).read_text()
    assert text.startswith("# a-1, attempt 2: gpu_oom") and "step 5 confirmed" in text


def test_the_money_is_the_rate_that_it_was_pinned_to_times_its_hours(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    spec = {"config": {}, "pins": {"rate": "11.77 CU"}}
    files.write_json(folder / names.RUN_RECORD, {"run_id": "a-1", "stage": "pretrain", "attempt": 2, "spec": spec})
    record = postmortem.write(folder, Measured(), written_by="vm")
    assert record["cost"] == {"duration_s": 60.0, "money": "0.1962 CU", "rate": "11.77 CU an hour"}
    assert "money 0.1962 CU" in (folder / names.POSTMORTEM_PAGE).read_text()


def test_the_budget_of_the_class_less_what_was_used(tmp_path: Path) -> None:
    ending = {**EXIT, "exit_code": 137, "failure_class": "killed_unknown"}
    for used, allowed in ((0, True), (1, False)):
        told = postmortem.compose(tmp_path, Measured(ending={**ending, "retries": used}), written_by="vm")["retry"]
        assert (told["allowed"], told["budget"], told["used"]) == (allowed, 1, used)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        (names.EXIT, b"{"), (names.EXIT, b'{"exit_code": "x", "retries": "y", "state": []}'),
        (names.RUN_RECORD, b"[1]"),
        (names.RUN_RECORD, b'{"spec": 3}'), (names.STATUS, b'{"levels": {"local": 3}}'),
        (names.STATUS, b'{"levels": []}'),
        (names.PROGRESS, b"\xff\xfe" * 99), (names.LOG, os.urandom(50_000)), (names.LOG, b"`" * 9000 + b"<script>"),
    ],
)  # fmt: skip
def test_a_file_that_is_broken_costs_its_own_section_at_most(tmp_path: Path, name: str, data: bytes) -> None:
    (_folder(tmp_path) / name).write_bytes(data)
    record = postmortem.compose(tmp_path, Measured(), written_by="vm")
    assert record["verdict"]["class"] and "# " in page(record)


def test_an_empty_folder_and_a_failing_gauge_still_give_a_page(tmp_path: Path) -> None:
    def broken() -> dict[str, object]:
        raise RuntimeError("no gauge")

    record = postmortem.compose(tmp_path / "nothing", Measured(resources=broken), written_by="laptop")
    assert record["verdict"]["class"] == "unknown" and "no gauge" in record["resources"]["error"]
    assert page({}).startswith("# Post-mortem") and page(record).startswith("# nothing")


def test_a_log_that_is_a_folder_or_a_pipe_is_no_log(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / names.LOG)
    assert postmortem.compose(tmp_path, Measured(ending=EXIT), written_by="vm")["verdict"]["class"] == "user_error"


@pytest.mark.parametrize(("attempt", "wanted"), [(2, "nan_loss"), (1, "user_error")])
def test_a_loss_that_was_no_number_at_last_is_why(tmp_path: Path, attempt: int, wanted: str) -> None:
    folder = _folder(tmp_path, b"bye\n")
    files.write_json(folder / names.EXIT, {**EXIT, "exit_code": 2})
    event = {"event": "progress", "attempt": attempt, "step": 7, "metrics": {}, "not_finite": ["loss"]}
    (folder / names.PROGRESS).write_text(json.dumps(event) + "\n")
    assert postmortem.write(folder, Measured(), written_by="vm")["verdict"]["class"] == wanted
