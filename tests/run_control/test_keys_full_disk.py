"""Key commands on a full disk: done or not done, said in words with a next step, and never half of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from cli_process import Answer, in_process

from bridge import audit, key_records
from bridge.audit import Audit
from bridge.keys import KeyStore
from bridgehead import files, names
from run_control import bridge_control, key_control, notebook
from run_control.project import Project

COMMANDS = ["keys new --name other", "keys revoke first", "keys rotate first"]
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def project(fresh: Project) -> Project:
    fresh.make_private()
    key_control.keys(fresh).make("first")
    return fresh


def _say(capsys: pytest.CaptureFixture[str], project: Project, words: str) -> Answer:
    return in_process(capsys, "-C", str(project.root), *words.split())


def _state(project: Project) -> list[key_records.PairingKey]:
    return KeyStore(project.private / names.KEYS_FILE).all()


def _fill(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Only that file finds the disk full."""
    write_json, write_all = files.write_json, audit.write_all

    def no_json(path: Path, value: object, *, mode: int = 0o644) -> None:
        if path.name == names.KEYS_FILE:
            raise FULL
        write_json(path, value, mode=mode)

    def half_a_line(fd: int, data: bytes) -> None:
        write_all(fd, data[:10])
        raise FULL

    if what == names.KEYS_FILE:
        monkeypatch.setattr(files, "write_json", no_json)
    else:
        monkeypatch.setattr(audit, "write_all", half_a_line)


@pytest.mark.parametrize("what", [names.KEYS_FILE, names.AUDIT_FILE])
@pytest.mark.parametrize("words", COMMANDS)
def test_what_can_not_be_written_changes_no_key(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str, what: str
) -> None:
    before = _state(project)
    with monkeypatch.context() as patched:
        _fill(patched, what)
        answer = _say(capsys, project, words)
    assert answer.code == 1 and "no key was changed" in answer.err and "next: the disk is full: make room" in answer.err
    assert _state(project) == before
    assert Audit(project.private).verify().problems == []
    lines = list(Audit(project.private).read())
    undone = [line for line in lines if line["event"] == "key change failed"]
    assert bool(undone) is (what == names.KEYS_FILE)
    again = _say(capsys, project, words)
    assert again.code == 0 and _state(project) != before


@pytest.mark.parametrize(
    ("words", "again"),
    [
        ("keys new --name other", "bridgehead notebook --key k-"),
        ("keys rotate first", "bridgehead notebook --key k-"),
        ("keys rotate", "bridgehead notebook\n"),
        ("keys revoke", "bridgehead notebook\n"),
    ],
)
def test_a_notebook_that_can_not_be_written_is_told_apart_from_the_key_that_is_changed(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str, again: str
) -> None:
    def full(*_: object) -> None:
        raise FULL

    live = bridge_control.LiveBridge(1, 1, 8766, "http://127.0.0.1:8766", "0" * 64, "none")
    monkeypatch.setattr(bridge_control, "find", lambda found: live)
    monkeypatch.setattr(notebook, "write", full)
    current = KeyStore(project.private / names.KEYS_FILE).current()[0]
    before = _state(project)
    answer = _say(capsys, project, f"{words} {current}" if words == "keys revoke" else words)
    assert answer.code == 1 and "the key is changed, but its notebook can't be written" in answer.err
    assert again in answer.err and answer.out and _state(project) != before


def test_what_goes_wrong_after_the_rename_is_no_half_state(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_json = files.write_json

    def late(path: Path, value: object, *, mode: int = 0o644) -> None:
        write_json(path, value, mode=mode)
        if path.name == names.KEYS_FILE:
            raise FULL

    monkeypatch.setattr(files, "write_json", late)
    answer = _say(capsys, project, "keys new --name other --json")
    assert answer.code == 0 and answer.data["name"] == "other"
