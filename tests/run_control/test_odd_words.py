"""Words and streams that nobody means to give: each gets one line that names it, and never a traceback."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cli_process import command, environment, in_process
from project_support import Seeded

from run_control import notebook
from run_control.project import Project


def _shell(project: Project, line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line, "bash", *command()],
        cwd=project.root,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
    )


@pytest.mark.parametrize("words", ["status", "status --json", "--help"])
def test_a_closed_stdout_is_no_error(fresh: Project, words: str) -> None:
    result = _shell(fresh, f'"$@" {words} >&-')
    assert result.returncode == 0 and "error" not in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("words", ["status", "status --json", "--version"])
def test_a_stdout_without_room_is_told_in_one_line(fresh: Project, words: str) -> None:
    result = _shell(fresh, f'"$@" {words} >/dev/full')
    assert result.returncode == 1 and "No space left on device" in result.stderr
    assert result.stderr.count("error: ") == 1
    assert not {"Traceback", "internal", "Exception ignored"} & set(result.stderr.replace(":", " ").split())


def test_with_every_stream_closed_the_code_is_still_right(fresh: Project) -> None:
    assert _shell(fresh, '"$@" status nope >&- 2>&- <&-').returncode == 6


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("sh", "\udcff"), "not UTF-8"),
        (("run", "pretrain", "--vm", "x y"), "not a VM name: 'x y'"),
        (("sh", "ls", "--vm", "x sh:bHM="), "not a VM name"),
        (("notebook", "--out", "/nonexist/x"), "/nonexist/x"),
        (("notebook", "--out", "/"), "/ is a folder"),
        (("init", "/dev/null/x"), "/dev/null/x"),
    ],
)
def test_bad_words_exit_2_and_are_named(
    fresh: Project, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    answer = in_process(capsys, "-C", str(fresh.root), *words)
    assert answer.code == 2 and told in answer.err and "next: " in answer.err
    assert answer.err.count("\n") == 2


def test_a_file_in_a_folder_that_is_there_can_be_written(tmp_path: Path) -> None:
    notebook.check(tmp_path / "new.ipynb")


def test_the_queue_can_be_cut_to_its_newest_lines(seeded: Seeded, capsys: pytest.CaptureFixture[str]) -> None:
    seeded.take(*(f"run:pretrain epochs={number}" for number in range(1, 5)))
    root = str(seeded.project.root)
    newest = in_process(capsys, "-C", root, "queue", "-n", "2", "--json").data["commands"]
    assert [item["seq"] for item in newest] == [3, 4]
    assert len(in_process(capsys, "-C", root, "queue", "--json").data["commands"]) == 4
