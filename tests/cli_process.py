"""The command line as a person meets it: a process, its exit code, what it says where."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from run_control import cli

ROOT = Path(__file__).parents[1]
# Measured with typer: without these a CI's own variables force colours and widths into the output.
ENVIRONMENT = {"TERM": "dumb", "COLUMNS": "100", "_TYPER_FORCE_DISABLE_TERMINAL": "1"}


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object on stdout."""
        answer = json.loads(self.out)
        assert isinstance(answer, dict)
        return answer

    @property
    def data(self) -> dict[str, Any]:
        assert self.json["ok"], self.json
        data = self.json["data"]
        assert isinstance(data, dict)
        return data


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "run_control.cli", *words]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", **more}


def bridgehead(*words: str, cwd: Path, timeout_s: float = 60, **more: str) -> Answer:
    """Run `bridgehead WORDS` in `cwd` to its end."""
    result = subprocess.run(
        command(*words),
        cwd=cwd,
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    return Answer(result.returncode, result.stdout, result.stderr)


def in_process(capsys: pytest.CaptureFixture[str], *words: str) -> Answer:
    """The same without a process: for what is not about exit codes. It takes a tenth of the time."""
    capsys.readouterr()
    code = cli.main(words)
    captured = capsys.readouterr()
    return Answer(code, captured.out, captured.err)


def heeds_ctrl_c() -> None:
    """For `preexec_fn`: a suite that runs in the background of a shell ignores SIGINT, and so would its children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
