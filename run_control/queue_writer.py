"""Adding lines to queue.txt the way a careful person would: at the end, whole, and nothing else touched."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from bridgehead.errors import UsageError
from bridgehead.queue_lines import QueueLine, Verb, encode_shell, parse_line


def append(path: Path, lines: list[str]) -> None:
    """Append lines with one O_APPEND write, after a newline when the file's last line lacks one.

    Raises UsageError for a line that could not be read back, and OSError.
    """
    for line in lines:
        if "\n" in line or "\r" in line or parse_line(line) is None:
            raise UsageError(f"not a queue line: {line[:60]!r}")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        data = (_missing_newline(fd) + "\n".join(lines) + "\n").encode()
        while data:
            data = data[os.write(fd, data) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def run_line(stage: str, words: list[str], vm: str = "") -> str:
    """`[@vm] run:stage key=value …`, checked. Raises UsageError."""
    for word in words:
        if not word or word.split() != [word]:
            raise UsageError(
                f"a value with a space in it does not fit a queue line: {word[:60]!r}",
                hint="put it into [stages.NAME.config] of the project file",
            )
    return _checked(" ".join([f"{_pin(vm)}{Verb.RUN}:{stage}", *words]))


def shell_line(text: str, vm: str = "") -> str:
    """The line that runs `text` through bash on the VM. Raises UsageError when there is nothing to run."""
    if not text.strip():
        raise UsageError("nothing to run", hint="bridgehead sh 'nvidia-smi'")
    try:
        encoded = encode_shell(text)
    except UnicodeEncodeError:  # bytes that are no UTF-8 arrive from the shell as lone surrogates
        raise UsageError("the command is not UTF-8 text", hint="bridgehead sh 'nvidia-smi'") from None
    return _checked(_pin(vm) + encoded)


def stop_line(target: str) -> str:
    return _checked(f"{Verb.STOP}:{target}")


def release_line(vm: str) -> str:
    """The line by which a VM gives itself back. Raises UsageError."""
    return _checked(f"{_pin(vm)}{Verb.RELEASE}:")


def _pin(vm: str) -> str:
    """`@vm `, checked: with a space in it the rest of the name would be read as the command. Raises UsageError."""
    if not vm:
        return ""
    parsed = None
    with contextlib.suppress(UsageError):
        parsed = parse_line(f"@{vm} {Verb.SYNC}:")
    if parsed is None or parsed.vm != vm:
        raise UsageError(f"not a VM name: {vm[:60]!r}", hint="bridgehead status lists the VMs")
    return f"@{vm} "


def _checked(line: str) -> str:
    parsed: QueueLine | None = parse_line(line)
    if parsed is None:
        raise UsageError(f"not a queue line: {line[:60]!r}")
    return line


def _missing_newline(fd: int) -> str:
    size = os.fstat(fd).st_size
    if size == 0 or os.pread(fd, 1, size - 1) == b"\n":
        return ""
    return "\n"
