"""[notify]: what it allows, that no secret may stand in it, and where secrets are read from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bridgehead import names
from bridgehead.errors import ProjectError, UsageError
from run_control import project_file
from run_control.notify_spec import Channel, EventKind, Source

HEAD = '[project]\nname = "watch"\n[notify]\n'
SLACK = "https://hooks.slack.com/services/T0001/B0001/abcdefghijklmnopqrstuvwx"


def _write(folder: Path, text: str) -> Path:
    (folder / names.PROJECT_FILE).write_text(HEAD + text)
    return folder


def test_without_the_table_nothing_is_sent(tmp_path: Path) -> None:
    assert project_file.notify(_write(tmp_path, "")).channels == ()


def test_a_full_table_is_read(tmp_path: Path) -> None:
    text = (
        'on = ["failed", "lost"]\ncommand = "notify-send -a x"\nwebhook = "env:HOOK"\nntfy = "https://ntfy.sh/mine"\n'
    )
    text += 'ntfy_token = "file:~/ntfy"\nemail = "me@example.com"\nemail_command = ["msmtp", "-t"]\n'
    spec = project_file.notify(_write(tmp_path, text))
    assert spec.channels == tuple(Channel)
    assert spec.on == {EventKind.FAILED, EventKind.LOST}
    assert spec.command == ("notify-send", "-a", "x") and spec.email_command == ("msmtp", "-t")
    assert spec.ntfy_token.text == f"file:{Path.home() / 'ntfy'}"


MISTAKES = {
    "a token in a URL": (f'webhook = "{SLACK}"', "bridgehead.toml:4: notify.webhook: this address holds a token"),
    "a token in a query": ('ntfy = "https://ntfy.sh/x?auth=abc"', "holds a password or a token"),
    "a password": ('webhook = "https://me:secret@example.com/x"', "holds a password or a token"),
    "a plain token": ('ntfy = "https://ntfy.sh/x"\nntfy_token = "tk_abc"', "a token is a secret"),
    "no URL": ('webhook = "ftp://example.com"', "an https:// address"),
    "no event": ('on = ["finish"]', "no event 'finish'; did you mean finished?"),
    "no variable": ('webhook = "env:a-b"', "the name of an environment variable"),
    "no address": ('email = "me"', "an address such as"),
    "a header more": ('email = "me@example.com\\nBcc: you@example.com"', "an address such as"),
    "a token alone": ('ntfy_token = "env:X"', "ntfy_token needs ntfy"),
    "a file that travels": ('webhook = "file:hook.txt"', "notify.webhook: it lies in the project folder"),
    "an unknown key": ('weebhook = "env:X"', "bridgehead.toml:4: notify.weebhook: unknown key"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_told_without_its_secret(tmp_path: Path, mistake: str) -> None:
    text, expected = MISTAKES[mistake]
    _write(tmp_path, text)
    for read in (project_file.notify, project_file.load):
        with pytest.raises(ProjectError) as caught:
            read(tmp_path)
        assert expected in caught.value.message
        assert "abcdefghijklmnop" not in caught.value.in_one_line() and "me:secret" not in caught.value.in_one_line()


def test_a_secret_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", SLACK)
    assert Source("env:HOOK").read() == SLACK
    assert SLACK not in repr(Source("env:HOOK")) and Source("env:HOOK").shown == "env:HOOK"
    monkeypatch.delenv("HOOK")
    with pytest.raises(UsageError, match="HOOK is not set"):
        Source("env:HOOK").read()


def test_a_secret_comes_from_a_file_that_its_owner_alone_can_read(tmp_path: Path) -> None:
    file = tmp_path / "hook"
    file.write_text(SLACK + "\n")
    file.chmod(0o600)
    assert Source(f"file:{file}").read() == SLACK
    file.chmod(0o644)
    if os.name == "posix":
        with pytest.raises(UsageError) as caught:
            Source(f"file:{file}").read()
        assert caught.value.hint == f"chmod 600 {file}"


def test_of_a_plain_address_the_host_alone_is_shown() -> None:
    assert Source("https://ntfy.sh/my-topic").shown == "ntfy.sh"
