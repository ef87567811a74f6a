"""Events on their way: tried again, in order, never twice, and nothing that a receiver does holds up the bridge."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_process import in_process
from notify_rig import Receiver, receiver
from project_support import Seeded

from bridgehead import names
from bridgehead.names import RunState
from run_control import bridge_control, notifier, notify_channels, queueing
from run_control.notifier import Notifier
from run_control.notify_event import Event
from run_control.notify_memory import WAITING_MAX, Memory
from run_control.notify_spec import Channel
from run_control.project import Project
from support import wait_until

SECRET = "/services/T0001/very-secret-word"


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with receiver() as known:
        monkeypatch.setenv("HOOK", known.url + SECRET)
        yield known


def _notify(project: Project, table: str) -> None:
    with project.file.open("a") as stream:
        stream.write(f"\n[notify]\n{table}\n")


def _start(seeded: Seeded) -> Notifier:
    made = Notifier(seeded.project, look_every_s=0.05, first_pause_s=0.05)
    made.start()
    wait_until(lambda: (seeded.project.private / names.NOTIFIED).exists(), 20)
    return made


def _titles(there: Receiver) -> list[str]:
    return [json.loads(body)["title"] for _, _, body in there.got]


def test_a_receiver_that_fails_gets_it_again_and_the_order_stays(
    seeded: Seeded, there: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    _notify(seeded.project, 'webhook = "env:HOOK"')
    there.answers = [503, 500]
    first, second = seeded.take("run:pretrain", "run:pretrain epochs=2")
    going = _start(seeded)
    with caplog.at_level(logging.DEBUG):
        seeded.finish(first, RunState.DONE)
        wait_until(lambda: there.got, 20)
        seeded.finish(second, RunState.FAILED, exit_code=1)
        wait_until(lambda: len(there.got) == 4, 20)
    going.stop()
    told = [title.split()[1] for title in _titles(there)]
    assert told == [first, first, first, second]
    assert len({headers["idempotency-key"] for _, headers, _ in there.got}) == 2
    assert "very-secret-word" not in caplog.text


def test_one_that_refuses_for_good_is_not_asked_again_and_status_says_so(
    seeded: Seeded, there: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    _notify(seeded.project, 'webhook = "env:HOOK"')
    there.answers = [404]
    first, second = seeded.take("run:pretrain", "run:pretrain epochs=2")
    going = _start(seeded)
    seeded.finish(first, RunState.DONE)
    wait_until(lambda: there.got, 20)
    wait_until(lambda: "404" in in_process(capsys, "-C", str(seeded.project.root), "status").err, 20)
    seeded.finish(second, RunState.DONE)
    wait_until(lambda: len(there.got) == 2, 20)
    wait_until(lambda: "404" not in in_process(capsys, "-C", str(seeded.project.root), "status").err, 20)
    going.stop()


def test_only_the_events_that_were_asked_for_are_sent(seeded: Seeded, there: Receiver) -> None:
    _notify(seeded.project, 'on = ["failed"]\nwebhook = "env:HOOK"')
    good, bad = seeded.take("run:pretrain", "run:pretrain epochs=2")
    going = _start(seeded)
    seeded.finish(good, RunState.DONE)
    seeded.finish(bad, RunState.FAILED, exit_code=1)
    wait_until(lambda: there.got, 20)
    going.stop()
    assert _titles(there) == [f"watch: {bad} failed"]


def test_a_receiver_that_hangs_holds_up_no_other_channel_and_not_the_end(
    seeded: Seeded, there: Receiver, tmp_path: Path
) -> None:
    there.answers = [0]
    _notify(seeded.project, f'webhook = "env:HOOK"\ncommand = ["tee", "{tmp_path}/told"]')
    [run_id] = seeded.take("run:pretrain")
    going = _start(seeded)
    seeded.finish(run_id, RunState.DONE)
    wait_until(lambda: there.got, 20)
    wait_until(lambda: run_id in _text(tmp_path / "told"), 20)
    going.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "notifier"]


def test_what_waits_is_sent_by_the_next_bridge_and_what_was_sent_is_not(
    seeded: Seeded, there: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    _notify(seeded.project, 'webhook = "env:HOOK"')
    monkeypatch.setenv("HOOK", "http://127.0.0.1:9" + SECRET)  # nobody there
    first, second = seeded.take("run:pretrain", "run:pretrain epochs=2")
    going = _start(seeded)
    seeded.finish(first, RunState.DONE)
    file = seeded.project.private / names.NOTIFIED
    wait_until(lambda: json.loads(file.read_text())["trouble"], 20)
    going.stop()
    monkeypatch.setenv("HOOK", there.url + SECRET)
    seeded.finish(second, RunState.DONE)
    for _ in range(2):
        going = _start(seeded)
        wait_until(lambda: not json.loads(file.read_text())["waiting"] and len(there.got) >= 2, 20)
        going.stop()
    assert [title.split()[1] for title in _titles(there)] == [first, second]


def _event(number: int = 0) -> Event:
    return Event(f"end:r-{number}", "finished", f"watch: r-{number} done", "", time.time(), "watch")


def test_an_event_whose_sending_was_cut_off_by_a_death_is_not_sent_again(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "notified.json")
    memory.add([_event(1), _event(2)], {"finished": (Channel.WEBHOOK,)})
    item = memory.next(Channel.WEBHOOK, time.time())
    assert item is not None
    memory.begin(item)
    again = Memory(tmp_path / "notified.json")
    left = again.next(Channel.WEBHOOK, time.time())
    assert left is not None and left.event.key == "end:r-2"
    assert again.knows("end:r-1")


def test_a_channel_that_fails_for_days_holds_a_bounded_number(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "notified.json")
    memory.add([_event(number) for number in range(WAITING_MAX + 50)], {"finished": (Channel.NTFY,)})
    assert len(json.loads((tmp_path / "notified.json").read_text())["waiting"]) == WAITING_MAX
    oldest = memory.next(Channel.NTFY, time.time())
    assert oldest is not None and oldest.event.key == "end:r-50"


def test_a_fault_in_a_look_ends_no_later_one(seeded: Seeded, there: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    _notify(seeded.project, 'webhook = "env:HOOK"')
    real, calls = notify_channels.send, []

    def send(*arguments: object) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("a bug")
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(notifier.notify_channels, "send", send)
    first, second = seeded.take("run:pretrain", "run:pretrain epochs=2")
    going = _start(seeded)
    seeded.finish(first, RunState.DONE)
    wait_until(lambda: calls, 20)
    seeded.finish(second, RunState.DONE)
    wait_until(lambda: there.got, 20)
    going.stop()
    assert _titles(there) == [f"watch: {second} done"]


def test_the_bridge_itself_tells_and_a_closed_panel_is_no_matter(
    fresh: Project, there: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stage that comes after one that was stopped fails at once, without any VM."""
    _notify(fresh, 'webhook = "env:HOOK"')
    bridge_control.start(fresh, port=0, tunnel="none")
    try:
        wait_until(lambda: (fresh.private / names.NOTIFIED).exists(), 30)
        queued = queueing.submit(fresh, "run:pretrain")
        queueing.submit(fresh, f"stop:{queued.run_id}")
        wait_until(lambda: there.got, 30)
    finally:
        bridge_control.stop(fresh)
    assert queued.run_id in _titles(there)[0]
    assert "very-secret-word" not in fresh.bridge_log.read_text()


def test_notify_test_tries_each_channel_and_fails_when_one_does(
    fresh: Project, there: Receiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _notify(fresh, f'webhook = "env:HOOK"\ncommand = ["tee", "{tmp_path}/told"]')
    answer = in_process(capsys, "-C", str(fresh.root), "notify", "test", "--json")
    assert answer.code == 0 and [item["ok"] for item in answer.data["channels"]] == [True, True]
    assert json.loads(_text(tmp_path / "told"))["kind"] == "test" and there.got
    there.answers = [401]
    answer = in_process(capsys, "-C", str(fresh.root), "notify", "test")
    assert answer.code == 12 and "env:HOOK" in answer.out and "401" in answer.out
    assert "very-secret-word" not in answer.out + answer.err


def test_notify_test_without_a_channel_says_what_to_write(fresh: Project, capsys: pytest.CaptureFixture[str]) -> None:
    answer = in_process(capsys, "-C", str(fresh.root), "notify", "test")
    assert answer.code == 2 and "[notify]" in answer.err and "ntfy" in answer.err


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
