"""`bridgehead classify`: any log, any exit code, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_process import in_process


def test_class_evidence_next_step_and_whether_to_try_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "a.log"
    log.write_text("step 1\nRuntimeError: CUDA out of memory. Tried to allocate\n")
    told = in_process(capsys, "classify", str(log), "--exit-code", "1")
    assert told.code == 0 and told.out.startswith("class: gpu_oom (high")
    assert "evidence: log" in told.out and "next: a smaller batch" in told.out and "try again: no" in told.out
    data = in_process(capsys, "classify", str(log), "--json").data
    assert (data["class"], data["retry"]["allowed"]) == ("gpu_oom", False)


def test_a_negative_exit_code_and_a_providers_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text("")
    log = str(tmp_path / "log")
    assert in_process(capsys, "classify", log, "--exit-code", "-9", "--json").data["class"] == "killed_unknown"
    assert in_process(capsys, "classify", log, "--state", "OUT_OF_MEMORY", "--json").data["class"] == "host_oom"


def test_a_logs_escapes_never_reach_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_bytes(b"\x1b[2JValueError: \x07\xe2\x80\xaebad\n")
    told = in_process(capsys, "classify", str(tmp_path / "log"))
    assert told.code == 0 and not any(char in told.out for char in "\x1b\x07\u202e")


def test_bad_input_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.jsonl").write_text('{"class": "no_such", "source": "a", "excerpt": "b"}\n')
    for words in ((), (str(tmp_path / "none"),), (str(tmp_path),), ("--self-test", str(tmp_path / "bad.jsonl"))):
        told = in_process(capsys, "classify", *words)
        assert told.code == 2 and "Traceback" not in told.err


def test_the_self_test_leaves_each_source_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        {"class": "mount_lost", "source": "a", "excerpt": "Transport endpoint is not connected"},
        {"class": "mount_lost", "source": "b", "excerpt": "x: Transport endpoint is not connected", "exit_code": 1},
        {"class": "nan_loss", "source": "c", "excerpt": "Loss is nan, stopping training"},
    ]
    (tmp_path / "f.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = in_process(capsys, "classify", "--self-test", str(tmp_path / "f.jsonl"), "--json").data["classes"]
    told = {row["class"]: (row["excerpts"], row["right_whole"], row["right_left_out"]) for row in rows}
    assert told == {"mount_lost": ("2", "2", "2"), "nan_loss": ("1", "1", "0"), "all": ("3", "3", "2")}
