"""audit.jsonl: what was commanded, by whom, which VM took it and what came of it; and what happened to keys.

Lines are only ever appended, each with an fsync before anybody goes on, and each holds the SHA-256 of the one before:
an edit breaks the chain. Every writer notes the end of it in audit.head, so a cut end shows too, and the next writer
adds a line that says so for ever; the ledger knows an end as well, for when both were cut (audit_feed). When the file
is full it is put aside as audit-1.jsonl, audit-2.jsonl, … and kept. Any number of processes may write.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bridge import audit_head, file_lock
from bridge.audit_head import Head
from bridge.disk_writes import write_all
from bridgehead import files, names

MAX_BYTES: Final = 4 * 2**20  # of one file, before it is put aside
NO_LINE: Final = "0" * 64  # what the first line holds in place of a hash
CUT: Final = "cut"  # the event of a writer that found the end of the file missing
_LINE_VERSION: Final = 2  # 1 had no number of its own, and no audit.head beside the file
_LOCK: Final = "audit.lock"
_STEM, _SUFFIX = names.AUDIT_FILE.rsplit(".", 1)
_ASIDE: Final = re.compile(rf"{_STEM}-(\d+)\.{_SUFFIX}\Z")
_TAIL_BYTES: Final = 1 << 20
_O_BINARY: Final = getattr(os, "O_BINARY", 0)


@dataclass(frozen=True)
class Verdict:
    """What `verify` found. `head` is the hash of the last line."""

    lines: int
    files: int
    head: str
    problems: list[str] = field(default_factory=list)
    torn: int = 0  # lines that a crash cut off; the chain goes on over them


class Audit:
    """The audit files of one project, in its private folder."""

    def __init__(self, folder: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self.folder = folder
        self._path = folder / names.AUDIT_FILE
        self._max_bytes = max_bytes

    def append(self, events: Sequence[Mapping[str, Any]], *, anchor: Head | None = None) -> Head:
        """Write the events, each with `n`, `at` (unless it has one) and `prev`; durable when this returns.

        `anchor`: a line that has to be there, as somebody else knows. Returns the last line. Raises OSError.
        """
        with file_lock.held(self.folder / _LOCK):
            number, head, whole, torn = self._end()
            events = [*self._missing(Head(number, whole), anchor), *events]
            if not events:
                return Head(number, whole)
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _O_BINARY, 0o600)
            try:
                data = b"\n" if torn else b""
                for event in events:
                    number += 1
                    line = files.canonical_json(
                        {"at": round(time.time(), 3), **event, "n": number, "prev": head, "v": _LINE_VERSION}
                    )
                    head = _hash(line)
                    data += line + b"\n"
                size = os.fstat(fd).st_size
                try:
                    write_all(fd, data)
                    os.fsync(fd)
                except OSError:  # a full disk: no half line stays
                    os.ftruncate(fd, size)
                    raise
                full = os.fstat(fd).st_size >= self._max_bytes
            finally:
                os.close(fd)
            audit_head.write(self.folder, Head(number, head))
            if full:
                self._put_aside()
        return Head(number, head)

    def read(self) -> Iterator[dict[str, Any]]:
        """Every line that can be read, oldest first."""
        for _, line in self._lines():
            told = _parse(line)
            if told is not None:
                yield told

    def newest(self, key: str) -> Any | None:
        """What the newest line that has this key says under it, among the last ones."""
        for path in reversed(self._files()):
            for line in reversed(_tail(path)[1]):
                told = _parse(line)
                if told is not None and key in told:
                    return told[key]
        return None

    def verify(self, expected_head: str = "") -> Verdict:
        """Follow the chain from the first line to the last. `expected_head`: a hash that has to occur in it."""
        problems: list[str] = []
        noted = audit_head.read(self.folder)  # first: others may add lines meanwhile
        lines = torn = number = version = 0
        head, met = NO_LINE, {NO_LINE, ""}
        for place, line in self._lines():
            lines += 1
            told = _parse(line)
            if told is None:
                torn += 1
            problem = _problem(line, told, number, head)
            if problem:
                problems.append(f"{place}: {problem}")
            if told is not None:
                number, version = int(told["n"]), told.get("v", 1)
            head = _hash(line)
            met.add(head)
        if expected_head not in met:
            problems.append("lines that the ledger knows of are missing or changed at the end")
        if noted is not None and noted.sha256 not in met:
            problems.append(f"the end is missing or changed: {audit_head.FILE} knows of {noted.n} lines")
        elif noted is None and version == _LINE_VERSION:
            problems.append(f"{audit_head.FILE} is missing: nobody can tell whether the end was cut")
        return Verdict(lines, len(self._files()), head, problems, torn)

    # --- inside ------------------------------------------------------------------------------------

    def _end(self) -> tuple[int, str, str, bool]:
        """(number of the last whole line, hash of the last line, hash of the whole one, whether the last is torn)."""
        number, head, whole, torn = 0, NO_LINE, NO_LINE, False
        for path in reversed(self._files()):
            torn_here, lines = _tail(path)
            torn = torn or (torn_here and path == self._path)
            if lines and head == NO_LINE:
                head = _hash(lines[-1])
            numbered = ((told, line) for line in reversed(lines) if (told := _parse(line)) is not None)
            last = next(numbered, None)
            if last is not None:
                number, whole = int(last[0]["n"]), _hash(last[1])
                break
        return number, head, whole, torn

    def _missing(self, found: Head, anchor: Head | None) -> list[dict[str, Any]]:
        """A line that says so when the file does not end where the last writer left it, or lacks the anchor."""
        noted = audit_head.read(self.folder)
        if noted is not None and noted.n >= found.n and noted != found:  # behind: its writer died before it noted that
            known = noted
        elif anchor is not None and anchor != found and not self._holds(anchor):
            known = anchor
        else:
            return []
        return [{"event": CUT, "expected": known.n, "found": found.n, "sha256": known.sha256}]

    def _holds(self, wanted: Head) -> bool:
        for path in reversed(self._files()):
            for line in reversed(path.read_bytes().split(b"\n")):
                told = _parse(line)
                if told is not None and told["n"] <= wanted.n:
                    return told["n"] == wanted.n and _hash(line) == wanted.sha256
        return False

    def _put_aside(self) -> None:
        last = max((int(match[1]) for path in self.folder.iterdir() if (match := _ASIDE.match(path.name))), default=0)
        target = self.folder / f"{_STEM}-{last + 1}.{_SUFFIX}"
        files.replace(self._path, target)
        files.fsync_folder(self.folder)

    def _files(self) -> list[Path]:
        """Oldest first."""
        aside = [(int(match[1]), path) for path in self.folder.iterdir() if (match := _ASIDE.match(path.name))]
        found = [path for _, path in sorted(aside)]
        return [*found, self._path] if self._path.exists() else found

    def _lines(self) -> Iterator[tuple[str, bytes]]:
        """(file:line, its bytes without the newline)."""
        for path in self._files():
            with path.open("rb") as handle:
                for number, line in enumerate(handle, start=1):
                    yield f"{path.name}:{number}", line.removesuffix(b"\n")


def _tail(path: Path) -> tuple[bool, list[bytes]]:
    """(whether the last line was cut off, the whole lines and that one at the end of a file)."""
    with path.open("rb") as handle:
        size = handle.seek(0, os.SEEK_END)
        handle.seek(max(0, size - _TAIL_BYTES))
        data = handle.read()
    lines = data.split(b"\n")
    torn = bool(lines[-1])
    if not torn:
        lines.pop()
    return torn, lines[1:] if size > _TAIL_BYTES else lines


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) and isinstance(told.get("n"), int) else None


def _problem(line: bytes, told: dict[str, Any] | None, number: int, head: str) -> str:
    """What is wrong with a line after the one of this number and hash; "" when nothing is."""
    if told is None:
        return "" if _may_be_torn(line) else "this was never written by Bridgehead"
    if told.get("prev") != head:
        return "the line before it was changed, removed or added"
    if told["n"] != number + 1:
        return f"it is numbered {told['n']}, after {number}"
    if told.get("event") == CUT:
        return f"its writer found {told.get('found')} lines where {told.get('expected')} had been, or another last one"
    return ""


def _may_be_torn(line: bytes) -> bool:
    """Whether a crash may have left this of a line: its beginning, or zeros where the disk had not got it yet."""
    start = line.rstrip(b"\0")
    try:
        json.loads(start)
    except (ValueError, RecursionError):
        return start[:2] in (b"", b"{", b'{"')
    return False


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
