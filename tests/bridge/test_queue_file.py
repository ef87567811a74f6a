"""queue.txt as people edit it: what is taken, when, and that nothing is ever taken twice."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bridge import queue_diff, queue_file
from bridge.ledger import Ledger
from bridge.project import ProjectView
from bridge.queue_diff import compare
from bridge.queue_file import QueueReader, QueueWatcher
from bridgehead import names
from bridgehead.errors import ProjectError
from bridgehead.records import StageSpec
from support import wait_until

PROJECT = ProjectView("watch", {"pretrain": StageSpec("pretrain", "bridgehead:pretrain")})


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / "ledger")
    yield ledger
    ledger.close()


class Editor:
    """Gives the reader one version of the file after another, without a thread and without time."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.project: ProjectView | None = PROJECT
        self.reader = QueueReader(ledger, self._load, names.QUEUE_FILE)

    def save(self, content: str | bytes | None, *, settled: bool = True) -> bool:
        data = content.encode() if isinstance(content, str) else content
        return self.reader.process(data, settled=settled)

    def restart(self) -> None:
        self.reader = QueueReader(self.ledger, self._load, names.QUEUE_FILE)

    def taken(self) -> list[str]:
        return [row.text for row in self.ledger.commands()]

    def notes(self) -> list[str]:
        return [note.text for note in self.ledger.notes()]

    def _load(self) -> ProjectView:
        if self.project is None:
            raise ProjectError("bridgehead.toml:3: unknown key 'stagse'")
        return self.project


@pytest.fixture
def editor(ledger: Ledger) -> Editor:
    return Editor(ledger)


# --- what counts as a line -----------------------------------------------------------------------


def test_blank_lines_and_comments_are_free_and_line_numbers_are_the_files(editor: Editor) -> None:
    editor.save("# a plan\n\nsync:\n   \n  sync:  \n")
    editor.save("# a plan\n\nsync:\n   \n  stop:x  \n")
    assert editor.taken() == ["sync:", "sync:"]
    assert editor.ledger.notes()[-1].line_number == 5


@pytest.mark.parametrize("content", [b"\xef\xbb\xbfsync:\nrun:pretrain\n", b"sync:\r\nrun:pretrain\r\n"])
def test_a_bom_and_crlf_change_nothing(editor: Editor, content: bytes) -> None:
    editor.save("sync:\nrun:pretrain\n")
    editor.save(content)
    assert editor.taken() == ["sync:", "run:pretrain"] and editor.notes() == []


@pytest.mark.parametrize("garbage", [b"\0\0\0\0", b"\xff\xfe r u n", b"run:pretrain a=\xff", bytes(range(11, 32))])
def test_garbage_is_rejected_and_the_next_line_goes_on(editor: Editor, garbage: bytes) -> None:
    editor.save(garbage + b"\nrun:pretrain\n")
    assert [row.state for row in editor.ledger.commands()] == ["rejected", "queued"]


def test_a_line_without_newline_waits_until_it_has_been_still(editor: Editor) -> None:
    assert editor.save("sync:\nrun:pre", settled=False)
    assert editor.taken() == ["sync:"]
    assert not editor.save("sync:\nrun:pretrain", settled=True)
    assert editor.taken() == ["sync:", "run:pretrain"]
    editor.save("sync:\nrun:pretrain\n")
    assert editor.taken() == ["sync:", "run:pretrain"] and editor.notes() == []


# --- never twice ---------------------------------------------------------------------------------


def test_the_same_text_on_a_new_line_runs_again(editor: Editor) -> None:
    editor.save("run:pretrain\n")
    editor.save("run:pretrain\nrun:pretrain\n")
    assert editor.taken() == ["run:pretrain"] * 2


def test_a_line_inserted_at_the_top_is_the_only_new_one(editor: Editor) -> None:
    editor.save("run:pretrain\nsync:\n")
    editor.save("stop:pretrain\nrun:pretrain\nsync:\n", settled=False)
    assert editor.taken() == ["run:pretrain", "sync:", "stop:pretrain"]


def test_an_edited_line_is_noted_and_not_run(editor: Editor) -> None:
    editor.save("sync:\nrun:pretrain\nsync:\n")
    editor.save("sync:\nrun:pretrain epochs=5\nsync:\n")
    assert editor.taken() == ["sync:", "run:pretrain", "sync:"]
    assert editor.notes() == [
        "line 2 was taken as #2 before it was edited; that changes nothing. Add a new line to run something."
    ]
    editor.save("sync:\nrun:pretrain epochs=5\nsync:\n")
    editor.restart()
    editor.save("sync:\nrun:pretrain epochs=5\nsync:\n")
    assert len(editor.notes()) == 1 and len(editor.taken()) == 3


def test_an_edit_and_new_lines_in_one_save_are_told_apart(editor: Editor) -> None:
    editor.save("run:pretrain epochs=5\n")
    editor.save("stop:pretrain\nrun:pretrain epochs=50\nsync:\n")
    assert editor.taken() == ["run:pretrain epochs=5", "stop:pretrain", "sync:"]
    assert len(editor.notes()) == 1


def test_a_removed_line_is_noted_and_an_emptied_file_starts_anew(editor: Editor) -> None:
    editor.save("sync:\nrun:pretrain\n")
    editor.save("sync:\n")
    assert editor.notes() == ["the line taken as #2 was removed; that changes nothing"]
    editor.save("")
    editor.save("run:pretrain\n")
    assert editor.taken() == ["sync:", "run:pretrain", "run:pretrain"]


def test_moved_lines_are_the_same_lines(editor: Editor) -> None:
    editor.save("run:pretrain\nsync:\nstop:pretrain\n")
    editor.save("stop:pretrain\nrun:pretrain\nsync:\n")
    assert len(editor.taken()) == 3 and editor.notes() == []


def test_an_editor_caught_between_emptying_and_writing_takes_nothing_twice(editor: Editor) -> None:
    editor.save("run:pretrain\nsync:\n")
    for half in ("", "run:pre", "run:pretrain\n", "run:pretrain\nsy"):
        editor.save(half, settled=False)
    editor.save("run:pretrain\nsync:\nstop:pretrain\n", settled=False)
    assert editor.taken() == ["run:pretrain", "sync:", "stop:pretrain"] and editor.notes() == []


def test_a_missing_file_changes_nothing_and_is_noted_once(editor: Editor) -> None:
    editor.save("run:pretrain\n")
    editor.save(None)
    editor.save(None)
    editor.save("run:pretrain\n")
    assert editor.taken() == ["run:pretrain"]
    assert len(editor.notes()) == 1 and "missing" in editor.notes()[0]


def test_a_new_line_in_a_file_that_was_missing_is_no_edit_of_an_old_one(editor: Editor) -> None:
    editor.save("sync:\nrun:pretrain epochs=25\n")
    editor.save(None)
    editor.save("run:pretrain epochs=26\n")
    assert editor.taken() == ["sync:", "run:pretrain epochs=25", "run:pretrain epochs=26"]
    assert not any("before it was edited" in note for note in editor.notes())
    editor.save("run:pretrain epochs=27\n")
    assert len(editor.taken()) == 3 and any("before it was edited" in note for note in editor.notes())


@pytest.mark.parametrize("meanwhile", ["", "run:pretrain zz=1\n"])
def test_lines_that_went_away_together_and_come_back_are_not_run_again(editor: Editor, meanwhile: str) -> None:
    whole = "sync:\nrun:pretrain\nstop:pretrain\n"
    editor.save(whole)
    editor.save(meanwhile)
    before = editor.taken()
    editor.save(whole)
    assert editor.taken() == before
    assert "lines 1 to 3 were taken before, as #1 to #3, and have come back" in editor.notes()[-1]
    editor.save(whole + whole)
    assert editor.taken() == [*before, "sync:", "run:pretrain", "stop:pretrain"]


def test_after_a_while_they_are_new_lines(editor: Editor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_diff, "BACK_S", 0.0)
    for content in ("sync:\nstop:pretrain\n", "", "sync:\nstop:pretrain\n"):
        editor.save(content)
    assert len(editor.taken()) == 4


def test_what_was_taken_is_known_after_a_restart(editor: Editor) -> None:
    editor.save("run:pretrain\nsync:\n")
    editor.restart()
    editor.save("run:pretrain\nsync:\nsync:\n")
    assert editor.taken() == ["run:pretrain", "sync:", "sync:"]


def test_run_lines_wait_for_a_mended_project_file_and_others_do_not(editor: Editor) -> None:
    editor.project = None
    assert editor.save("run:pretrain\nsync:\n")
    assert editor.save("run:pretrain\nsync:\n")
    assert editor.taken() == ["sync:"]
    assert len(editor.notes()) == 1 and "stagse" in editor.notes()[0]
    editor.project = PROJECT
    assert not editor.save("run:pretrain\nsync:\n")
    assert editor.taken() == ["sync:", "run:pretrain"]
    editor.restart()
    editor.save("run:pretrain\nsync:\n")
    assert len(editor.taken()) == 2 and len(editor.notes()) == 1


@pytest.mark.parametrize("line", ["run:pretrain seed={}", "run:pretrain", "nonsense {}"])
def test_ten_thousand_lines_at_once_and_edited_afterwards(editor: Editor, line: str) -> None:
    lines = [line.format(number) for number in range(10_000)]
    editor.save("\n".join(lines) + "\n")
    lines[5000:5001] = ["sync:", "run:pretrain other=1", "sync:"]
    del lines[100:200]
    editor.save("\n".join(lines) + "\n")
    assert 10_000 <= len(editor.taken()) <= 10_003
    assert len(editor.notes()) < 40


def test_comparing_two_very_different_files_stays_linear() -> None:
    old = [f"run:pretrain seed={number}" for number in range(5000)]
    new = [f"run:finetune seed={number}" for number in range(5001)]
    changes = compare(old, new)
    assert len(changes.edited) == 5000 and changes.new == [5000] and not changes.removed


# --- the thread -------------------------------------------------------------------------------------------


Watch = Callable[..., QueueWatcher]


@pytest.fixture
def watch(tmp_path: Path, ledger: Ledger) -> Iterator[Watch]:
    watchers = []

    def start(**values: float) -> QueueWatcher:
        watcher = QueueWatcher(tmp_path / names.QUEUE_FILE, ledger, lambda: PROJECT, **values)
        watcher.start()
        watchers.append(watcher)
        return watcher

    yield start
    for watcher in watchers:
        watcher.stop()


def append(path: Path, text: str) -> None:
    with path.open("a") as handle:
        handle.write(text)


def test_a_saved_line_is_taken_at_once(tmp_path: Path, ledger: Ledger, watch: Watch) -> None:
    queue = tmp_path / names.QUEUE_FILE
    queue.write_text("sync:\n")
    watch()
    wait_until(lambda: len(ledger.commands()) == 1)
    delays = []
    for count in range(2, 8):
        began = time.monotonic()
        append(queue, "run:pretrain\n")
        wait_until(lambda count=count: len(ledger.commands()) == count)  # type: ignore[misc]
        delays.append(time.monotonic() - began)
    assert min(delays) < queue_file._POLL_S / 2, "it was the poll that saw the line, not the file system's notice"


def test_without_notice_from_the_file_system_polling_sees_the_line(
    tmp_path: Path, ledger: Ledger, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QueueWatcher, "_observe", lambda self: None)
    watch()
    (tmp_path / names.QUEUE_FILE).write_text("sync:\n")
    wait_until(lambda: len(ledger.commands()) == 1)


def test_a_file_saved_by_rename_removed_and_brought_back_takes_nothing_twice(
    tmp_path: Path, ledger: Ledger, watch: Watch
) -> None:
    queue, other = tmp_path / names.QUEUE_FILE, tmp_path / "queue.txt~"
    queue.write_text("run:pretrain\n")
    watch(settle_s=0.05)
    wait_until(lambda: len(ledger.commands()) == 1)
    queue.unlink()
    wait_until(lambda: any("missing" in note.text for note in ledger.notes()))
    other.write_text("run:pretrain\nsync:\n")
    os.replace(other, queue)
    wait_until(lambda: len(ledger.commands()) == 2)
    assert [row.text for row in ledger.commands()] == ["run:pretrain", "sync:"]


def test_a_last_line_without_newline_is_taken_after_a_while(tmp_path: Path, ledger: Ledger, watch: Watch) -> None:
    watch(settle_s=0.05)
    (tmp_path / names.QUEUE_FILE).write_text("run:pretrain")
    wait_until(lambda: len(ledger.commands()) == 1)


def test_a_file_that_is_too_large_is_noted_and_not_read(
    tmp_path: Path, ledger: Ledger, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_file, "FILE_MAX_BYTES", 2**20)
    queue = tmp_path / names.QUEUE_FILE
    queue.write_text("sync:\n" * 200_000)
    watch(settle_s=0.05)
    wait_until(lambda: any("more than 1 MiB" in note.text for note in ledger.notes()))
    queue.write_text("sync:\n")
    wait_until(lambda: len(ledger.commands()) == 1)


def test_the_watcher_survives_a_fault_and_takes_the_line_later(
    tmp_path: Path, ledger: Ledger, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[int] = []
    original = Ledger.take

    def fail_once(self: Ledger, *values: object, **more: object) -> object:
        if not failures:
            failures.append(1)
            raise OSError("no room on the disk")
        return original(self, *values, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Ledger, "take", fail_once)
    watch()
    (tmp_path / names.QUEUE_FILE).write_text("sync:\n")
    wait_until(lambda: len(ledger.commands()) == 1)
    assert failures == [1]


def test_stopping_ends_its_threads_quickly_and_twice_is_fine(watch: Watch) -> None:
    watcher = watch()
    watcher.stop()
    watcher.stop()
    assert not watcher._thread.is_alive() and not (watcher._observer and watcher._observer.is_alive())
