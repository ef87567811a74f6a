"""What was seen in a round, and whether it is what Bridgehead promises. Pure functions: each can be shown to fail."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bridgehead import files, names
from bridgehead.names import FailureClass, RunState
from chaos import log_check
from chaos.log_check import Life


@dataclass(frozen=True)
class CommandSeen:
    """A command as the ledger ended it. `begun`: how often it noted its execution outside of the VM (sh: only)."""

    label: str
    verb: str
    state: str
    failure_class: str = ""
    begun: int = 0


@dataclass
class Verdict:
    """Counts of what did not hold, and why, in words."""

    finished: bool = True
    bitwise_equal: bool = True
    commands_lost: int = 0
    commands_doubled: int = 0
    log_bytes_lost: int = 0
    false_confirmed: int = 0
    orphans: int = 0
    half_files: int = 0
    why: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.why

    def judge_commands(self, commands: Iterable[CommandSeen]) -> None:
        """Each executed at most once, none forgotten, every run done."""
        for command in commands:
            if command.begun > 1:
                self.commands_doubled += command.begun - 1
                self.why.append(f"{command.label} was executed {command.begun} times")
            ended = command.state in names.ENDED
            unknown = command.failure_class == FailureClass.UNKNOWN_OUTCOME
            if not ended:
                self.finished = False
                self.commands_lost += 1
                self.why.append(f"{command.label} was forgotten: {command.state}")
            elif command.verb == "sh" and command.state == RunState.DONE and command.begun == 0:
                self.commands_lost += 1
                self.why.append(f"{command.label} is said to be done and was never executed")
            elif command.state != RunState.DONE and not (command.verb == "sh" and unknown):
                self.finished = False
                self.why.append(f"{command.label} ended {command.state} ({command.failure_class})")

    def judge_weights(self, label: str, got: Mapping[str, str] | None, wanted: Mapping[str, str]) -> None:
        """`got` and `wanted` name digests; None when nothing arrived."""
        differing = [name for name, value in wanted.items() if (got or {}).get(name) != value]
        if differing:
            self.bitwise_equal = False
            self.why.append(f"{label}: {', '.join(differing)} differ from the undisturbed run's")

    def judge_log(self, label: str, copy: bytes, lives: list[Life]) -> None:
        """A log or another growing file against what its VMs wrote."""
        missing, doubled = log_check.records(copy)
        wrong = log_check.explain(copy, lives)
        if doubled or missing:
            self.why.append(f"{label}: {missing} numbered lines missing, {doubled} doubled")
        if wrong:
            self.why.append(f"{label}: {wrong} bytes are not what its VMs wrote")
        self.log_bytes_lost += wrong or missing + doubled

    def judge_confirmed(self, label: str, claimed: int, readable: Iterable[int]) -> None:
        """A step that was called confirmed against the steps that can be read back from the store."""
        if claimed > max(readable, default=-1):
            self.false_confirmed += 1
            self.why.append(f"{label}: step {claimed} was called confirmed and can't be read back")

    def judge_commits(self, label: str, early: Iterable[str]) -> None:
        """`early`: commits that were written before what they vouch for."""
        for slot in early:
            self.false_confirmed += 1
            self.why.append(f"{label}: {slot} was committed before its files were there")

    def judge_left(self, what: str, processes: Mapping[int, str]) -> None:
        """Processes that should have ended."""
        self.orphans += len(processes)
        if processes:
            shown = "; ".join(f"{pid} {line}" for pid, line in sorted(processes.items()))
            self.why.append(f"{what}: {shown}")

    def judge_inbox(self, half: Iterable[str]) -> None:
        """What `half_files` found."""
        found = list(half)
        self.half_files += len(found)
        if found:
            self.why.append(f"half-written in {names.IN_FOLDER}/: {', '.join(found[:5])}")

    def fail(self, why: str) -> None:
        """The round could not be judged, or did not end."""
        self.finished = False
        self.why.append(why)


def half_files(inbox: Path, expected: Mapping[str, str]) -> list[str]:
    """Files below in/ that are half there: temp names, JSON that can't be read, and another hash than `expected`.

    `expected` maps a path relative to in/ to its SHA-256.
    """
    found = []
    for path in sorted(inbox.rglob("*")):
        relative = path.relative_to(inbox).as_posix()
        if not path.is_file():
            continue
        if path.name.startswith(files.TEMP_PREFIX):
            found.append(relative)
        elif path.suffix == ".json" and not _is_json(path):
            found.append(relative)
    for relative, sha256 in expected.items():
        path = inbox / relative
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
            found.append(relative)
    return found


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_bytes())
    except ValueError:
        return False
    return True
