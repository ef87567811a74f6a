"""How an event leaves: a program of the user's, a webhook, ntfy, or mail. Each try is bounded in time.

No URL, token or program's output gets into an error: those are told in logs and on screens.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from email.header import Header
from email.message import EmailMessage
from pathlib import Path

from bridgehead import __version__, names, processes
from bridgehead.errors import TransferError, UsageError
from run_control import notify_http
from run_control.notify_event import Event
from run_control.notify_spec import Channel, EventKind, NotifySpec
from run_control.notify_table import is_url

COMMAND_TIMEOUT_S = 30.0
_ERROR_TAIL_BYTES = 2000
_SENDMAIL = ("sendmail", "/usr/sbin/sendmail", "/usr/lib/sendmail")
_NTFY_LOOK = {
    EventKind.FINISHED: ("3", "white_check_mark"),
    EventKind.FAILED: ("4", "x"),
    EventKind.LOST: ("4", "warning"),
    EventKind.STALLED: ("4", "hourglass"),
    EventKind.ALARM: ("4", "rotating_light"),
}
Committed = Callable[[], None]


class SendFailed(TransferError):
    """`final`: another try would fail the same way. `output`: what a command said, for its owner's terminal alone."""

    def __init__(self, message: str, *, hint: str = "", final: bool = False, output: str = "") -> None:
        super().__init__(message, hint=hint)
        self.final = final
        self.output = output


def send(spec: NotifySpec, channel: Channel, event: Event, root: Path, committed: Committed = lambda: None) -> None:
    """Tell `event`. `committed` is called right before anything leaves. Raises SendFailed, UsageError, OSError.

    Takes no longer than COMMAND_TIMEOUT_S or notify_http.TOTAL_S, plus the look-up of a name.
    """
    if channel is Channel.COMMAND:
        _run(spec.command, json.dumps(event.to_json()).encode() + b"\n", _about(event), root, committed)
    elif channel is Channel.WEBHOOK:
        _webhook(spec, event, committed)
    elif channel is Channel.NTFY:
        _ntfy(spec, event, committed)
    else:
        _run(spec.email_command or _sendmail(), _mail(spec.email, event), {}, root, committed)


def _webhook(spec: NotifySpec, event: Event, committed: Committed) -> None:
    # "text" is what Slack's and Mattermost's shows, "content" Discord's; both pass over what they don't know.
    shown = f"{event.title}\n{event.words}"
    body = json.dumps({**event.to_json(), "text": shown, "content": shown}).encode()
    headers = {"Content-Type": "application/json", "Idempotency-Key": event.id}
    _post(_url(spec.webhook.read(), Channel.WEBHOOK), body, headers, committed)


def _ntfy(spec: NotifySpec, event: Event, committed: Committed) -> None:
    priority, tag = _NTFY_LOOK.get(EventKind(event.kind), ("3", "")) if event.kind in set(EventKind) else ("3", "bell")
    title = event.title if event.title.isascii() else Header(event.title, "utf-8", maxlinelen=10_000).encode()
    headers = {"Title": title, "Priority": priority, "Tags": tag}
    if spec.ntfy_token:
        headers["Authorization"] = f"Bearer {spec.ntfy_token.read()}"
    _post(_url(spec.ntfy.read(), Channel.NTFY), event.words.encode(), headers, committed)


def _url(value: str, channel: Channel) -> str:
    if not is_url(value):
        raise UsageError(f"what {channel} names is no http or https address", hint="one line with the whole URL")
    return value


def _post(url: str, body: bytes, headers: Mapping[str, str], committed: Committed) -> None:
    given = {"User-Agent": f"bridgehead/{__version__}", **headers}
    status = notify_http.post(url, body, given, committed)
    if 200 <= status < 300:
        return
    again = status in (408, 425, 429) or status >= 500
    hint = "it is tried again" if again else "look at the address and the token; then bridgehead notify test"
    raise SendFailed(f"the server answered {status}", hint=hint, final=not again)


def _about(event: Event) -> dict[str, str]:
    return {
        names.ENV_EVENT: event.kind,
        names.ENV_EVENT_TITLE: event.title,
        names.ENV_EVENT_TEXT: event.words,
        names.ENV_RUN_ID: event.run_id,
    }


def _sendmail() -> Sequence[str]:
    for name in _SENDMAIL:
        found = shutil.which(name)
        if found:
            return (found, "-t", "-i")
    raise SendFailed("no sendmail on this laptop", hint='email_command = "msmtp -t", or another that reads a mail')


def _mail(to: str, event: Event) -> bytes:
    message = EmailMessage()
    message["To"] = to
    message["Subject"] = event.title
    message["Message-ID"] = f"<{event.id}@bridgehead.invalid>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(f"{event.words}\n\n{event.project} {event.run_id}".rstrip() + "\n")
    return message.as_bytes()


def _run(words: Sequence[str], stdin: bytes, environment: Mapping[str, str], root: Path, committed: Committed) -> None:
    """The user's program in a session of its own; with all that it started it is ended after COMMAND_TIMEOUT_S."""
    program = shutil.which(words[0], path=os.environ.get("PATH"))
    if program is None and not (root / words[0]).is_file():
        raise SendFailed(f"no program {words[0]!r}", hint="is it installed, and on the bridge's PATH?")
    committed()
    with tempfile.TemporaryFile() as said:  # not a pipe: what it leaves in the background may keep it open for long
        process = subprocess.Popen(
            [program or str(root / words[0]), *words[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=said,
            cwd=root,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        try:
            process.communicate(stdin, timeout=COMMAND_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise SendFailed(f"{words[0]} took over {COMMAND_TIMEOUT_S:g} s and was ended") from None
        finally:
            _end(process)
        if process.returncode:
            said.seek(max(0, said.seek(0, os.SEEK_END) - _ERROR_TAIL_BYTES))
            tail = said.read().decode(errors="replace")
            raise SendFailed(f"{words[0]} ended with {process.returncode}", hint="bridgehead notify test", output=tail)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        for child in processes.descendants(process.pid):
            processes.send(child, processes.KILL, started_ticks=processes.start_ticks(child))
        process.kill()
        process.wait()
