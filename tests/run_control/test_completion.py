"""Completion scripts that their shells can read."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from bridgehead import names
from bridgehead.errors import UsageError
from run_control import completion

WORDS = {"status": ["--json"], "logs": ["--follow", "--tail"], "bundle": ["verify"]}


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_each_script_names_every_command(shell: str) -> None:
    text = completion.script(shell, WORDS)
    assert all(word in text for name, words in WORDS.items() for word in (name, *words))


def test_bash_completes_commands_and_options() -> None:
    probe = "COMP_WORDS=(bridgehead logs --f); COMP_CWORD=2; _bridgehead; echo ${COMPREPLY[@]}"
    bash = shutil.which("bash")
    assert bash is not None
    text = completion.script("bash", WORDS)
    result = subprocess.run([bash, "-c", f"{text}\n{probe}"], capture_output=True, text=True, timeout=20)
    assert (result.stdout.split(), result.stderr) == (["--follow"], "")


def test_another_shell_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError) as caught:
        completion.script("bashh", WORDS)
    assert caught.value.hint == "did you mean bash?"


def test_bash_completes_the_stages_of_the_project_and_no_runs_after_run(tmp_path: Path) -> None:
    (tmp_path / names.PROJECT_FILE).write_text("[stages.pretrain] # x\n[stages.pretrain.config]\n[stages.gate]\n")
    (tmp_path / names.IN_FOLDER / "pretrain-0001-abcdef").mkdir(parents=True)
    text = completion.script("bash", {"run": ["--vm"], "logs": ["--follow"]})

    def offered(command: str) -> list[str]:
        ask = f'COMP_WORDS=(bridgehead {command} pre); COMP_CWORD=2; _bridgehead; echo "${{COMPREPLY[@]}}"'
        done = subprocess.run(
            ["bash", "-c", f"{text}\n{ask}"], cwd=tmp_path, capture_output=True, text=True, timeout=20
        )
        return done.stdout.split()

    assert offered("run") == ["pretrain"]
    assert offered("logs") == ["pretrain", "pretrain-0001-abcdef"]
