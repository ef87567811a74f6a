"""`status --watch` as a process: on a pipe, as JSON lines, and on a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_process import command, environment, heeds_ctrl_c
from project_support import Seeded

from bridgehead.names import Ack, RunState
from run_control import status_now
from support import wait_until

DEADLINE_S = 60.0  # one process start on a busy machine


class Watch:
    """A started `status --watch` and what it has said on stdout so far."""

    def __init__(self, process: subprocess.Popen[bytes], out: int) -> None:
        self.process = process
        self._chunks: list[bytes] = []
        self._reader = threading.Thread(target=self._read, args=(out,), daemon=True)
        self._reader.start()

    def _read(self, out: int) -> None:
        with contextlib.suppress(OSError):  # a terminal whose other end has closed
            while chunk := os.read(out, 65536):
                self._chunks.append(chunk)

    @property
    def text(self) -> str:
        return b"".join(self._chunks).decode()

    def await_text(self, *parts: str) -> None:
        wait_until(lambda: all(part in self.text for part in parts), DEADLINE_S, what=f"{parts} in {self.text!r}")

    def interrupted(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(DEADLINE_S)


@contextlib.contextmanager
def _watching(root: Path, *words: str, terminal: bool = False) -> Iterator[Watch]:
    ours, theirs = pty.openpty() if terminal else os.pipe()
    env = environment(TERM="xterm-256color", COLUMNS="160", LINES="40") if terminal else environment()
    env.pop("_TYPER_FORCE_DISABLE_TERMINAL" if terminal else "", None)
    words = ("-C", str(root), "status", "--watch", *words)
    process = subprocess.Popen(
        command(*words),
        stdin=theirs if terminal else subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env=env,
        preexec_fn=heeds_ctrl_c,
    )
    os.close(theirs)
    try:
        yield Watch(process, ours)
    finally:
        process.kill()
        process.communicate()
        os.close(ours)


def test_a_pipe_gets_a_block_per_change_and_ctrl_c_only_detaches(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    with _watching(seeded.project.root) as watch:
        watch.await_text(run_id, "queued")
        seeded.ack(run_id, Ack.STARTED)
        watch.await_text("running")
        assert watch.text.count("--- ") == 2 and "\x1b" not in watch.text
        assert watch.interrupted() == 130
        assert watch.process.stderr is not None
        told = watch.process.stderr.read().decode()
    assert "goes on. follow again: bridgehead status --watch" in told and "Traceback" not in told


def test_json_is_a_line_per_change_with_the_fields_of_status(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.ack(run_id, Ack.STARTED)
    with _watching(seeded.project.root, "--json") as watch:
        wait_until(lambda: watch.text.count("\n") == 1, DEADLINE_S)
        seeded.status(run_id, step=9)
        wait_until(lambda: watch.text.count("\n") == 2, DEADLINE_S)
    first, second = (json.loads(line) for line in watch.text.splitlines())
    assert (first["v"], first["seq"], second["seq"]) == (1, 1, 2)
    assert first["runs"][0]["run_id"] == run_id and second["runs"][0]["step"] == 9
    assert {"bridge", "vms", "alarms"} <= set(first)


def test_of_one_run_it_ends_with_the_run(seeded: Seeded) -> None:
    run_id, other = seeded.take("run:pretrain", "run:pretrain epochs=2")
    with _watching(seeded.project.root, "--exit-status", run_id) as watch:
        watch.await_text(run_id)
        seeded.finish(run_id, RunState.FAILED, exit_code=1)
        assert watch.process.wait(DEADLINE_S) == 3
        watch.await_text("failed")
    assert other not in watch.text


@pytest.mark.skipif(sys.platform == "win32", reason="a pseudo-terminal is POSIX's")
def test_a_terminal_gets_its_screen_back_and_keeps_the_last_look(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    with _watching(seeded.project.root, terminal=True) as watch:
        watch.await_text("\x1b[?1049h", run_id, "queued", "Ctrl-C leaves")
        seeded.ack(run_id, Ack.STARTED)
        watch.await_text("running")
        assert watch.interrupted() == 130
        watch.await_text("\x1b[?1049l")
        wait_until(lambda: run_id in watch.text.rpartition("\x1b[?1049l")[2], DEADLINE_S)


def test_what_only_grows_older_is_no_change(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.ack(run_id, Ack.STARTED)
    seeded.status(run_id)
    first, second = status_now.look(seeded.project), status_now.look(seeded.project)
    assert first.essence() == second.essence()
    seeded.status(run_id, step=8)
    later = status_now.look(seeded.project)
    assert later.essence() != first.essence() and later.essence(pace=False) == first.essence(pace=False)


def test_a_checkpoint_that_climbs_is_a_change_at_any_pace(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.ack(run_id, Ack.STARTED)
    seeded.status(run_id)
    before = status_now.look(seeded.project).essence(pace=False)
    info = {"step": 7, "level": "confirmed", "at": 1_000_000.0, "size_bytes": 1, "saved_at": 1_000_000.0}
    seeded.status(run_id, levels={"confirmed": info})
    assert status_now.look(seeded.project).essence(pace=False) != before
