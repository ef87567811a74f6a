"""The records of keys.json, and how the file is read and written. It is versioned; files of version 1 are read."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import errno
import json
import os
import secrets
import stat
import time
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from bridgehead import files
from bridgehead.errors import PairingError
from bridgehead.rotation import KEY_BYTES

VERSION = 2  # 1: `{"v", "current", "keys": {key id: base64}}`


class KeyState(StrEnum):
    ACTIVE = "active"
    ROTATING = "rotating"  # has a successor, and is good until that is used or `until` has passed
    ENDED = "ended"  # was rotated; signs nothing any more
    REVOKED = "revoked"


_YEAR_9999_S = 253_000_000_000.0
USABLE = frozenset({KeyState.ACTIVE, KeyState.ROTATING})


@dataclass(frozen=True)
class PairingKey:
    """One key. Times are seconds since 1970. `key` is empty once it is revoked."""

    id: str
    key: bytes = field(repr=False)
    name: str = ""
    made: float = 0.0
    allow_sh: bool = True
    state: KeyState = KeyState.ACTIVE
    family: str = ""  # id of the first key of its pairing; a rotation stays in the family
    after: str = ""  # the key that it was derived from
    salt: bytes = field(default=b"", repr=False)  # with which
    until: float = 0.0  # ROTATING: good until then at the latest
    ended: float = 0.0

    @property
    def usable(self) -> bool:
        return self.state in USABLE and not (self.state is KeyState.ROTATING and time.time() > self.until)


@dataclass(frozen=True)
class KeyFile:
    """`current` is the one that new pairing codes carry unless another one is asked for."""

    current: str
    keys: dict[str, PairingKey]

    def with_key(self, *changed: PairingKey, current: str = "") -> KeyFile:
        return KeyFile(current or self.current, {**self.keys, **{item.id: item for item in changed}})


def fresh(name: str = "", *, allow_sh: bool = True) -> PairingKey:
    """A new key that is akin to no other."""
    key_id = new_id()
    return PairingKey(key_id, secrets.token_bytes(KEY_BYTES), name, time.time(), allow_sh, family=key_id)


def new_id() -> str:
    return f"k-{secrets.token_hex(4)}"


def create(path: Path) -> bool:
    """Make the file appear whole; False when another process has made one meanwhile, which stays."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = fresh()
    temp = path.with_name(f"{files.TEMP_PREFIX}{secrets.token_hex(8)}")
    write(temp, KeyFile(key.id, {key.id: key}))
    made = True
    try:
        os.link(temp, path)
    except FileExistsError:
        made = False
    except OSError:  # a file system without hard links
        files.replace(temp, path)
    with contextlib.suppress(FileNotFoundError):
        temp.unlink()
    files.fsync_folder(path.parent)
    return made


def write(path: Path, content: KeyFile) -> None:
    told = {key_id: _told(item) for key_id, item in content.keys.items()}
    files.write_json(path, {"v": VERSION, "current": content.current, "keys": told}, mode=0o600)


def read(path: Path) -> KeyFile:
    """Raises PairingError, whose text holds nothing of the content."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a FIFO would hang us
            raise IsADirectoryError(errno.EISDIR, "it is no plain file")
        if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
            path.chmod(0o600)  # a copy or a careless archive made it readable for others
        record = json.loads(path.read_bytes())
        version = record.get("v", 1)
        keys = {str(key_id): _read_key(str(key_id), told) for key_id, told in record["keys"].items()}
        content = KeyFile(str(record["current"]), keys)
        if keys[content.current].state not in USABLE:
            raise ValueError
    except OSError as error:
        raise PairingError(
            f"{path} can't be read: {error.strerror}",
            hint="put the file back from a backup; or move that away, start the bridge again, and pair the VM anew",
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise PairingError(
            f"{path.name} is damaged",
            hint=f"remove {path}, start the bridge again, and pair the VM with the new code",
        ) from None
    if not isinstance(version, int) or version > VERSION:
        raise PairingError(f"{path.name} is of version {version!r}, this is {VERSION}", hint="update Bridgehead")
    return content


def _told(item: PairingKey) -> dict[str, Any]:
    told = {**dataclasses.asdict(item), "key": _text(item.key), "salt": _text(item.salt), "state": str(item.state)}
    del told["id"]
    return told


def _read_key(key_id: str, told: Any) -> PairingKey:
    """Raises ValueError, KeyError, TypeError or AttributeError when it is none."""
    if isinstance(told, str):
        told = {"key": told}
    state = KeyState(told.get("state", KeyState.ACTIVE))
    key = base64.b64decode(told["key"], validate=True)
    if len(key) != KEY_BYTES and (key or state is not KeyState.REVOKED):
        raise ValueError
    times = {name: float(told.get(name, 0.0)) for name in ("made", "until", "ended")}
    if not all(0 <= value < _YEAR_9999_S for value in times.values()):
        raise ValueError
    return PairingKey(
        id=key_id,
        key=key,
        name=str(told.get("name", "")),
        made=times["made"],
        allow_sh=told.get("allow_sh", True) is True,
        state=state,
        family=str(told.get("family") or key_id),
        after=str(told.get("after", "")),
        salt=base64.b64decode(told.get("salt", ""), validate=True),
        until=times["until"],
        ended=times["ended"],
    )


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
