"""Why a stage ended, by evidence, and whether it may be started again.

Nothing is guessed: that memory ran out is said when the kernel's own counter says so. Deaths that nobody here caused
are counted in the run folder, so that a budget of retries holds across restarts of runner and daemon.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridgehead import files, names
from bridgehead.failures.classes import facts
from bridgehead.names import FailureClass, RunState
from bridgehead.records import ProcessRecord
from bridgehead.run import STOPPED_EXIT_CODE

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_SHELL_HINTS = {126: " (found, but can't be executed)", 127: " (command not found)"}
_SHELL_SAW_SIGKILL = 128 + signal.SIGKILL  # how a shell tells of its child's end
_SAID_BY_CODE = {
    names.GATE_FAILED_EXIT_CODE: (FailureClass.GATE, "the gate did not pass"),
    names.NAN_LOSS_EXIT_CODE: (FailureClass.NAN_LOSS, "the loss was no number any more"),
    names.CHECKPOINT_EXIT_CODE: (FailureClass.CHECKPOINT, "it refuses the checkpoint it found"),
}
_ASKED_WHY = frozenset({names.NAN_LOSS_EXIT_CODE, names.CHECKPOINT_EXIT_CODE})  # whose last words say what differs


@dataclass(frozen=True)
class Ending:
    """How one start of a stage ended. `retry`: it died of what nobody here caused and may be started again."""

    state: RunState
    failure: str = ""
    message: str = ""
    retry: bool = False


@dataclass(frozen=True)
class OomCount:
    """The kernel's count of out-of-memory kills, before and after; -1 where it does not tell."""

    before: int
    after: int

    @property
    def rose(self) -> bool:
        return 0 <= self.before < self.after

    def text(self, peak_bytes: int = 0) -> str:
        peak = f"; its peak was {peak_bytes / 2**30:.1f} GiB" if peak_bytes else ""
        if min(self.before, self.after) < 0:
            return f"whether memory ran out is not known{peak}"
        return f"{'an' if self.rose else 'no'} out-of-memory kill was counted{peak}"


def judge(
    code: int, *, stop_asked: bool, oom: OomCount, peak_bytes: int = 0, said: str = "", disk_full: bool = False
) -> Ending:
    """`code` is as subprocess has it: negative for a signal. `peak_bytes`: most memory of the stage's own process.

    `said`: its last words, for the codes by which a stage says why it failed. `disk_full`: there was no room left for
    anything when it ended, its next line of output included. A stage on our API says so itself, by its exit code.
    """
    how = f"ended by {signal_name(code)}" if code < 0 else f"exit code {code}{_SHELL_HINTS.get(code, '')}"
    if code == 0:
        return Ending(RunState.DONE)
    if stop_asked and code not in _SAID_BY_CODE:
        plain = code in (STOPPED_EXIT_CODE, -signal.SIGTERM)
        return Ending(RunState.STOPPED, FailureClass.STOPPED, "stopped" if plain else f"stopped: {how}")
    if oom.rose and code in (-signal.SIGKILL, _SHELL_SAW_SIGKILL):
        message = f"{how}: this machine ran out of memory; {oom.text(peak_bytes)}"
        return Ending(RunState.FAILED, FailureClass.HOST_OOM, message)
    if code == STOPPED_EXIT_CODE:
        how = "it saved and left as if it had been asked to stop"
    if code < 0 or code == STOPPED_EXIT_CODE:
        message = f"{how}, which nobody here sent; {oom.text(peak_bytes)}"
        return Ending(RunState.FAILED, FailureClass.KILLED, message, retry=True)
    if code == names.DISK_FULL_EXIT_CODE or (disk_full and code not in _SAID_BY_CODE):
        message = f"{how} while this VM's disk was full"
        return Ending(RunState.FAILED, FailureClass.DISK_FULL, message, retry=True)
    failure, message = _SAID_BY_CODE.get(code, (FailureClass.USER_ERROR, how))
    if code in _ASKED_WHY:
        message += f": {said}" if said else "; its log says why"
    if oom.rose:  # perhaps one of its workers, perhaps another run's: named, and the class stays what is certain
        message += "; meanwhile the kernel ended a process of this machine for lack of memory"
    return Ending(RunState.FAILED, failure, message)


def judge_unseen(process: ProcessRecord | None) -> Ending:
    """For a stage that is gone together with its runner, so that nobody saw its exit code."""
    oom = OomCount(process.oom_kills if process is not None else -1, oom_kills())
    if oom.rose:
        message = f"it was killed together with its runner: this machine ran out of memory; {oom.text()}"
        return Ending(RunState.FAILED, FailureClass.HOST_OOM, message)
    message = f"it was killed together with its runner, by nobody here; {oom.text()}"
    return Ending(RunState.FAILED, FailureClass.KILLED, message, retry=True)


def signal_name(code: int) -> str:
    """The signal of a negative exit code; "" for any other."""
    if code >= 0:
        return ""
    try:
        return signal.Signals(-code).name
    except ValueError:  # the kernel knows more real-time signals than Python names
        return f"signal {-code}"


def deaths(run_dir: Path, attempt: int) -> list[dict[str, Any]]:
    """What this attempt died of so far, oldest first; only deaths that nobody here caused."""
    record = files.read_json(run_dir / names.DEATHS)
    if not isinstance(record, dict) or record.get("attempt") != attempt:
        return []
    found = record.get("deaths")
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def note_death(run_dir: Path, attempt: int, how: str, runner: tuple[int, int]) -> int:
    """Count one, durably; returns how many there are. `runner` (pid, start) names the start, which counts once.

    Raises OSError; nothing is counted then.
    """
    known = deaths(run_dir, attempt)
    if is_noted(run_dir, attempt, runner):
        return len(known)
    known.append({"at": round(time.time(), 3), "how": how, "runner": list(runner)})
    files.write_json(run_dir / names.DEATHS, {"v": names.RECORD_VERSION, "attempt": attempt, "deaths": known})
    return len(known)


def is_noted(run_dir: Path, attempt: int, runner: tuple[int, int]) -> bool:
    return any(item.get("runner") == list(runner) for item in deaths(run_dir, attempt))


def spent(ending: Ending, retries: int) -> Ending:
    """The same ending once the budget is used up: its message says how often it was tried."""
    if not ending.retry or not retries:
        return ending
    times = "once" if retries == 1 else f"{retries} times"
    message = f"{ending.message}; it had already been started again {times}"
    return Ending(ending.state, ending.failure, message)


def when_again(ending: Ending) -> str:
    """In brackets, when a run of this class is started again; "" where that is at once. In the post-mortem's words."""
    told = facts(ending.failure).by_itself
    return f" ({told})" if ending.retry and told else ""


def oom_kills(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """How many processes the kernel has ended for lack of memory, in this process's own group; -1: it does not tell.

    A VM without memory groups counts for the whole machine in /proc/vmstat.
    """
    for path in _counters(proc, cgroups):
        try:
            for line in path.read_text().splitlines():
                name, _, number = line.partition(" ")
                if name == "oom_kill":
                    return int(number)
        except (OSError, ValueError):
            continue
    return -1


def _counters(proc: Path, cgroups: Path) -> list[Path]:
    """Where the count may be, the nearest first: version 1 of the memory groups, version 2, the whole machine."""
    found = []
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in sorted(lines, key=lambda item: ":memory:" not in item):
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        # Inside a container the path may be the host's, while the container's own group is mounted at the top.
        if "memory" in controllers.split(","):
            found += [
                cgroups / "memory" / path.lstrip("/") / "memory.oom_control",
                cgroups / "memory/memory.oom_control",
            ]
        elif not controllers:
            found += [cgroups / path.lstrip("/") / "memory.events", cgroups / "memory.events"]
    return [*found, proc / "vmstat"]
