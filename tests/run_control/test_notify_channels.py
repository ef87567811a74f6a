"""What a webhook, ntfy, a command and a mail get; that errors tell no secret; and how long each may take."""

from __future__ import annotations

import email
import json
import sys
from pathlib import Path

import pytest
from notify_rig import receiver

from run_control import notify_channels, notify_http
from run_control.notify_channels import SendFailed
from run_control.notify_event import Event, plain
from run_control.notify_spec import Channel, NotifySpec, Source
from support import wait_until

EVENT = Event("end:r-1", "failed", "watch: r-1 failed", "host_oom", 1.0, "watch", "r-1", "bridgehead logs r-1")


def _stub(folder: Path, code: str) -> tuple[str, ...]:
    script = folder / "stub.py"
    script.write_text(code)
    return (sys.executable, str(script))


def test_a_webhook_gets_the_event_in_words_that_chats_show(tmp_path: Path) -> None:
    with receiver() as there:
        notify_channels.send(NotifySpec(webhook=Source(there.url + "/x?y=1")), Channel.WEBHOOK, EVENT, tmp_path)
    path, headers, body = there.got[0]
    told = json.loads(body)
    assert path == "/x?y=1" and headers["idempotency-key"] == told["id"] == EVENT.id
    assert told["text"] == told["content"] == "watch: r-1 failed\nhost_oom. next: bridgehead logs r-1"
    assert (told["kind"], told["run_id"]) == ("failed", "r-1")


def test_ntfy_gets_a_title_of_any_letters_and_the_token_in_a_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NTFY_TOKEN", "tk_secret")
    event = Event("k", "lost", "Uhr: läuft\nX-Evil: 1", "weg", 1.0, "Uhr")
    with receiver() as there:
        spec = NotifySpec(ntfy=Source(there.url + "/topic"), ntfy_token=Source("env:NTFY_TOKEN"))
        notify_channels.send(spec, Channel.NTFY, event, tmp_path)
    _, headers, body = there.got[0]
    assert headers["authorization"] == "Bearer tk_secret" and headers["priority"] == "4"
    assert headers["title"].startswith("=?utf-8?") and "x-evil" not in headers
    assert body.decode() == "weg"


@pytest.mark.parametrize(("status", "final"), [(404, True), (403, True), (302, True), (429, False), (503, False)])
def test_an_answer_says_whether_another_try_makes_sense(tmp_path: Path, status: int, final: bool) -> None:
    with receiver(status) as there, pytest.raises(SendFailed, match=str(status)) as caught:
        notify_channels.send(NotifySpec(webhook=Source(there.url)), Channel.WEBHOOK, EVENT, tmp_path)
    assert caught.value.final is final
    assert len(there.got) == 1, "no redirect is followed"


def test_an_error_names_the_host_and_nothing_else_of_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", "http://127.0.0.1:9/services/very-secret")
    with pytest.raises(OSError, match=r"127\.0\.0\.1: Connection refused") as caught:
        notify_channels.send(NotifySpec(webhook=Source("env:HOOK")), Channel.WEBHOOK, EVENT, tmp_path)
    assert "very-secret" not in str(caught.value)


def test_a_server_that_never_answers_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify_http, "TOTAL_S", 0.2)
    with receiver(0) as there, pytest.raises(OSError, match="127.0.0.1"):
        notify_channels.send(NotifySpec(webhook=Source(there.url)), Channel.WEBHOOK, EVENT, tmp_path)


def test_a_command_gets_the_event_by_stdin_and_environment_and_nothing_in_its_arguments(tmp_path: Path) -> None:
    code = "import json, os, pathlib, sys\n"
    code += "seen = {'argv': sys.argv[1:], 'event': json.load(sys.stdin), 'title': os.environ['BRIDGEHEAD_TITLE']}\n"
    code += "pathlib.Path('seen.json').write_text(json.dumps(seen))\n"
    notify_channels.send(NotifySpec(command=_stub(tmp_path, code)), Channel.COMMAND, EVENT, tmp_path)
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["argv"] == [] and seen["event"] == EVENT.to_json() and seen["title"] == EVENT.title


def test_a_command_that_fails_tells_its_code_and_keeps_its_output_apart(tmp_path: Path) -> None:
    command = _stub(tmp_path, "import sys; sys.exit('a secret perhaps')")
    with pytest.raises(SendFailed) as caught:
        notify_channels.send(NotifySpec(command=command), Channel.COMMAND, EVENT, tmp_path)
    assert "ended with 1" in caught.value.message and "secret" not in caught.value.in_one_line()
    assert "a secret perhaps" in caught.value.output


def test_a_command_that_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify_channels, "COMMAND_TIMEOUT_S", 5.0)
    code = "import os, subprocess, sys, time\n"
    code += "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
    code += "open('child', 'w').write(str(child.pid))\ntime.sleep(300)\n"
    with pytest.raises(SendFailed, match="took over"):
        notify_channels.send(NotifySpec(command=_stub(tmp_path, code)), Channel.COMMAND, EVENT, tmp_path)
    child = (tmp_path / "child").read_text()
    wait_until(lambda: not _lives(int(child)), 20)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_mail_is_a_whole_message_on_stdin(tmp_path: Path) -> None:
    code = "import pathlib, sys\npathlib.Path('mail').write_bytes(sys.stdin.buffer.read())\n"
    spec = NotifySpec(email="me@example.com", email_command=_stub(tmp_path, code))
    notify_channels.send(spec, Channel.EMAIL, EVENT, tmp_path)
    message = email.message_from_bytes((tmp_path / "mail").read_bytes())
    assert (message["To"], message["Subject"]) == ("me@example.com", EVENT.title)
    assert "host_oom" in str(message.get_payload())


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(SendFailed, match="no program 'no-such-program'"):
        notify_channels.send(NotifySpec(command=("no-such-program",)), Channel.COMMAND, EVENT, tmp_path)


def test_what_a_vm_says_is_made_plain() -> None:
    assert plain("a\x1b[2J\r\nb\u202ec") == "a [2J b c"
    assert len(plain("x" * 9999)) == 500
