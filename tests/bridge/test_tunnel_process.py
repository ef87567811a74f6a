"""A tunnel's program as a watched child, with a small Python program in its place."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bridge.tunnels import redaction
from bridge.tunnels.process import LINE_BYTES, LOG_LINES, Child, Supervisor, Times, environment, how_it_ended
from bridgehead.errors import BridgeDownError
from support import wait_until

TIMES = Times(ask_s=0.01, check_s=0.01, restart_s=10.0, pause_s=0.01, pause_max_s=0.02, stop_s=0.5)
WAIT_S = 100.0
STAY = "import signal; signal.pause()"


def run(code: str, *more: str) -> list[str]:
    return [sys.executable, "-u", "-c", code, *more]


class StandIn:
    """A life of a program that prints its address as `at ADDRESS`."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.found = ""

    def arguments(self) -> list[str]:
        return run(self.code)

    def read(self, line: str) -> bool:
        self.found = line.removeprefix("at ") if line.startswith("at ") else self.found
        return True

    def address(self) -> str:
        return self.found

    def why_ended(self, code: int, lines: Sequence[str]) -> BridgeDownError:
        return BridgeDownError(how_it_ended("it", code, lines))

    def why_silent(self, waited_s: float, lines: Sequence[str]) -> BridgeDownError:
        return BridgeDownError(f"nothing after {waited_s:g} s")


@pytest.fixture
def made() -> Iterator[list[Supervisor]]:
    supervisors: list[Supervisor] = []
    yield supervisors
    for supervisor in supervisors:
        supervisor.stop()


def supervise(made: list[Supervisor], codes: list[str], heard: list[str] | None = None, **times: float) -> Supervisor:
    """One code for each life; the last one for all that follow."""
    left = list(codes)

    def begin() -> StandIn:
        return StandIn(left.pop(0) if len(left) > 1 else left[0])

    report = None if heard is None else heard.append
    supervisor = Supervisor("stand-in", begin, on_new_url=report, times=Times(**{**vars(TIMES), **times}))
    made.append(supervisor)
    supervisor.start()
    return supervisor


def test_one_that_ends_is_started_again_and_its_new_address_is_reported(made: list[Supervisor]) -> None:
    heard: list[str] = []
    supervisor = supervise(made, [f"print('at one'); {STAY}", f"print('at two'); {STAY}"], heard)
    assert supervisor.wait_url(WAIT_S) == "one" and supervisor.up
    os.kill(supervisor.pid, signal.SIGKILL)
    wait_until(lambda: heard == ["two"], WAIT_S)
    assert supervisor.wait_url(0) == "two"
    wait_until(lambda: supervisor.up and not supervisor.trouble, WAIT_S)


def test_the_same_address_is_not_reported_again(made: list[Supervisor]) -> None:
    heard: list[str] = []
    supervisor = supervise(made, [f"print('at one'); {STAY}"], heard)
    supervisor.wait_url(WAIT_S)
    before = supervisor.pid
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: supervisor.pid != before and supervisor.up, WAIT_S)
    assert not heard


def test_an_address_that_changes_within_a_life_is_reported(made: list[Supervisor], tmp_path: Path) -> None:
    heard: list[str] = []
    go = tmp_path / "go"
    code = (
        f"import os, time\nprint('at one')\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nprint('at two')\n"
    )
    supervisor = supervise(made, [code + STAY], heard)
    supervisor.wait_url(WAIT_S)
    go.touch()
    wait_until(lambda: heard == ["two"], WAIT_S)


def test_the_pauses_grow_over_lives_that_end_at_once_and_the_trouble_is_told(
    made: list[Supervisor], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    good = f"print('at one'); {STAY}"
    supervisor = supervise(
        made, [good, "print('no luck')", "print('no luck')", "print('no luck')", good], pause_max_s=0.04
    )
    supervisor.wait_url(WAIT_S)
    os.kill(supervisor.pid, signal.SIGTERM)
    wait_until(lambda: "up again" in caplog.text, WAIT_S)
    pauses = [record.args[2] for record in caplog.records if isinstance(record.args, tuple) and len(record.args) == 3]
    assert pauses == [0.01, 0.02, 0.04, 0.04]
    assert "exit code 0: no luck" in caplog.text


def test_a_life_that_was_up_for_long_makes_the_pause_short_again(
    made: list[Supervisor], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    supervisor = supervise(made, [f"print('at one'); {STAY}"], steady_s=0.0)
    supervisor.wait_url(WAIT_S)
    for ups in (1, 2):
        os.kill(supervisor.pid, signal.SIGKILL)
        wait_until(lambda: caplog.text.count("up again") == ups, WAIT_S)  # noqa: B023
    assert caplog.text.count("next try in 0.01 s") == 2


def test_a_fresh_start_can_be_asked_for(made: list[Supervisor]) -> None:
    heard: list[str] = []
    supervisor = supervise(made, [f"print('at one'); {STAY}", f"print('at two'); {STAY}"], heard)
    supervisor.wait_url(WAIT_S)
    before = supervisor.pid
    supervisor.restart()
    wait_until(lambda: heard == ["two"], WAIT_S)
    assert not _lives(before)
    now = supervisor.pid
    wait_until(lambda: supervisor.up and not supervisor.trouble, WAIT_S)
    assert supervisor.pid == now, "once"


def test_an_owner_that_fails_does_not_end_the_watch(made: list[Supervisor]) -> None:
    calls = []

    def fail(url: str) -> None:
        calls.append(url)
        raise OSError("no room on the disk")

    codes = [f"print('at {name}'); {STAY}" for name in ("one", "two", "three")]
    supervisor = Supervisor("stand-in", lambda: StandIn(codes.pop(0)), on_new_url=fail, times=TIMES)
    made.append(supervisor)
    supervisor.start()
    supervisor.wait_url(WAIT_S)
    os.kill(supervisor.pid, signal.SIGKILL)
    wait_until(lambda: calls == ["two"] and supervisor.up, WAIT_S)
    os.kill(supervisor.pid, signal.SIGKILL)
    wait_until(lambda: calls == ["two", "three"], WAIT_S)


def test_an_early_end_and_silence_are_errors(made: list[Supervisor]) -> None:
    with pytest.raises(BridgeDownError, match="exit code 0 and said nothing"):
        supervise(made, ["pass"]).wait_url(WAIT_S)
    with pytest.raises(BridgeDownError, match=r"nothing after 0\.1 s"):
        supervise(made, [STAY]).wait_url(0.1)
    with pytest.raises(BridgeDownError, match="signal 9"):
        supervise(made, ["import os; os.kill(os.getpid(), 9)"]).wait_url(WAIT_S)


@pytest.mark.parametrize(
    "how",
    [
        "",
        "signal.signal(signal.SIGTERM, lambda *_: seen.append(1) or (len(seen) > 1 and sys.exit()))",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    ],
    ids=["at the first word", "at the second", "at none"],
)
def test_stopping_ends_it_and_what_it_started(made: list[Supervisor], how: str) -> None:
    """A wrapper script whose child does the work."""
    code = (
        "import signal, subprocess, sys\nseen = []\n"
        f"{how}\n"
        f"child = subprocess.Popen([sys.executable, '-c', {STAY!r}])\n"
        "print(f'at {child.pid}')\nwhile True: signal.pause()\n"
    )
    supervisor = supervise(made, [code])
    child = int(supervisor.wait_url(WAIT_S))
    leader = supervisor.pid
    supervisor.stop()
    supervisor.stop()
    for pid in (leader, child):
        wait_until(lambda: not _lives(pid), WAIT_S)  # noqa: B023
    assert not supervisor.up


def test_what_a_dead_one_started_does_not_live_on_beside_the_next(made: list[Supervisor]) -> None:
    code = (
        "import signal, subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {STAY!r}])\n"
        "print(f'at {child.pid}')\nsignal.pause()\n"
    )
    heard: list[str] = []
    supervisor = supervise(made, [code], heard)
    child = int(supervisor.wait_url(WAIT_S))
    os.kill(supervisor.pid, signal.SIGKILL)
    wait_until(lambda: heard, WAIT_S)
    wait_until(lambda: not _lives(child), WAIT_S)


def test_the_log_is_bounded_however_much_it_writes(made: list[Supervisor]) -> None:
    code = f"for n in range(3 * {LOG_LINES}): print(f'{{n}} ' + 'x' * 3000)\nprint('at one')\n{STAY}"
    supervisor = supervise(made, [code])
    supervisor.wait_url(WAIT_S)
    lines = supervisor.log_tail()
    assert len(lines) == LOG_LINES and max(len(line.encode()) for line in lines) <= LINE_BYTES
    assert lines[-1] == "at one"


def test_colours_and_progress_bars_are_read_as_lines() -> None:
    lines: list[str] = []
    child = Child(run(r"print('\x1b[1;32mat\x1b[0m one\r10 %\r20 %\ttail\x07')"), lambda line: True, lines.append)
    wait_until(lambda: child.exit_code() is not None, WAIT_S)
    assert lines == ["at one", "10 %", "20 %\ttail"]


def test_a_program_that_cant_be_run_is_told(tmp_path: Path) -> None:
    (tmp_path / "not-a-program").write_text("x")
    with pytest.raises(BridgeDownError, match="can't be started: Permission denied"):
        Child([str(tmp_path / "not-a-program")], lambda line: True, print)


def test_nothing_of_ours_is_in_its_environment() -> None:
    assert environment({"BRIDGEHEAD_PAIRING": "x", "PATH": "/bin"}) == {"PATH": "/bin"}


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("authtoken: 2abcDEFghi_999", "authtoken: ***"),
        ('ERROR: Your authtoken is "2abcDEFghi999".', 'ERROR: Your authtoken is "***".'),
        ('{"api_key": "abcdef123"}', '{"api_key": "***"}'),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("via http://me:pass@relay:80/x", "via http://***@relay:80/x"),
        ("tried hunter2hunter2 once", "tried *** once"),
        ("url=https://a.example.org", "url=https://a.example.org"),
        ("Authenticated to relay using publickey", "Authenticated to relay using publickey"),
    ],
)
def test_secrets_are_hidden_in_what_it_prints(line: str, shown: str) -> None:
    assert redaction.hide(line, ["hunter2hunter2"]) == shown


def test_secrets_that_it_was_given_are_known() -> None:
    words = ["prog", "--authtoken", "abcdef1", "--api-key=ghijkl2", "--port", "8766", "--pass", "x"]
    assert redaction.in_words(words) == ["abcdef1", "ghijkl2"]
    assert redaction.in_environment({"NGROK_AUTHTOKEN": "secret-9", "PATH": "/usr/bin"}) == ["secret-9"]


def test_a_token_from_the_environment_never_reaches_the_log(
    made: list[Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_TOKEN", "s3cr3t-value")
    supervisor = supervise(made, [f"import os; print('I have', os.environ['STAND_IN_TOKEN']); print('at one'); {STAY}"])
    supervisor.wait_url(WAIT_S)
    assert supervisor.log_tail()[0] == "I have ***"


def _lives(pid: int) -> bool:
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(shown.stdout.strip()) and not shown.stdout.startswith("Z")
