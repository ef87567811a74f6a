"""A store of uploads whose system calls fail at a chosen step, and what a sender does with it: for state machines.

A death is an exception that nothing catches at a chosen call, before it or half-way through it; the store is then
opened anew from what lies on the disk, as by the next bridge.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis.stateful import RuleBasedStateMachine

from bridge import upload_store
from bridge.upload_store import Part, Progress, UploadStore
from bridgehead import files
from bridgehead.errors import VerificationError

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None  # thousands of fsyncs: what a disk does with them is no part
T = TypeVar("T")
COUNTED = ("write", "fsync", "ftruncate", "open", "close", "replace")


class Killed(BaseException):
    """The process is no more: not an Exception, so that nothing tidies up after it."""


class FragileOs:
    """The module `os` for the store; a chosen call fails, and a write that fails has written half."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.failure: Callable[[], BaseException] = Killed

    def arm(self, calls: int, failure: Callable[[], BaseException]) -> None:
        self.left, self.failure = calls, failure

    def __getattr__(self, name: str) -> Any:
        function = getattr(os, name)
        if name not in COUNTED:
            return function

        def counted(*args: Any, **more: Any) -> Any:
            if self.due(name):
                if name == "write":
                    function(args[0], bytes(args[1])[: len(args[1]) // 2])
                raise self.failure()
            return function(*args, **more)

        return counted

    def due(self, name: str) -> bool:
        """Whether it is this call that fails; a disk that is full lets files be opened, closed and made shorter."""
        if self.left is None or (self.failure is not Killed and name in ("close", "ftruncate", "open")):
            return False
        self.left -= 1
        if self.left < 0:
            self.left = None
            return True
        return False


def disk_full() -> OSError:
    return OSError(errno.ENOSPC, "no room")


class Machine(RuleBasedStateMachine):
    """A folder for the laptop's side, a store on it, and calls that fail; subclasses say what a sender does."""

    modules: tuple[Any, ...]  # whose system calls may fail
    path: str  # of the file, below in/

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="append-", dir=MEMORY))
        (self.folder / "in").mkdir()
        self.os = FragileOs()
        self.patch = pytest.MonkeyPatch()
        for module in (*self.modules, files):
            self.patch.setattr(module, "os", self.os)
        self.abandoned: list[int] = []
        self.generation = 0

    def let_database_fail(self, cls: type, name: str) -> None:
        """The writing method of a store's database counts as one of the calls."""
        real = getattr(cls, name)

        def write(*args: Any, **more: Any) -> Any:
            if self.os.due("execute"):
                failure = self.os.failure()
                raise failure if isinstance(failure, Killed) else sqlite3.OperationalError("disk is full")
            return real(*args, **more)

        self.patch.setattr(cls, name, write)

    def killed(self) -> None:
        """The bridge dies here and now, and another one starts."""
        raise NotImplementedError

    def teardown(self) -> None:
        self.os.left = None
        for fd in self.abandoned:
            with contextlib.suppress(OSError):
                os.close(fd)
        self.patch.undo()
        shutil.rmtree(self.folder)

    @property
    def name(self) -> str:
        return f"g{self.generation}"

    @property
    def target(self) -> Path:
        return self.folder / "in" / self.path

    def on_laptop(self) -> bytes:
        return self.target.read_bytes() if self.target.exists() else b""

    def temps(self) -> list[Path]:
        return list(self.target.parent.glob(f"{files.TEMP_PREFIX}*"))

    def attempt(self, calls: int, failure: Callable[[], BaseException], action: Callable[[], T]) -> T | None:
        """What came of `action`, of which a later call fails; None when it did not get to its end."""
        self.os.arm(calls, failure)
        try:
            return action()
        except Killed:
            self.os.left = None
            self.killed()
        except (OSError, sqlite3.OperationalError) as error:
            assert isinstance(error, sqlite3.Error) or error.errno == errno.ENOSPC
        finally:
            self.os.left = None
        return None


class OffsetMachine(Machine):
    """One path of an UploadStore; the sender knows what a VM knows."""

    modules = (upload_store,)

    def __init__(self) -> None:
        super().__init__()
        self.let_database_fail(UploadStore, "_execute")
        self.acked = 0  # of this generation: what the sender was told is there
        self.complete = False
        self.store = self.opened()

    def opened(self) -> UploadStore:
        store = UploadStore(self.folder / "uploads", self.folder / "in")
        store.sweep()
        return store

    def killed(self) -> None:
        self.abandoned += [part.fd for part in self.store._writing.values()]
        self.store.close()
        self.store = self.opened()

    def teardown(self) -> None:
        self.abandoned += [part.fd for part in self.store._writing.values()]
        self.store.close()
        super().teardown()

    def send(self, offset: int, data: bytes, *, last: bool, sound: bool = True) -> Progress:
        """One part, as uploads.py does it: dropped in any case, but not by a process that is dead."""
        part = self.store.begin(self.path, self.name, offset, last=last)
        try:
            self.give(part, data)
            if not sound:
                raise VerificationError("what arrived was not what was signed")
            return part.commit()
        except Killed:
            raise
        except BaseException:
            part.drop()
            raise

    @staticmethod
    def give(part: Part, data: bytes) -> None:
        for at in range(0, len(data), 7):
            part.write(data[at : at + 7])

    def told(self, progress: Progress | None) -> None:
        """The answer has reached the sender."""
        if progress is not None:
            assert progress.offset >= self.acked, "verified bytes went back"
            self.acked, self.complete = progress.offset, progress.complete
