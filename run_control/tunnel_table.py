"""[tunnel] of bridgehead.toml: its keys, what each kind needs, and the kind that `up --tunnel` asks for instead."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from bridge import tunnels
from bridge.tunnels import public_url
from bridge.tunnels.spec import TunnelSpec
from bridgehead import names
from bridgehead.errors import UsageError
from bridgehead.queue_lines import nearest
from run_control.command_words import words_of

PROTOCOLS = ("http2", "quic", "auto")
_HOST_NAME = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)+\Z"
)
_SSH_OPTION = re.compile(r"[A-Za-z]+=\S.*\Z")


def _kind(value: str) -> str:
    if value not in tunnels.NAMES:
        raise ValueError(f"no tunnel of kind {value!r}; {nearest(value, tunnels.NAMES)}")
    return value


def _protocol(value: str) -> str:
    if value not in PROTOCOLS:
        raise ValueError(f"no protocol {value!r}; {nearest(value, PROTOCOLS)}")
    return value


def _url(value: str) -> str:
    """ "" or scheme://host[:port]; {port} may stand for the port."""
    if value and not public_url.is_address(value.replace("{port}", "1")):
        raise ValueError(
            "an address such as https://bridge.example.com or http://192.168.1.20:8766, without a name, a password or"
            " a path (signatures cover the path that a VM asks for)"
        )
    return value.rstrip("/")


def _hostname(value: str) -> str:
    if value and not _HOST_NAME.match(value):
        raise ValueError("a host name alone, such as bridge.example.com, without https:// and in lower case")
    return value


def _path(value: str) -> str:
    if not value.isprintable():
        raise ValueError("the path of a file")
    return value


def _ssh_host(value: str) -> str:
    if value.startswith("-") or not value.isprintable() or " " in value:
        raise ValueError("user@host, or a name from ~/.ssh/config")
    return value


def _ssh_option(value: str) -> str:
    if not _SSH_OPTION.match(value) or not value.isprintable():
        raise ValueError('one option of ssh_config, such as "Port=2222"')
    return value


def _bind(value: str) -> str:
    if not value or not re.fullmatch(r"[A-Za-z0-9.:*\-]+", value):
        raise ValueError("the address that the relay listens on, such as 127.0.0.1 or 0.0.0.0")
    return value


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from None
    return value


class TunnelTable(BaseModel):
    """The table as it is written. Keys of the other kinds may stay in it: `up --tunnel` changes the kind alone."""

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: Annotated[str, AfterValidator(_kind)] = "none"
    url: Annotated[str, AfterValidator(_url)] = ""
    hostname: Annotated[str, AfterValidator(_hostname)] = ""
    token_file: Annotated[str, AfterValidator(_path)] = ""
    protocol: Annotated[str, AfterValidator(_protocol)] = "http2"
    host: Annotated[str, AfterValidator(_ssh_host)] = ""
    remote_port: Annotated[int, Field(ge=0, le=65535)] = 0
    bind: Annotated[str, AfterValidator(_bind)] = "127.0.0.1"
    options: list[Annotated[str, AfterValidator(_ssh_option)]] = Field(default_factory=list)
    command: Annotated[list[str], BeforeValidator(words_of)] = Field(default_factory=list)
    url_pattern: Annotated[str, AfterValidator(_pattern)] = ""
    url_file: Annotated[str, AfterValidator(_path)] = ""

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> Self:
        lacks = _lacks(self.spec(Path()))
        if lacks:
            raise ValueError(lacks)
        return self

    def spec(self, root: Path) -> TunnelSpec:
        """The table for the bridge; paths relative to `root` (the project folder) become absolute."""
        values = self.model_dump(exclude={"options", "command"})
        return TunnelSpec(
            **{**values, "token_file": _absolute(root, self.token_file), "url_file": _absolute(root, self.url_file)},
            options=tuple(self.options),
            command=tuple(self.command),
        )


def with_kind(spec: TunnelSpec, kind: str | None) -> TunnelSpec:
    """The same table with `kind`, when one is given. Raises UsageError for an unknown kind and for what it lacks."""
    if not kind or kind == spec.kind:
        return spec
    if kind not in tunnels.NAMES:
        raise UsageError(f"unknown tunnel {kind!r}", hint=nearest(kind, tunnels.NAMES))
    changed = dataclasses.replace(spec, kind=kind)
    lacks = _lacks(changed)
    if lacks:
        raise UsageError(f"--tunnel {kind}: {lacks}", hint="write it into [tunnel] of bridgehead.toml")
    return changed


def unsafe_token(spec: TunnelSpec, root: Path) -> str:
    """Why the token may not lie where it does; "" when it may. What lies in the project folder can get to a VM."""
    if not spec.token_file:
        return ""
    token, home = (Path(os.path.normpath(path)) for path in (spec.token_file, root.absolute()))
    if not token.is_relative_to(home) or token.is_relative_to(home / names.PRIVATE_FOLDER):
        return ""
    return f"it lies in the project folder, from where it might travel to a VM; move it to {names.PRIVATE_FOLDER}/"


def _lacks(spec: TunnelSpec) -> str:
    """What the kind can't be started without; "" when all is there."""
    if spec.kind == "cloudflared" and bool(spec.hostname) != bool(spec.token_file):
        missing = "token_file" if spec.hostname else "hostname"
        return f"a named tunnel needs hostname and token_file; {missing} is missing (without both it is a quick tunnel)"
    if spec.kind == "ssh" and not spec.host:
        return 'kind = "ssh" needs host, such as "me@relay.example.com"'
    if spec.kind == "command" and not spec.command:
        return 'kind = "command" needs command, such as ["ngrok", "http", "{port}"]'
    if spec.kind == "command" and not (spec.url or spec.url_pattern or spec.url_file):
        return 'kind = "command" needs url, url_pattern or url_file: where its address is to be found'
    return ""


def _absolute(root: Path, text: str) -> str:
    return str(root / Path(text).expanduser()) if text else ""
