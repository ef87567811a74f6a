"""When this VM gives itself back, and why it stays up when it does not. The cell alone can do it, so it decides too.

Nothing is released while something is only here: a command that is not over, a run whose outputs or checkpoints have
not reached the store and the laptop.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridgehead import files, names, paths, processes
from bridgehead.names import Ack, CheckpointLevel
from bridgehead.queue_lines import Verb
from bridgehead.records import duration
from vm_daemons import asked_release, beats, daemons, lifetime, mounting, uploads
from vm_daemons.gauges import age_s
from vm_daemons.home import VmHome
from vm_daemons.journal import Step

FLUSH_TIMEOUT_MS = 1_800_000
LAST_WORD_S = 15.0  # for laptop and store to hear of it
STOP_WAIT_S = 10.0
ASKING_S = 60.0  # the command daemon has given a sign of life within so long
PAUSES_S = (60.0, 120.0, 300.0, 600.0)  # after a release that failed
UNTOLD_S = 600.0  # so long an answer that the laptop has not taken keeps the VM: it may dispute one for ever
TAKEN_UP_AFTER = 3  # times the patience with a VM: by then its runs are taken up from the store, or there are none
_OVER = frozenset({Step.FINISHED, Step.ABANDONED, Step.HANDED_OVER})
_LAST_WORDS = frozenset({str(Ack.FINISHED), str(Ack.REJECTED), str(Ack.UNKNOWN)})
_ELSEWHERE = frozenset({Step.ABANDONED, Step.HANDED_OVER})


@dataclass(frozen=True)
class Open:
    """One command as the journal tells of it."""

    verb: str
    run_id: str
    attempt: int
    step: str
    at: float = 0.0  # when that was, in seconds since 1970
    told: bool = False  # the laptop has the answer


@dataclass(frozen=True)
class Verdict:
    """`because`: why it stays; empty when only the grace is waited for, until `in_s` (seconds) is 0."""

    because: str = ""
    in_s: float = 0.0

    @property
    def now(self) -> bool:
        return not self.because and self.in_s <= 0


class Release:
    """`look()` at each turn of the cell's loop; `go()` once its verdict is `now`. For the notebook's main thread."""

    def __init__(self, home: VmHome, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._home = home
        self._say = say
        self._clock = clock
        self._began = self._idle_since = clock()
        self._token: object = None
        self._failures = 0
        self._not_before = 0.0
        self._written: dict[str, Any] = {}
        self.trouble = ""

    def look(self) -> Verdict:
        """Raises OSError. What it finds is written down for the heartbeat."""
        verdict = self._judge()
        self._write_down(verdict)
        return verdict

    def go(self) -> bool:
        """Give the VM back; False when it could not be done, or a command came in between.

        The command daemon is stopped first, so that it accepts nothing that would go down with the VM.
        """
        self._say("everything is done and safe: this VM gives itself back")
        self._end_command_daemon()
        why = _blocker(self._home, commands(self._home.journal))
        if not why:
            beats_before = self._store_beats()
            told = {"released": time.time(), "because": self._because()}
            files.write_json(self._state_file, {"v": names.RECORD_VERSION, **told})
            _wait(LAST_WORD_S, lambda: self._heard() and self._store_beats() != beats_before)
            daemons.stop(self._home)
            why = mounting.flush_drive(FLUSH_TIMEOUT_MS)
            why = f"Drive has not taken everything: {why}" if why else _unassign()
        if not why:
            asked_release.met(self._home)
            return True
        self._failures += 1
        self.trouble = why
        self._not_before = self._clock() + PAUSES_S[min(self._failures, len(PAUSES_S)) - 1]
        self._say(f"it stays: {why}")
        self._written = {}
        self._write_down(Verdict(why))
        return False

    # --- inside ------------------------------------------------------------------------------------

    @property
    def _state_file(self) -> Path:
        return self._home.state / names.VM_LIFETIME

    def _judge(self) -> Verdict:
        grace_s = lifetime.rules(self._home.record()).release_after_s
        asked = asked_release.pending(self._home) is not None
        if asked:
            grace_s = 0.0
        elif grace_s <= 0:
            return Verdict("[vm] release_after_s is not set")
        elif _laptop_is_away(self._home):
            # What a dead VM left is found in the store only after its silence: a shorter grace would end before that.
            grace_s = max(grace_s, TAKEN_UP_AFTER * self._home.rules().lost_after_s)
        token = _stamp(self._home.journal)
        now = self._clock()
        why = _blocker(self._home, commands(self._home.journal), starting=now - self._began <= ASKING_S)
        if why or token != self._token:
            self._token, self._idle_since = token, now
        if why:
            return Verdict(why)
        if now < self._not_before:
            return Verdict(self.trouble)
        return Verdict(in_s=max(0.0, self._idle_since + grace_s - now))

    def _write_down(self, verdict: Verdict) -> None:
        """Only what is new: `releases_at` moves with each look, by less than a second."""
        told: dict[str, Any] = {"stays_because": verdict.because, "releases_at": None}
        if not verdict.because:
            told["releases_at"] = round(time.time() + verdict.in_s)
        known = self._written
        same = known.get("stays_because") == verdict.because
        if same and abs((known.get("releases_at") or 0) - (told["releases_at"] or 0)) <= 2:
            return
        files.write_json(self._state_file, {"v": names.RECORD_VERSION, **told})
        self._written = told

    def _end_command_daemon(self) -> None:
        record = daemons.running(self._home, names.COMMAND_DAEMON)
        if record is None:
            return
        pid, ticks = int(record["pid"]), int(record["start_ticks"])
        processes.send(pid, signal.SIGKILL, started_ticks=ticks)  # it may be killed at any moment
        _wait(STOP_WAIT_S, lambda: not processes.is_alive(pid, ticks))

    def _store_beats(self) -> object:
        """Changes when the uploader has put a beat into the store: the next VM sees there that this one is gone."""
        told = files.read_json(self._home.state / names.VM_STORE_STATE)
        return told.get("beat_number") if isinstance(told, dict) else None

    def _heard(self) -> bool:
        """Whether the laptop has answered a heartbeat that tells of this release; one that was under way does not."""
        told, heard = _stamp(self._state_file), _stamp(self._home.state / daemons.GOODBYE_MARK)
        return told is not None and heard is not None and heard[0] >= told[0]

    def _because(self) -> str:
        """Why it goes, for `bridgehead status`."""
        seen = lifetime.outlook(self._home)
        given = lifetime.handovers(self._home, seen)[1]
        wish = asked_release.pending(self._home)
        why = f"asked for by line #{wish.seq}" if wish is not None else "near its cap"
        if given:
            return f"{why}; for the next VM: {', '.join(given)}"
        if wish is not None or seen.phase is not lifetime.Phase.OPEN:
            return f"{why}, everything is done and safe"
        grace_s = lifetime.rules(self._home.record()).release_after_s
        return f"idle for {duration(grace_s)}, everything is done and safe"


def stays_for(verdict: Verdict) -> str:
    """For the cell's line."""
    return f"stays up: {verdict.because}" if verdict.because else f"gives itself back in {duration(verdict.in_s)}"


def commands(journal: Path) -> list[Open]:
    """The newest attempt of each command in the journal, read without touching it: the daemon owns the file."""
    found: dict[str, Open] = {}
    try:
        data = journal.read_bytes()
    except FileNotFoundError:
        return []
    for raw in data.splitlines():
        try:
            _apply(found, json.loads(raw))
        except (ValueError, TypeError, AttributeError, RecursionError, KeyError):
            continue
    return list(found.values())


def _apply(found: dict[str, Open], line: dict[str, Any]) -> None:
    identity, step, attempt = str(line["id"]), str(line["step"]), int(line["attempt"])
    known = found.get(identity)
    if step == Step.ACCEPTED:
        command = line.get("command")
        if isinstance(command, dict) and (known is None or attempt > known.attempt):
            found[identity] = Open(str(command.get("verb")), str(command.get("run_id", "")), attempt, step)
        elif known is not None and attempt == known.attempt:  # delivered again: perhaps the answer was lost
            found[identity] = dataclasses.replace(known, told=False)
    elif known is None or attempt != known.attempt:
        return
    elif step == Step.ACKED:
        found[identity] = dataclasses.replace(known, told=known.told or line.get("ack") in _LAST_WORDS)
    else:
        found[identity] = dataclasses.replace(known, step=step, at=float(line.get("at") or 0.0))


def _blocker(home: VmHome, known: list[Open], *, starting: bool = False) -> str:
    """One reason why the VM has to stay, "" when there is none. `starting`: the cell itself has only just begun."""
    silent_s = age_s(beats.path(home, names.COMMAND_DAEMON))
    if silent_s is None or silent_s > ASKING_S:
        if starting:
            return "its daemons are starting"
        return "the command daemon does not work, so nobody knows what the queue holds"
    by_run = {item.run_id: item for item in known if item.run_id}
    for item in known:
        if item.verb == Verb.RELEASE:  # the wish itself holds nothing up; it is answered by what comes of it
            continue
        if item.step not in _OVER and not (item.verb in (Verb.RUN, Verb.SH) and _is_safe(home, item)):
            return _open_text(home, item)
        if item.step == Step.FINISHED and not item.told and _may_still_be_told(home, item):
            return f"the laptop has not heard yet how {item.run_id or f'a {item.verb}: command'} ended"
    seen = lifetime.outlook(home)
    under_way, given = lifetime.handovers(home, seen)
    if under_way:
        return f"{under_way[0]} is on its way to the next VM"
    for run_id in given:
        if not uploads.all_arrived(home.run(run_id)):
            return f"the end of the log of {run_id} is only here"
    for run_dir in sorted(home.runs.iterdir()):
        if paths.is_run_id(run_dir.name) and (run_dir / names.RUN_RECORD).exists():
            entry = by_run.get(run_dir.name)
            if (entry is None or entry.step not in _ELSEWHERE) and (why := _only_here(run_dir)):
                return why
    return ""


def _is_safe(home: VmHome, item: Open) -> bool:
    """Ended, and all of it in the store while the laptop is away: it gets everything from there."""
    run_dir = home.run(item.run_id)
    return (run_dir / names.EXIT).exists() and not _only_here(run_dir) and _laptop_is_away(home)


def _may_still_be_told(home: VmHome, item: Open) -> bool:
    return 0 <= time.time() - item.at < UNTOLD_S and not _laptop_is_away(home)


def _only_here(run_dir: Path) -> str:
    run_id, attempt = run_dir.name, _attempt(run_dir)
    levels = files.read_json(run_dir / names.CHECKPOINT_LEVELS)
    levels = levels if isinstance(levels, dict) else {}
    complete_level = levels.get("complete_level")
    complete = attempt > 0 and levels.get("complete_attempt") == attempt
    mirrored = files.read_json(run_dir / names.MIRRORED)
    if isinstance(mirrored, dict) and mirrored.get("attempt") == attempt:
        if mirrored.get("store") == "dead" and not complete:
            return f"the store has not confirmed {run_id}"
        complete = True
    if not complete:
        return f"what {run_id} made is only here"
    if levels.get("confirmed_by") and complete_level == CheckpointLevel.MOUNTED:
        return f"the store has not confirmed what {run_id} made"
    if levels.get("confirmed_by") and not lifetime.in_store(run_dir):
        return f"the store has not confirmed the newest checkpoint of {run_id}"
    return ""


def _attempt(run_dir: Path) -> int:
    record = files.read_json(run_dir / names.RUN_RECORD)
    attempt = record.get("attempt") if isinstance(record, dict) else None
    return attempt if isinstance(attempt, int) else 0


def _open_text(home: VmHome, item: Open) -> str:
    if not item.run_id:
        return f"a {item.verb}: command is under way"
    if (home.run(item.run_id) / names.EXIT).exists():
        return f"{item.run_id} has ended, and what it made is on its way to store and laptop"
    return f"{item.run_id} {'waits to start' if item.step == Step.ACCEPTED else 'runs'}"


def _laptop_is_away(home: VmHome) -> bool:
    silent_s = age_s(home.state / daemons.CONTACT_MARK)
    limits = lifetime.rules(home.record())
    return silent_s is None or silent_s > max(limits.lost_after_s, limits.release_after_s)


def _unassign() -> str:
    """Google Colab takes the VM back at once; elsewhere the cell's end is all that there is. "" when it went well."""
    try:
        from google.colab import runtime
    except ImportError:
        return ""
    try:
        runtime.unassign()
    except Exception as error:  # noqa: BLE001 - edge: foreign code, and the VM must not be left without its heartbeat
        return f"Colab would not take the VM back: {str(error) or type(error).__name__}"
    return ""


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _wait(timeout_s: float, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + timeout_s
    while not done() and time.monotonic() < deadline:
        time.sleep(0.05)
