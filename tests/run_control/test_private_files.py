"""Odd things in place of Bridgehead's own files: one line that names the file and what to do, and never a traceback."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_process import in_process

from bridge.keys import KeyStore
from bridge.known_content import CONTENT_FILE, KnownContent
from bridge.part_store import PARTS_FILE, PartStore
from bridge.upload_store import UPLOADS_FILE, UploadStore
from bridgehead import names
from bridgehead.errors import PairingError, VerificationError
from run_control import doctor, locks, private_files
from run_control.checks import FAIL
from run_control.project import Project

ODD: dict[str, Callable[[Path], None]] = {
    "a folder": lambda path: path.mkdir(),
    "a link that leads nowhere": lambda path: path.symlink_to(path.name),
    "no plain file": lambda path: os.mkfifo(path),
}
OWN = ["nonces-a", names.AUDIT_FILE, "audit.head", "up.lock", "bridge.lock", names.BRIDGE_RECORD, names.KEYS_FILE]


@pytest.mark.parametrize("name", [*OWN, UPLOADS_FILE, PARTS_FILE, CONTENT_FILE, names.LEDGER_FILE])
@pytest.mark.parametrize("what", ODD)
def test_up_and_doctor_name_what_is_no_file(
    fresh: Project, capsys: pytest.CaptureFixture[str], name: str, what: str
) -> None:
    fresh.make_private()
    path = fresh.private / name
    ODD[what](path)
    answer = in_process(capsys, "-C", str(fresh.root), "up", "--port", "0")
    assert answer.code == 11 and f"{path} is {what}" in answer.err and "next: move it away" in answer.err
    found = next(check for check in doctor.examine(fresh.root) if check.name == "keys")
    assert found.state == FAIL and str(path) in found.text


def test_links_to_plain_files_are_fine(fresh: Project) -> None:
    fresh.make_private()
    kept = fresh.root / "kept"
    kept.write_text("")
    (fresh.private / names.AUDIT_FILE).symlink_to(kept)
    assert private_files.odd_one(fresh) == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (names.AUDIT_FILE, "keys new"),
        (names.AUDIT_FILE, "audit"),
        (names.AUDIT_FILE, "audit --verify"),
        (names.KEYS_FILE, "keys list"),
        (f"{names.KEYS_FILE}.lock", "keys new"),
        ("up.lock", "down"),
        (names.BRIDGE_RECORD, "down"),
    ],
)
def test_each_command_that_meets_a_folder_names_it_with_a_next_step(
    fresh: Project, capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    fresh.make_private()
    path = fresh.private / name
    path.mkdir()
    answer = in_process(capsys, "-C", str(fresh.root), *words.split())
    assert answer.code not in (0, 2) and str(path) in answer.err and "next: " in answer.err
    assert answer.err.count("error: ") == 1 and "internal" not in answer.err


def _keys(**member: object) -> str:
    key = {"key": "A" * 43 + "=", "made": 1.0, **member}
    return json.dumps({"v": 2, "current": "k-1", "keys": {"k-1": key}})


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"v":' + "[" * 100_000, _keys(made=1e300), _keys(until=-5.0), _keys(ended="soon"), "7", ""]
)
def test_a_damaged_keys_file_is_named(fresh: Project, capsys: pytest.CaptureFixture[str], text: str) -> None:
    fresh.make_private()
    path = fresh.private / names.KEYS_FILE
    path.write_text(text)
    with pytest.raises(PairingError, match=r"keys\.json is damaged"):
        KeyStore(path)
    answer = in_process(capsys, "-C", str(fresh.root), "keys", "list")
    assert answer.code == 4 and str(path) in answer.err and "internal" not in answer.err


def test_a_sound_keys_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / names.KEYS_FILE
    path.write_text(_keys())
    assert KeyStore(path).current()[0] == "k-1"


def test_a_lock_file_with_a_nest_of_json_describes_nobody(tmp_path: Path) -> None:
    path = tmp_path / "bridge.lock"
    path.write_text(" " + "[" * 100_000)
    assert locks.described(path) is None


def _open_database(folder: Path, name: str) -> None:
    if name == UPLOADS_FILE:
        UploadStore(folder / name, folder).close()
        return
    known = KnownContent(folder / CONTENT_FILE, folder)
    if name == PARTS_FILE:
        with contextlib.closing(known):
            PartStore(folder / name, folder, known).close()
    known.close()


@pytest.mark.parametrize("name", [UPLOADS_FILE, PARTS_FILE, CONTENT_FILE])
def test_a_database_of_another_version_is_refused_and_stays_as_it_is(tmp_path: Path, name: str) -> None:
    _open_database(tmp_path, name)
    _open_database(tmp_path, name)
    path = tmp_path / name
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone()[0] == 1
        db.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    with pytest.raises(VerificationError, match="is of version 99") as caught:
        _open_database(tmp_path, name)
    assert str(path) in caught.value.message and "update Bridgehead" in caught.value.hint
    assert path.read_bytes() == before
