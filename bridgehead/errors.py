"""The error tree. Each class has an exit code and each message a next step.

    BridgeheadError            1   our own fault, or one nobody foresaw
    ├─ UsageError              2   bad input: a flag, a queue line, a name
    │  └─ ProjectError         2   bridgehead.toml is missing or has a mistake
    ├─ RunFailed               3   the run itself failed
    ├─ PairingError            4   pairing code, key, signature, or versions that differ
    ├─ VmError                 5   no VM, VM lost, VM would not start
    │  └─ SupersededError      5   this VM or attempt no longer owns the run
    ├─ NotFoundError           6   no such run, VM, stage or file
    ├─ WaitTimeout             7   the time given with --timeout passed
    ├─ StillRunning            8   asked for an outcome that is not there yet
    ├─ VerificationError       9   a hash, a bundle or a checkpoint does not check out
    ├─ BridgeDownError        11   no bridge is running for this project, or it cannot start
    ├─ TransferError          12   an upload or download could not be finished
    └─ StoreError             13   the durable store can't be used just now
       ├─ StoreFull           13   it has no room
       ├─ StoreDenied         13   its credentials are missing, expired or revoked
       └─ StoreGone           13   its mount is dead, or its folder is not there

130 is kept for Ctrl-C, which always detaches and never stops a run.
"""

from __future__ import annotations

from typing import ClassVar, Final

LINE_MAX: Final = 500  # characters of an error that travels into a status, a heartbeat or an exit record


class BridgeheadError(Exception):
    """`message` says what was wrong and where; `hint` is one next step, often a command."""

    exit_code: ClassVar[int] = 1
    code: ClassVar[str] = "internal"
    retry: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def in_one_line(self, limit: int = LINE_MAX) -> str:
        """Message and hint, of `limit` characters at most. A long message is cut before the hint is: that helps."""
        message, hint = " ".join(self.message.split()), " ".join(self.hint.split())
        room = max(limit // 3, limit - len(hint) - 3 if hint else limit)
        if len(message) > room:
            message = message[: room - 1] + "…"
        return (f"{message} → {hint}" if hint else message)[:limit]

    def to_json(self) -> dict[str, object]:
        """The `error` member of a `--json` answer."""
        return {"code": self.code, "message": self.message, "hint": self.hint, "retry": self.retry}


class UsageError(BridgeheadError):
    exit_code = 2
    code = "usage"


class ProjectError(UsageError):
    code = "project"


class RunFailed(BridgeheadError):
    exit_code = 3
    code = "run_failed"


class PairingError(BridgeheadError):
    exit_code = 4
    code = "pairing"


class VmError(BridgeheadError):
    exit_code = 5
    code = "vm_lost"
    retry = True


class SupersededError(VmError):
    code = "superseded"
    retry = False


class NotFoundError(BridgeheadError):
    exit_code = 6
    code = "not_found"


class WaitTimeout(BridgeheadError):
    exit_code = 7
    code = "timeout"
    retry = True


class StillRunning(BridgeheadError):
    exit_code = 8
    code = "still_running"
    retry = True


class VerificationError(BridgeheadError):
    exit_code = 9
    code = "verification"


class BridgeDownError(BridgeheadError):
    exit_code = 11
    code = "bridge_down"
    retry = True


class TransferError(BridgeheadError):
    exit_code = 12
    code = "transfer"
    retry = True


class StoreError(BridgeheadError):
    """The store can't be used just now; what was there before stays good. `retry` says whether waiting may help."""

    exit_code = 13
    code = "store"
    retry = True


class StoreFull(StoreError):
    """No room or no quota: what is new stays on the VM's disk until somebody makes some."""

    code = "store_full"


class StoreDenied(StoreError):
    """Credentials are missing, expired or revoked. The run goes on; a person has to sign in again."""

    code = "store_denied"
    retry = False


class StoreGone(StoreError):
    """The mount is dead (ENOTCONN, EIO) or the folder is not there: it has to be mounted again."""

    code = "store_gone"


INTERRUPTED_EXIT_CODE = 130


def all_errors() -> list[type[BridgeheadError]]:
    """Every class of the tree, root first; the README's table of exit codes is made from it."""
    found: list[type[BridgeheadError]] = []
    queue: list[type[BridgeheadError]] = [BridgeheadError]
    while queue:
        cls = queue.pop(0)
        found.append(cls)
        queue.extend(cls.__subclasses__())
    return found
