"""The campaign as `make chaos` starts it: a few fixed rounds hold, a broken copy is noticed, Ctrl-C leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bridgehead import processes
from chaos.mutants import MUTANTS
from support import wait_until

ROOT = Path(__file__).parents[2]
SUMMARY = [
    "rounds", "faults", "kinds", "finished", "bitwise_equal", "commands_lost", "commands_doubled", "log_bytes_lost",
    "false_confirmed", "orphans",
]  # fmt: skip
AT_ONCE = "ema"  # the mutant that the default tests show
Answer = tuple[int, list[dict[str, Any]], str]
RUN_TAG = "CHAOS_TEST"  # inherited by all that a campaign starts

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="VMs are Linux")


def _start(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "chaos", *words],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path), RUN_TAG: str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _answer(process: subprocess.Popen[str]) -> Answer:
    """Exit code, the JSON lines on stdout, and stderr."""
    try:
        output, errors = process.communicate(timeout=400)
    except BaseException:
        process.terminate()
        process.communicate(timeout=100)
        raise
    return process.returncode, [json.loads(line) for line in output.splitlines()], errors


def _left(tmp_path: Path) -> list[int]:
    return processes.tagged(RUN_TAG, str(tmp_path))


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Answer]]:
    """A campaign against a broken copy, started early: it is played while another test waits for its own rounds."""
    process = _start(tmp_path_factory.mktemp("broken"), "--mutant", AT_ONCE, "--seed", "11")
    yield lambda: _answer(process)
    process.terminate()
    process.communicate(timeout=100)


@pytest.mark.timeout(450)
def test_a_fixed_few_rounds_hold(tmp_path: Path, broken: object) -> None:
    words = ["--rounds", "2", "--seed", "11", "--jobs", "2", "--second", "0", "--kinds", "kill-stage", "kill-bridge"]
    code, lines, errors = _answer(_start(tmp_path, *words))
    assert code == 0, (lines, errors)
    *rounds, summary = lines
    assert list(summary) == SUMMARY
    assert (summary["rounds"], summary["kinds"], summary["finished"], summary["bitwise_equal"]) == (2, 2, 2, 2)
    assert all(line["ok"] and line["recover_s"] is not None for line in rounds)
    assert _left(tmp_path) == []
    assert list(tmp_path.glob("bridgehead-chaos-*")) == []


@pytest.mark.timeout(450)
def test_a_broken_copy_is_noticed(broken: Callable[[], Answer]) -> None:
    code, lines, errors = broken()
    assert code == 1, (lines, errors)
    assert any(line.get("why") for line in lines)


@pytest.mark.skipif(not os.environ.get("CHAOS_ALL"), reason="minutes: CHAOS_ALL=1, or python -m chaos --mutants")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name in MUTANTS if name != AT_ONCE])
def test_each_other_broken_copy_is_noticed_too(tmp_path: Path, name: str) -> None:
    code, lines, errors = _answer(_start(tmp_path, "--mutant", name, "--seed", "11"))
    assert code == 1, (lines, errors)
    assert any(line.get("why") for line in lines)


@pytest.mark.timeout(300)
def test_an_interrupt_in_the_middle_of_a_round_leaves_nothing(tmp_path: Path) -> None:
    process = _start(tmp_path, "--rounds", "1", "--seed", "11", "--kinds", "stop-stage")
    try:
        wait_until(lambda: list(tmp_path.glob("*/rounds/*/laptop/in/*/log")), 200, what="a run")
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=100)
    assert process.returncode == 130
    assert [processes.command_line(pid) for pid in _left(tmp_path)] == []
    assert list(tmp_path.glob("bridgehead-chaos-*")) == []
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


def test_an_unknown_kind_and_an_unknown_mutant_are_told_in_one_line(tmp_path: Path) -> None:
    for words in (["--kinds", "no-such-kind"], ["--mutant", "no-such-mutant"]):
        code, lines, errors = _answer(_start(tmp_path, "--rounds", "1", *words))
        assert code not in (0, 1)
        assert lines == []
        assert len(errors.strip().splitlines()) == 1
        assert "no such" in errors or "no mutant" in errors
