"""What the system says of a file, with a next step: for the edge of a process, where such an error would end bare."""

from __future__ import annotations

import errno
from typing import Final

from bridgehead.errors import BridgeheadError

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_HINTS: Final = {
    errno.EISDIR: "a folder is where Bridgehead keeps a file of its own: move it away and do it again",
    errno.ENOTDIR: "a file is where a folder is needed: move it away and do it again",
    errno.ELOOP: "that is a link which leads nowhere: remove it and do it again",
    errno.EEXIST: "something else has that name: move it away and do it again",
    errno.EACCES: "you have no right to that: ls -l it, and see whose it is",
    errno.EPERM: "the system does not allow that: ls -l it, and see whose it is",
    errno.EROFS: "that disk can only be read: put the project on another one, or mount it anew",
    errno.EMFILE: "too many files are open: ulimit -n 4096, then do it again",
    errno.ENFILE: "too many files are open on this machine: end what you don't need, then do it again",
    errno.EIO: "the disk does not answer as it should: look after it, and copy the project elsewhere",
    errno.ENOENT: "see what is missing there, then do it again",
} | dict.fromkeys(_NO_ROOM, "the disk is full: make room there, then do it again; what was there before is as it was")


def in_words(error: OSError) -> BridgeheadError:
    """The file, what is wrong with it, and what to do."""
    where = f"{error.filename2 or error.filename}: " if error.filename else ""
    hint = _HINTS.get(error.errno or 0, "look at that file, then do it again") if where or means_full(error) else ""
    return BridgeheadError(f"{where}{error.strerror or str(error) or type(error).__name__}", hint=hint)


def means_full(error: OSError) -> bool:
    return error.errno in _NO_ROOM
