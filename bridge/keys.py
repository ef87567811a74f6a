"""The project's pairing keys: one small file that only its owner can read, made on first use."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import stat
from pathlib import Path

from bridgehead import files, names
from bridgehead.errors import PairingError

KEY_BYTES = 32


class KeyStore:
    """keys.json: `{"v", "current", "keys": {key id: base64}}`."""

    def __init__(self, path: Path) -> None:
        """Read the file, or make it with one new key. Raises PairingError when it is damaged."""
        if not path.exists():
            _create(path)
        self._current, self._keys = _read(path)

    def key(self, key_id: str) -> bytes | None:
        return self._keys.get(key_id)

    def current(self) -> tuple[str, bytes]:
        """(key id, key) that new pairing codes carry."""
        return self._current, self._keys[self._current]


def _create(path: Path) -> None:
    """Make the file appear whole, and never in place of one that another process has made meanwhile."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    key_id = f"k-{secrets.token_hex(4)}"
    key = base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()
    temp = path.with_name(f"{files.TEMP_PREFIX}{secrets.token_hex(8)}")
    files.write_json(temp, {"v": names.RECORD_VERSION, "current": key_id, "keys": {key_id: key}}, mode=0o600)
    try:
        os.link(temp, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        files.replace(temp, path)
    with contextlib.suppress(FileNotFoundError):
        temp.unlink()
    files.fsync_folder(path.parent)


def _read(path: Path) -> tuple[str, dict[str, bytes]]:
    try:
        if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
            path.chmod(0o600)  # a copy or a careless archive made it readable for others
        record = json.loads(path.read_bytes())
        keys = {str(key_id): base64.b64decode(text, validate=True) for key_id, text in record["keys"].items()}
        current = str(record["current"])
        if current not in keys or any(len(key) != KEY_BYTES for key in keys.values()):
            raise ValueError
    except OSError as error:
        raise PairingError(f"{path.name} can't be read: {error.strerror}", hint=f"look at {path}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise PairingError(
            f"{path.name} is damaged",
            hint=f"remove {path}, start the bridge again, and pair the VM with the new code",
        ) from None
    return current, keys
