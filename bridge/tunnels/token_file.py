"""The token of a named tunnel: in a file that only its owner can read, never in an argument, a log or a message."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import stat
from pathlib import Path

from bridgehead.errors import UsageError

_SIZE_MAX_BYTES = 1 << 16
_FIELDS = ("a", "t", "s")  # account, tunnel, secret: cloudflared's connection.TunnelToken
_log = logging.getLogger(__name__)


def read(path: Path) -> str:
    """The token that the file holds, without the white space around it; the file is narrowed to mode 0600.

    Raises UsageError, whose text holds no part of it.
    """
    hint = "the dashboard shows the token when you add a connector: it is the long word that begins with eyJ"
    try:
        _narrow(path)
        with path.open("rb") as handle:
            data = handle.read(_SIZE_MAX_BYTES)
    except OSError as error:
        raise UsageError(f"token_file {path} can't be read: {error.strerror}", hint=hint) from None
    words = data.decode(errors="replace").split()
    if len(words) != 1:
        what = "is empty" if not words else "holds more than one word"
        raise UsageError(f"token_file {path} {what}", hint=f"{hint}; the file holds that word alone")
    if not _is_token(words[0]):
        raise UsageError(f"token_file {path} does not hold the token of a tunnel", hint=hint)
    return words[0]


def _narrow(path: Path) -> None:
    """As with keys.json: a copy or a careless archive made it readable for others."""
    info = path.stat()
    if os.name != "posix" or not stat.S_IMODE(info.st_mode) & 0o077:
        return
    with contextlib.suppress(PermissionError):
        path.chmod(0o600)
        _log.warning("others could read %s: it is its owner's alone now", path)
        return
    _log.warning("others can read %s, and it belongs to somebody else", path)


def _is_token(word: str) -> bool:
    try:
        content = json.loads(base64.b64decode(word, validate=True))
    except ValueError:
        return False
    return isinstance(content, dict) and all(isinstance(content.get(name), str) for name in _FIELDS)
