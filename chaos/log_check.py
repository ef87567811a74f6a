"""Whether the laptop's copy of a growing file is exactly what the VMs wrote: no byte missing, none twice.

On the laptop the lives of a file follow one another. Each but the last may be cut (its VM died with bytes that had not
left it), so the copy has to be a beginning of the first, then a beginning of the second, …, then all of the last. A
file that several attempts on one VM wrote goes on where the laptop's copy of it stood, and a file on a new VM may begin
with what the store had of the former VM's: the laptop has to have that much of the former one, and has it once.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass

_SAID = b"--- "
_HEADER = _SAID + b"attempt "
_ATTEMPT = re.compile(rb"^" + _HEADER + rb"(\d+) on ", re.M)
_ALIKE_BYTES = 64  # lines of two lives may begin alike for so long: `{"v": 1, "at": 1796042` and the attempt
_RECORD = re.compile(rb"\[([0-9a-f]{8}):(\d{6})\] (\d{6})\n")


@dataclass(frozen=True)
class Life:
    """One attempt's file as it lay on its VM when that died, or at the end. `file` tells one file from another."""

    file: str
    data: bytes


def explain(copy: bytes, lives: list[Life]) -> int:
    """How many bytes of `copy` can't be explained or are missing at its end; 0 when it is as it has to be."""
    best = [0]
    if _match(copy, lives, 0, 0, {}, best):
        return 0
    whole = len(lives[-1].data) if lives else 0
    return max(1, len(copy) - best[0], whole - best[0])


def records(copy: bytes) -> tuple[int, int]:
    """(missing, doubled) among the numbered records of each process, by their numbers alone."""
    seen: dict[bytes, list[int]] = {}
    for match in _RECORD.finditer(copy):
        seen.setdefault(match[1], []).append(int(match[2]))
    missing = doubled = 0
    for numbers in seen.values():
        doubled += len(numbers) - len(set(numbers))
        missing += max(numbers) + 1 - len(set(numbers))
    return missing, doubled


def taken(journal: bytes) -> dict[str, int]:
    """The highest attempt of each run that a VM took, by its journal.

    With the laptop off a VM may take up from the store what had ended at the laptop already: the dead VM's last word
    was not in the store yet. The bridge refuses that attempt and all that it wrote; the run is the one that had ended.
    """
    found: dict[str, int] = {}
    for line in journal.splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):  # the last line may be torn
            entry = json.loads(line)
            if entry["step"] == "accepted" and "command" in entry:
                run_id = entry["command"]["run_id"]
                found[run_id] = max(found.get(run_id, 0), int(entry["attempt"]))
    return found


def attempts_in(log: bytes, highest: int) -> list[int]:
    """The attempts that wrote a VM's log, by its headers; a full disk may have let none through, but later words.

    `highest`: the one that the VM's journal has, 0 when that is not known.
    """
    found = {int(number) for number in _ATTEMPT.findall(log)}
    return sorted(found) or [max(1, highest)]


def _match(copy: bytes, lives: list[Life], index: int, at: int, used: dict[str, int], best: list[int]) -> bool:
    """Whether copy[at:] is beginnings of the lives from `index` on, the last one whole. `used`: bytes of each file."""
    best[0] = max(best[0], at)
    if index == len(lives):
        return at == len(copy)
    life = lives[index]
    for start in _starts(lives, index, used):
        rest = life.data[start:]
        common = _common(copy, at, rest)
        if index == len(lives) - 1:
            best[0] = max(best[0], at + common)
            if common == len(rest) and at + common == len(copy):
                return True
            continue
        for length in _cuts(rest, common):
            if _match(copy, lives, index + 1, at + length, {**used, life.file: start + length}, best):
                return True
    return False


def _starts(lives: list[Life], index: int, used: dict[str, int]) -> list[int]:
    """Where in its file a life may begin: where the copy of it stood, or behind what it has of the former file."""
    life = lives[index]
    if life.file in used:
        return [used[life.file]]
    former = lives[index - 1] if index else None
    inherited = _common(former.data, 0, life.data) if former is not None else 0
    whole_lines = life.data.rfind(b"\n", 0, inherited) + 1
    if former is None or not whole_lines:  # beginnings of a line are alike by chance
        return [0]
    likely = {inherited, *_own_words(life.data, whole_lines)}
    return [start for start in likely if used.get(former.file, 0) >= start]


def _own_words(data: bytes, end: int) -> list[int]:
    """`end`, and where the lines of the daemons' own just before it begin: two VMs may have put the same into words."""
    starts = [end]
    while (start := data.rfind(b"\n", 0, starts[-1] - 1) + 1) < starts[-1] and data.startswith(_SAID, start):
        starts.append(start)
    return starts


def _common(copy: bytes, at: int, rest: bytes) -> int:
    """The length of the common beginning of copy[at:] and `rest`."""
    low, high = 0, min(len(copy) - at, len(rest))
    while low < high:
        middle = (low + high + 1) // 2
        if copy[at : at + middle] == rest[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _cuts(rest: bytes, common: int) -> list[int]:
    """Where this life may have been cut, the likeliest first: where it differs, or before any header in it."""
    cuts = {common, 0}
    # A header that begins both lives makes the common part too long: it may have been cut at any byte before that.
    cuts |= {match.start() for match in re.finditer(re.escape(_HEADER), rest[:common])}
    cuts |= {common - back for back in range(1, min(common, _ALIKE_BYTES) + 1)}
    return sorted(cuts, reverse=True)
