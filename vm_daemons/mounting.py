"""The mounted store as the cell sees it: found at boot, tried out, and mounted again when it died.

Only the cell can mount Google Drive: the sign-in is a question to the notebook's front end, which a detached process
can't ask. So the uploader writes a request into state/remount.json, and the cell writes its answer beside it:

    {"v": 1, "id": "…", "since": …, "why": "…", "done": …, "error": "", "tries": 1}
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from bridgehead import files, names
from bridgehead.records import duration
from vm_daemons.home import VmHome

T = TypeVar("T")

DRIVE_MOUNT = Path("/content/drive")
DRIVE_FOLDER = "MyDrive/Bridgehead"
BOOT_TIMEOUT_MS = 300_000
REMOUNT_TIMEOUT_MS = 120_000  # nobody may sit at the tab, and meanwhile the cell minds nothing else
FIRST_TRY_OUT_TIMEOUT_S = 60.0
TRY_OUT_TIMEOUT_S = 20.0  # a dead mount may hang whoever touches it
PAUSES_S = (0.0, 60.0, 120.0, 300.0, 600.0)  # before each try of one request; after the last one it is given up


def find_store(say: Callable[[str], None]) -> Path | None:
    """The durable store, tried out: $BRIDGEHEAD_STORE, else Google Drive where this is Colab. None, said loudly."""
    named = os.environ.get(names.ENV_STORE)
    try:
        root = Path(named) if named else _mount_drive(timeout_ms=BOOT_TIMEOUT_MS)
        if root is not None:
            wrong = try_out_in_time(root, FIRST_TRY_OUT_TIMEOUT_S, create=True)
            if wrong:
                raise OSError(wrong)
            return root
        why = "this notebook has no Google Drive"
    except Exception as error:  # noqa: BLE001 - edge: the mount is foreign code and raises what it likes
        why = str(error) or type(error).__name__
    say(f"WARNING: no durable store ({why}). Checkpoints stay on this VM and are lost with it.")
    return None


class Remounter:
    """`mind()` looks for a request and works on it, one bounded try at a time. For the notebook's main thread."""

    def __init__(self, home: VmHome, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._home = home
        self._say = say
        self._clock = clock
        self._id = ""
        self._tries = 0
        self._next_try = 0.0

    def mind(self) -> None:
        """Raises OSError when the answer can't be written; then it is tried again."""
        path = self._home.state / names.VM_REMOUNT
        request = files.read_json(path)
        if not isinstance(request, dict) or not request.get("id") or request.get("done"):
            return
        if request["id"] != self._id:
            self._id, self._tries, self._next_try = str(request["id"]), 0, self._clock()
        if self._tries >= len(PAUSES_S) or self._clock() < self._next_try:
            return
        self._tries += 1
        error = self._try(str(request.get("why", "")))
        answer: dict[str, Any] = {"error": error, "tries": self._tries}
        if not error:
            answer["done"] = time.time()
        elif self._tries < len(PAUSES_S):
            self._next_try = self._clock() + PAUSES_S[self._tries]
            self._say(f"store: still dead ({error}); next try in {duration(PAUSES_S[self._tries])}")
        else:
            answer["given_up"] = True
            self._say(f"store: given up after {self._tries} tries ({error}). Run the cell again to mount it anew.")
        newest = files.read_json(path)
        if isinstance(newest, dict) and newest.get("id") == self._id:  # not an answer to another question
            files.write_json(path, {**newest, **answer})

    def _try(self, why: str) -> str:
        """What is wrong; "" when the store is well."""
        root = self._home.store_path()
        if root is None:
            return "this VM has no mounted store"
        wrong = try_out_in_time(root)
        drive = _drive() if wrong and root.is_relative_to(DRIVE_MOUNT) else None
        if drive is not None:
            self._say(f"store: {why or wrong}; mounting Google Drive again, this may ask you to sign in")
            try:
                self._set_aside()
                with _alarm(REMOUNT_TIMEOUT_MS / 1000 + 30):
                    drive.mount(str(DRIVE_MOUNT), force_remount=True, timeout_ms=REMOUNT_TIMEOUT_MS)
            except Exception as error:  # noqa: BLE001 - edge: the mount is foreign code and raises what it likes
                return str(error) or type(error).__name__
            wrong = try_out_in_time(root, create=True)
        if not wrong:
            self._say("store: well again")
        return wrong

    def _set_aside(self) -> None:
        """What was written there while the mount was gone is on this VM's disk, and Drive mounts on no full folder."""
        if DRIVE_MOUNT.is_dir() and not os.path.ismount(DRIVE_MOUNT) and any(DRIVE_MOUNT.iterdir()):
            aside = DRIVE_MOUNT.with_name(f"{DRIVE_MOUNT.name}-{secrets.token_hex(4)}")
            DRIVE_MOUNT.rename(aside)
            self._say(f"store: what was written while Drive was not mounted is now in {aside}")


def try_out_in_time(root: Path, timeout_s: float = 0.0, *, create: bool = False, create_last: bool = False) -> str:
    """What is wrong with a mounted folder, "" when nothing is; never hangs: a thread that does is left behind.

    `create` is for a fresh mount alone: where one is gone the folder would be made on this VM's disk. `create_last`
    makes the last folder, where the one above it is well.
    """

    def look() -> str:
        if root.is_relative_to(DRIVE_MOUNT) and not os.path.ismount(DRIVE_MOUNT):
            raise OSError(f"{DRIVE_MOUNT} is not mounted")
        if create:
            root.mkdir(parents=True, exist_ok=True)
        elif create_last and not root.exists():
            _try_out(root.parent)
            root.mkdir(exist_ok=True)
        _try_out(root)
        return ""

    try:
        return in_time(look, timeout_s or TRY_OUT_TIMEOUT_S, str(root))
    except OSError as error:
        return str(error)


def in_time(look: Callable[[], T], timeout_s: float, what: str) -> T:
    """What `look` returns or raises; TimeoutError, an OSError, when it hangs: its thread is left behind then."""
    got: list[T] = []
    raised: list[Exception] = []

    def run() -> None:
        try:
            got.append(look())
        except Exception as error:  # noqa: BLE001 - edge: raised again where it was asked for
            raised.append(error)

    thread = threading.Thread(target=run, name="look", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if raised:
        raise raised[0]
    if not got:
        raise TimeoutError(f"{what} has not answered for {timeout_s:.0f} s")
    return got[0]


def flush_drive(timeout_ms: int) -> str:
    """Have Drive upload all that it still holds back, and unmount it. What went wrong, "" when it is all there.

    Writes to the mount are buffered on this VM's disk; whatever has not been uploaded goes with the VM.
    """
    drive = _drive()
    if drive is None or not os.path.ismount(DRIVE_MOUNT):
        return ""
    try:
        with _alarm(timeout_ms / 1000 + 30):
            drive.flush_and_unmount(timeout_ms=timeout_ms)
    except Exception as error:  # noqa: BLE001 - edge: the mount is foreign code and raises what it likes
        return str(error) or type(error).__name__
    return ""


def _drive() -> Any:
    """google.colab's module, None elsewhere."""
    try:
        from google.colab import drive
    except ImportError:
        return None
    return drive


def _mount_drive(*, timeout_ms: int) -> Path | None:
    drive = _drive()
    if drive is None:
        return None
    drive.mount(str(DRIVE_MOUNT), timeout_ms=timeout_ms)
    return DRIVE_MOUNT / DRIVE_FOLDER


def _try_out(root: Path) -> None:
    """A mount can look fine and be dead: write, read back and delete a few bytes. Raises OSError."""
    canary = root / f"{files.TEMP_PREFIX}canary-{secrets.token_hex(4)}"
    told = secrets.token_bytes(32)
    canary.write_bytes(told)
    try:
        if canary.read_bytes() != told:
            raise OSError(f"{root} gives back other bytes than were written")
    finally:
        canary.unlink(missing_ok=True)


@contextlib.contextmanager
def _alarm(timeout_s: float) -> Iterator[None]:
    """A second watch over foreign code that has a timeout of its own. Raises TimeoutError; main thread only."""

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"no answer within {timeout_s:.0f} s")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
