"""[notify] of bridgehead.toml: its keys, and that no secret stands in a file that may travel or be committed."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from bridgehead import names
from bridgehead.queue_lines import nearest
from run_control.command_words import words_of
from run_control.notify_spec import ENV_PREFIX, FILE_PREFIX, EventKind, NotifySpec, Source

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_ADDRESS = re.compile(r"[^\s@,<>\"]+@[^\s@,<>\"]+\Z")
_TOKEN = re.compile(r"(?=[^/]*\d)(?=[^/]*[A-Za-z])[A-Za-z0-9_-]{20,}\Z")
# Whoever knows such a URL can post in its owner's name.
_SECRET_HOSTS = ("hooks.slack.com", "discord.com", "discordapp.com", "webhook.office.com", "api.telegram.org")
_HIDE = f'keep it out of this file: "{ENV_PREFIX}NAME" or "{FILE_PREFIX}PATH" (a file that only you can read)'


def _event(value: str) -> str:
    if value not in set(EventKind):
        raise ValueError(f"no event {value!r}; {nearest(value, EventKind)}")
    return value


def _reference(value: str) -> str:
    """`env:NAME` or `file:PATH`."""
    if value.startswith(ENV_PREFIX) and not _ENV_NAME.match(value.removeprefix(ENV_PREFIX)):
        raise ValueError(f'"{ENV_PREFIX}" and the name of an environment variable')
    if value.startswith(FILE_PREFIX) and not (value.removeprefix(FILE_PREFIX).strip() and value.isprintable()):
        raise ValueError(f'"{FILE_PREFIX}" and the path of a file')
    return value


def _token(value: str) -> str:
    if value and not value.startswith((ENV_PREFIX, FILE_PREFIX)):
        raise ValueError(f"a token is a secret; {_HIDE}")
    return _reference(value)


def _url(value: str) -> str:
    if not value or value.startswith((ENV_PREFIX, FILE_PREFIX)):
        return _reference(value)
    if not is_url(value):
        raise ValueError('an https:// address, "env:NAME" or "file:PATH"')
    parts = urlsplit(value)
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError(f"this address holds a password or a token; {_HIDE}")
    return value


def _webhook(value: str) -> str:
    parts = urlsplit(_url(value))
    if parts.scheme in ("http", "https"):
        host = parts.hostname or ""
        known = any(host == name or host.endswith("." + name) for name in _SECRET_HOSTS)
        if known or any(_TOKEN.match(segment) for segment in parts.path.split("/")):
            raise ValueError(f"this address holds a token; {_HIDE}")
    return value


def _mail(value: str) -> str:
    if value and not all(_ADDRESS.match(address.strip()) for address in value.split(",")):
        raise ValueError('an address such as "me@example.com", or several with commas between them')
    return value


def is_url(text: str) -> bool:
    """An absolute http or https URL on one line."""
    try:
        parts = urlsplit(text)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
    return sound and text.isascii() and text.isprintable() and " " not in text


class NotifyTable(BaseModel):
    """The table as it is written."""

    model_config = ConfigDict(extra="forbid", strict=True)

    on: list[Annotated[str, AfterValidator(_event)]] = Field(default_factory=lambda: [str(kind) for kind in EventKind])
    command: Annotated[list[str], BeforeValidator(words_of)] = Field(default_factory=list)
    webhook: Annotated[str, AfterValidator(_webhook)] = ""
    ntfy: Annotated[str, AfterValidator(_url)] = ""
    ntfy_token: Annotated[str, AfterValidator(_token)] = ""
    email: Annotated[str, AfterValidator(_mail)] = ""
    email_command: Annotated[list[str], BeforeValidator(words_of)] = Field(default_factory=list)

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.ntfy_token and not self.ntfy:
            raise ValueError("ntfy_token needs ntfy, the address of the topic")
        if self.email_command and not self.email:
            raise ValueError("email_command needs email, the address that it sends to")
        return self

    def spec(self, root: Path) -> NotifySpec:
        """For the bridge; paths relative to `root` (the project folder) become absolute."""
        return NotifySpec(
            on=frozenset(EventKind(item) for item in self.on),
            command=tuple(self.command),
            webhook=_resolved(root, self.webhook),
            ntfy=_resolved(root, self.ntfy),
            ntfy_token=_resolved(root, self.ntfy_token),
            email=self.email,
            email_command=tuple(self.email_command),
        )


def unsafe_file(spec: NotifySpec, root: Path) -> tuple[str, str]:
    """(key, why) of a secret's file that may travel to a VM with the project; ("", "") when there is none."""
    home = Path(os.path.normpath(root.absolute()))
    for key in ("webhook", "ntfy", "ntfy_token"):
        text = getattr(spec, key).text
        path = Path(os.path.normpath(text.removeprefix(FILE_PREFIX)))
        inside = text.startswith(FILE_PREFIX) and path.is_relative_to(home)
        if inside and not path.is_relative_to(home / names.PRIVATE_FOLDER):
            why = "it lies in the project folder, from where it might travel to a VM"
            return key, f"{why}; move it to {names.PRIVATE_FOLDER}/"
    return "", ""


def _resolved(root: Path, text: str) -> Source:
    if not text.startswith(FILE_PREFIX):
        return Source(text)
    return Source(FILE_PREFIX + str(root / Path(text.removeprefix(FILE_PREFIX)).expanduser()))
