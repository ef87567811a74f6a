"""[notify] as the bridge uses it: which events go where, and where each secret is read from when it is needed."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from bridgehead.errors import UsageError

ENV_PREFIX = "env:"
FILE_PREFIX = "file:"
_SECRET_MAX_BYTES = 8192


class EventKind(StrEnum):
    FINISHED = "finished"  # a run is done, or was stopped
    FAILED = "failed"  # a run failed or was rejected
    LOST = "lost"  # a run's VM went silent
    STALLED = "stalled"  # a run lives and makes no progress
    ALARM = "alarm"  # something that a person should see to


class Channel(StrEnum):
    COMMAND = "command"
    WEBHOOK = "webhook"
    NTFY = "ntfy"
    EMAIL = "email"


@dataclass(frozen=True)
class Source:
    """A value that may be a secret: `env:NAME`, `file:PATH`, or the value itself where it holds none; "": not given."""

    text: str = ""

    def __bool__(self) -> bool:
        return bool(self.text)

    @property
    def shown(self) -> str:
        """What may be printed and logged: never the value of a secret one."""
        if self.text.startswith((ENV_PREFIX, FILE_PREFIX)):
            return self.text
        return urlsplit(self.text).hostname or ""

    def read(self) -> str:
        """The value, on one line. Raises UsageError that says what to set, or whose rights to change."""
        if self.text.startswith(ENV_PREFIX):
            return _from_environment(self.text.removeprefix(ENV_PREFIX))
        if self.text.startswith(FILE_PREFIX):
            return _from_file(Path(self.text.removeprefix(FILE_PREFIX)))
        return self.text


@dataclass(frozen=True)
class NotifySpec:
    """The table, resolved; without a channel nothing is ever sent."""

    on: frozenset[EventKind] = frozenset(EventKind)
    command: tuple[str, ...] = ()
    webhook: Source = Source()
    ntfy: Source = Source()
    ntfy_token: Source = Source()
    email: str = ""
    email_command: tuple[str, ...] = ()  # reads a message with headers; empty: sendmail

    @property
    def channels(self) -> tuple[Channel, ...]:
        given = {
            Channel.COMMAND: self.command,
            Channel.WEBHOOK: self.webhook,
            Channel.NTFY: self.ntfy,
            Channel.EMAIL: self.email,
        }
        return tuple(channel for channel, value in given.items() if value)


def _from_environment(name: str) -> str:
    value = os.environ.get(name, "").strip()
    if not value:
        raise UsageError(
            f"the environment variable {name} is not set where this runs",
            hint=f"set it and start the bridge again (bridgehead down, up), or keep it in a file: {FILE_PREFIX}PATH",
        )
    return value


def _from_file(path: Path) -> str:
    try:
        if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise UsageError(f"others can read {path}", hint=f"chmod 600 {path}")
        with path.open("rb") as stream:
            text = stream.read(_SECRET_MAX_BYTES).decode()
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}", hint="write it there, then chmod 600") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text", hint="one line: the URL or the token") from None
    lines = text.split()
    if len(lines) != 1:
        raise UsageError(f"{path} should hold one word, and holds {len(lines)}", hint="one line: the URL or the token")
    return lines[0]
