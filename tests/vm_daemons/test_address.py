"""Which announcements a VM follows, what it refuses, and what it says while nobody answers."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from store_support import Faulty

from bridgehead import files, names
from bridgehead.announcement import Announcement
from bridgehead.errors import StoreGone
from bridgehead.pairing import Pairing
from support import wait_until
from vm_daemons import address, cell, daemons
from vm_daemons.address import Addresses, Patience, Silence
from vm_daemons.home import VmHome
from vm_daemons.storage.folder_store import FolderStore
from vm_support import KEY, make_run, paired_home

OLD, NEW, OTHER = "https://old.example", "https://new.example", "https://other.example"


@pytest.fixture
def home(tmp_path: Path) -> VmHome:
    home = paired_home(tmp_path / "vm")
    paste(home, OLD, seq=5)
    return home


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def addresses(home: VmHome, said: list[str]) -> Addresses:
    return Addresses(home, said.append)


def paste(home: VmHome, url: str, seq: int) -> None:
    """What the cell does with a code."""
    home.save_pairing(Pairing(url, "test-key", KEY, "0" * 64, seq=seq))


def signed(url: str, seq: int, *, project: str = "demo", key: bytes = KEY) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(Announcement(project, url, seq, 1.0).signed(key)))
    return document


def leave(drive: Path, document: object, project: str = "demo") -> Path:
    """What the laptop does in the store."""
    path = drive / project / names.STORE_ADDRESS / "test-key.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(json.dumps(document).encode())
    return path


# --- which one counts ------------------------------------------------------------------------------------


def test_a_newer_one_is_followed_also_by_a_process_that_starts_later(home: VmHome, addresses: Addresses) -> None:
    told = addresses.take(signed(NEW, 6), "the store")
    assert told is not None and told.host == "new.example"
    later = VmHome(home.root).pairing()
    assert (later.url, later.seq, later.key) == (NEW, 6, KEY)
    assert (home.state / names.ADDRESS).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (signed(OTHER, 4), "other.example is older than old.example"),
        (signed(OTHER, 5), "other.example is older than old.example"),
        (signed(OTHER, 9, key=bytes(32)), "signature is wrong"),
        (signed(OTHER, 9, project="another"), "of another project"),
        (signed("file:///etc/passwd", 9), "no usable one"),
        ({**signed(OTHER, 9), "body": signed(OTHER, 10)["body"]}, "signature is wrong"),
        ([], "signed address"),
        (None, "signed address"),
    ],
)
def test_what_is_old_forged_foreign_or_unsafe_is_refused_and_said_once(
    home: VmHome, addresses: Addresses, said: list[str], document: object, why: str
) -> None:
    for _ in range(3):
        assert addresses.take(document, "the store") is None
    assert home.pairing().url == OLD and not (home.state / names.ADDRESS).exists()
    assert len(said) == 1 and why in said[0] and why in addresses.note


def test_an_older_one_is_refused_after_a_newer_one_was_followed(
    home: VmHome, addresses: Addresses, said: list[str]
) -> None:
    addresses.take(signed(NEW, 7), "the bridge itself")
    again = Addresses(home, said.append)  # a daemon that was started anew
    assert again.take(signed(OTHER, 6), "the store") is None
    assert home.pairing().url == NEW and "other.example is older than new.example" in said[-1]


def test_the_same_address_under_a_new_number_is_nothing_to_talk_about(
    home: VmHome, addresses: Addresses, said: list[str]
) -> None:
    addresses.take(signed(OLD, 8), "the store")
    assert home.pairing().seq == 8 and said == []


def test_a_newer_code_beats_an_announcement_and_an_older_code_does_not(home: VmHome, addresses: Addresses) -> None:
    addresses.take(signed(NEW, 7), "the store")
    paste(home, OTHER, seq=8)
    assert home.pairing().url == OTHER, "the cell ran again with the newest code"
    paste(home, OLD, seq=5)
    assert home.pairing().url == NEW, "an open tab ran its old code again"
    paste(home, OLD, seq=0)
    assert home.pairing().url == NEW, "a code from before codes had numbers"


def test_an_open_tab_that_runs_its_old_code_again_leads_nowhere_back(home: VmHome) -> None:
    old = home.pairing()
    newer = dataclasses.replace(old, url=OTHER, seq=9)
    assert address.newest(home, newer) == newer
    home.save_pairing(newer)
    assert address.newest(home, old) == newer
    stranger = dataclasses.replace(old, key_id="another", key=bytes(32))
    assert address.newest(home, stranger) == stranger, "another laptop's number says nothing"


def test_of_two_processes_that_hear_at_once_the_higher_number_wins(home: VmHome) -> None:
    def hear(numbers: range) -> None:
        mine = Addresses(home, lambda _: None)
        for seq in numbers:
            mine.take(signed(f"https://host-{seq}.example", seq), "the store")

    threads = [threading.Thread(target=hear, args=(range(begin, 60, 2),)) for begin in (10, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert home.pairing().url == "https://host-59.example"


def test_neither_what_it_says_nor_what_it_notes_holds_the_key(
    home: VmHome, addresses: Addresses, said: list[str]
) -> None:
    addresses.take(signed(NEW, 7), "the store")
    addresses.take(signed(OTHER, 6), "the store")
    text = " ".join([*said, addresses.note])
    assert home.pairing().encode() not in text and "https" not in text and str(signed(NEW, 7)["sig"]) not in text


# --- in the store ----------------------------------------------------------------------------------------


def test_it_is_found_in_the_store(home: VmHome, addresses: Addresses, drive: Path, said: list[str]) -> None:
    store = FolderStore(drive, proves=False)
    assert addresses.look([store]) is None and said == []
    leave(drive, signed(NEW, 7))
    assert addresses.look([store]) is not None and home.pairing().url == NEW
    assert said == ["the bridge moved to new.example (told by the store)"]
    assert addresses.look([store]) is None and len(said) == 1


def test_a_vm_that_knows_no_project_yet_finds_it_by_its_key(home: VmHome, addresses: Addresses, drive: Path) -> None:
    home.update_record(project="")
    leave(drive, signed(OTHER, 9, project="aaa", key=bytes(32)), "aaa")
    leave(drive, signed(NEW, 7))
    assert addresses.look([FolderStore(drive, proves=False)]) is not None and home.pairing().url == NEW


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 4000, b"x" * 5000, b"\xff\xfe"])
def test_garbage_in_the_store_is_refused_in_one_line(
    home: VmHome, addresses: Addresses, drive: Path, said: list[str], data: bytes
) -> None:
    leave(drive, {}).write_bytes(data)
    for _ in range(2):
        assert addresses.look([FolderStore(drive, proves=False)]) is None
    assert home.pairing().url == OLD and len(said) == 1 and "refused" in said[0]


def test_one_path_to_the_store_that_fails_does_not_hide_the_other(
    home: VmHome, addresses: Addresses, drive: Path
) -> None:
    dead = Faulty(drive)

    def fail(method: str, key: str) -> None:
        raise StoreGone("the mount is dead")

    dead.before = fail
    with pytest.raises(StoreGone):
        addresses.look([dead, FolderStore(drive, proves=False)])
    leave(drive, signed(NEW, 7))
    assert addresses.look([dead, FolderStore(drive, proves=False)]) is not None
    assert home.pairing().url == NEW


# --- waiting ---------------------------------------------------------------------------------------------


def test_a_pause_ends_when_the_bridge_has_moved(home: VmHome, addresses: Addresses) -> None:
    patience, over = Patience(home), threading.Event()

    def pause() -> None:
        patience.wait(threading.Event(), 600.0)
        over.set()

    thread = threading.Thread(target=pause, daemon=True)
    thread.start()
    assert not over.wait(0.1)
    addresses.take(signed(NEW, 7), "the store")
    assert over.wait(100)
    thread.join(100)


def test_a_move_during_the_request_before_ends_the_pause_too(home: VmHome, addresses: Addresses) -> None:
    patience = Patience(home)
    addresses.take(signed(NEW, 7), "the store")
    patience.wait(threading.Event(), 600.0)


def test_a_pause_ends_with_its_event(home: VmHome) -> None:
    event = threading.Event()
    event.set()
    Patience(home).wait(event, 600.0)


def test_silence_counts_by_our_own_clock_and_ends_with_an_answer(home: VmHome) -> None:
    now = 100.0
    silence = Silence(home, lambda: now)
    now = 130.0
    assert silence.lasts_s() == 30.0
    (home.state / daemons.CONTACT_MARK).touch()
    assert silence.lasts_s() == 0.0
    os.utime(home.state / daemons.CONTACT_MARK, (0.0, 0.0))  # the time of day jumped
    now = 140.0
    assert silence.lasts_s() == 0.0
    now = 145.0
    assert silence.lasts_s() == 5.0


def _silent(home: VmHome, seconds: float) -> None:
    mark = home.state / daemons.CONTACT_MARK
    mark.touch()
    os.utime(mark, (time.time() - seconds,) * 2)


def test_while_the_bridge_answers_nothing_is_waited_for(home: VmHome) -> None:
    _silent(home, 5)
    assert address.waits(home) == "" and "laptop answered" in cell.summary(home)


def test_the_minute_line_says_since_when_nobody_answers_and_what_is_done(home: VmHome, drive: Path) -> None:
    home.update_record(store=str(drive))
    _silent(home, 3600)
    since = time.strftime("%H:%M", time.localtime((home.state / daemons.CONTACT_MARK).stat().st_mtime))
    told = f"waits for the laptop: no answer from old.example since {since}; looks into the store for a new address"
    assert f"· {told} every 15 s · up " in cell.summary(home)


def test_without_a_store_it_says_that_the_newest_code_is_needed(home: VmHome) -> None:
    _silent(home, 3600)
    assert "there is no store to look into" in cell.summary(home) and "newest code" in cell.summary(home)


def test_a_run_goes_on_and_its_line_in_the_cell_does_not_say_it_again(home: VmHome, drive: Path) -> None:
    home.update_record(store=str(drive))
    run_dir = make_run(home, "pretrain-0001-abcdef")
    _silent(home, 3600)
    (run_dir / names.STATUS_LINE).write_text(f"pretrain-0001-abcdef · running · {address.waits(home)}\n")
    line = cell.summary(home)
    assert line.count("waits for the laptop") == 1 and "pretrain-0001-abcdef · running" in line


def test_the_cell_says_where_the_bridge_moved_to_and_only_when_it_moves(
    home: VmHome, addresses: Addresses, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(daemons, "ensure", lambda _: dict.fromkeys(names.DAEMONS, "running"))
    heart = cell.Heart(home)
    heart.turn()
    addresses.take(signed(NEW, 7), "the store")
    for _ in range(3):
        heart.turn()
    said = capsys.readouterr().out
    assert said.count("the bridge moved to new.example\n") == 1 and "moved to old" not in said


# --- the uploader ----------------------------------------------------------------------------------------


def test_the_uploader_looks_while_the_bridge_is_silent_and_tells_what_it_refused(
    home: VmHome, drive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vm_daemons import uploader

    for name in ("STATE_EVERY_S", "SILENCE_EVERY_S", "LOOK_EVERY_S", "SILENT_AFTER_S"):
        monkeypatch.setattr(uploader, name, 0.05)
    home.update_record(store=str(drive))
    home.journal.touch()
    leave(drive, signed(OTHER, 9, key=bytes(32)))
    running = uploader.Uploader(home)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    try:
        state = home.state / names.VM_STORE_STATE
        wait_until(lambda: "signature is wrong" in str(files.read_json(state)), 20, what="the refusal in store.json")
        assert home.pairing().url == OLD
        leave(drive, signed(NEW, 7))
        wait_until(lambda: home.pairing().url == NEW, 20, what="the new address")
        wait_until(lambda: (files.read_json(state) or {}).get("address_note") == "", 20, what="the end of the note")
    finally:
        running.stop()
        thread.join(100)
