"""What an exit code says, whether it comes from Python, from a shell or from Windows."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Final

from bridgehead import names
from bridgehead.names import FailureClass as F


@dataclass(frozen=True)
class Said:
    """What a code says on its own; `rank` as the patterns have it."""

    text: str
    failure: F
    rank: int


_OURS: Final = {
    names.GATE_FAILED_EXIT_CODE: F.GATE,
    names.NAN_LOSS_EXIT_CODE: F.NAN_LOSS,
    names.CHECKPOINT_EXIT_CODE: F.CHECKPOINT,
    names.DISK_FULL_EXIT_CODE: F.DISK_FULL,
}
# Ranks over 56: who died of a signal did not die of an exception. 6 and 15 leave the word to the log.
# 4 to 8, 11 and 31 a process brings on itself: nobody killed it.
_SIGNALS: Final = {
    1: (F.SSH_DROP, 69, "the terminal or connection went away"),
    2: (F.CANCELLED, 57, "interrupted"),
    4: (F.ENVIRONMENT, 60, "an instruction that this CPU does not have"),
    5: (F.SEGFAULT, 58, "a native library trapped itself"),
    6: (F.SEGFAULT, 36, "it aborted itself: a failed assertion or a library that gave up"),
    7: (F.SHM, 62, "usually a full /dev/shm"),
    8: (F.SEGFAULT, 58, "a native library divided by zero"),
    9: (F.KILLED, 57, "killed from outside: memory, a person or a scheduler"),
    11: (F.SEGFAULT, 59, "a native library crashed"),
    15: (F.KILLED, 36, "asked to end: preemption, a time limit or a cancellation"),
    24: (F.TIME_LIMIT, 60, "its limit of CPU time (ulimit -t)"),
    25: (F.DISK_FULL, 60, "its limit of file size (ulimit -f)"),
    31: (F.ENVIRONMENT, 60, "a system call that is not allowed here"),
}
_PLAIN: Final = {
    1: (F.UNKNOWN, 0, "an error, no more is known"),
    2: (F.USER_ERROR, 31, "usually a wrong argument"),
    124: (F.TIME_LIMIT, 60, "the end of coreutils' timeout"),
    126: (F.ENVIRONMENT, 56, "found, but can't be executed"),
    127: (F.ENVIRONMENT, 56, "command not found"),
    247: (F.KILLED, 57, "a wrapper's way to pass on SIGKILL"),
    255: (F.SSH_DROP, 28, "OpenSSH's own failure, or exit(-1); never taken for the program's code"),
    0xC0000005: (F.SEGFAULT, 59, "Windows: access violation"),
    0xC000013A: (F.CANCELLED, 57, "Windows: Ctrl-C"),
    0xC0000017: (F.HOST_OOM, 86, "Windows: no memory"),
}


def said(code: int) -> Said:
    """Of any code: negative as subprocess has it, 128 + n as shells have it."""
    if code == 0:
        return Said("exit code 0", F.DONE, 100)
    if code < -(2**16):
        code += 2**32  # Windows, read as signed
    if code in _OURS:
        return Said(f"exit code {code}: a stage's own word for {_OURS[code]}", _OURS[code], 57)
    number = signal_number(code)
    if number and code not in _PLAIN:
        failure, rank, text = _SIGNALS.get(number, (F.KILLED, 36, "a signal"))
        return Said(f"exit code {code}: {signal_name(number)}, {text}", failure, rank)
    failure, rank, text = _PLAIN.get(code, (F.UNKNOWN, 0, "the program's own"))
    return Said(f"exit code {code}: {text}", failure, rank)


def signal_number(code: int) -> int:
    """The signal that a code stands for; 0 for none."""
    if -64 <= code < 0:
        return -code
    return code - 128 if 128 < code <= 128 + 64 else 0


def signal_name(number: int) -> str:
    """Linux names, on whatever machine this runs."""
    linux = {
        1: "SIGHUP",
        2: "SIGINT",
        4: "SIGILL",
        5: "SIGTRAP",
        6: "SIGABRT",
        7: "SIGBUS",
        8: "SIGFPE",
        9: "SIGKILL",
        11: "SIGSEGV",
        15: "SIGTERM",
        24: "SIGXCPU",
        25: "SIGXFSZ",
        31: "SIGSYS",
    }
    try:
        return linux.get(number) or signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
