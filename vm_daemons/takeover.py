"""What other VMs left undone, taken up from the store alone, and the proof that they are dead.

A VM is dead on two independent signs: the bridge has not heard of it (or is itself away), and its beat in the store
stands still. What it had is then taken up with an attempt above all that were ever seen. Of two takers the store's
lease decides; the ledger hears of it when the laptop is back.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from bridgehead import paths
from bridgehead.errors import BridgeheadError
from bridgehead.names import Ack, RunState
from bridgehead.queue_lines import Verb
from bridgehead.records import AckRecord, Command
from vm_daemons.home import VmHome
from vm_daemons.journal import Entry, Journal, Step
from vm_daemons.peers import Peer, Peers
from vm_daemons.task import Phase, Proof, Task

_log = logging.getLogger(__name__)

IDLE_LOOKS = 10  # with the laptop there, what was taken from this VM is looked after so much more seldom
_MOST_PAUSE_S = 30.0


@dataclass
class Findings:
    """What there is to do, in the queue's order; each with its new attempt."""

    take: list[Command] = field(default_factory=list)
    # What the laptop is to hear: how something ended, or of an sh: that nobody will ever know.
    relay: list[tuple[Command, AckRecord]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)  # for people: what was queued, under way, done


def find(own: Journal, peers: list[Peer], silent_after_s: float, vm_id: str, only: set[str] | None = None) -> Findings:
    """Decide for everything that other VMs' journals hold; `only` limits it to some command ids."""
    findings = Findings()
    stops = {run_id for peer in peers for run_id in peer.stops()}
    newest: dict[str, list[tuple[Entry, Peer]]] = {}
    for peer in peers:
        for entry in peer.entries:
            held = newest.setdefault(entry.command.id, [])
            if held and held[0][0].command.attempt < entry.command.attempt:
                held.clear()
            if not held or held[0][0].command.attempt == entry.command.attempt:
                held.append((entry, peer))
    for command_id, held in sorted(newest.items(), key=lambda item: item[1][0][0].command.seq):
        if only is not None and command_id not in only:
            continue
        _judge(findings, own, held, silent_after_s, vm_id, stops)
    return findings


def _judge(
    findings: Findings,
    own: Journal,
    held: list[tuple[Entry, Peer]],
    silent_after_s: float,
    vm_id: str,
    stops: set[str],
) -> None:
    entry, peer = held[0]
    command, mine = entry.command, own.newest(entry.command.id)
    attempt = max(command.attempt, mine.command.attempt if mine is not None else 0) + 1
    if mine is not None and (mine.step is not Step.ABANDONED or mine.command.attempt > command.attempt):
        return  # this VM has it, or knows better
    what = f"{command.run_id or command.verb}: "
    if _told_to_the_end(entry) or entry.step is Step.ABANDONED:
        findings.lines += [what + f"over on {peer.vm_id}"] if command.run_id and entry.answer is not None else []
        return
    given_away = entry.step is Step.HANDED_OVER
    if not given_away and any(other.silent_s < silent_after_s for _, other in held):
        return
    if command.verb not in (Verb.RUN, Verb.SH) or not paths.is_run_id(command.run_id):
        return
    new = dataclasses.replace(command, attempt=attempt, vm_id=vm_id, delivery=0, former_vm=peer.vm_id, former_gone=True)
    if command.verb == Verb.SH and entry.answer is None:
        why = _why_unknown(entry, peer.vm_id)
        findings.relay.append((new, AckRecord(vm_id, Ack.UNKNOWN, attempt, why, at=round(time.time(), 3))))
        findings.lines.append(what + why)
    elif command.verb == Verb.SH and entry.answer is not None:
        findings.relay.append((new, dataclasses.replace(entry.answer, vm_id=vm_id, attempt=attempt)))
        findings.lines.append(what + f"had ended on {peer.vm_id}; the laptop hears of it from here")
    elif command.run_id in stops or (entry.answer is not None and entry.answer.state == RunState.STOPPED):
        findings.lines.append(what + f"was asked to stop on {peer.vm_id}, so it is not taken up")
    else:
        findings.take.append(new)
        stood = "had ended" if entry.answer is not None else "was under way" if entry.starts else "was queued"
        findings.lines.append(what + f"{stood} on {peer.vm_id}; taken over as attempt {attempt}")


def _why_unknown(entry: Entry, vm_id: str) -> str:
    """A journal proves that a command began. That it did not, the copy in the store can't: it is a bit behind."""
    if entry.starts:
        return f"it began on {vm_id}, which is dead; nobody knows how it ended, and it is not repeated"
    return (
        f"it waited on {vm_id}, which is dead; most likely it never began: the journal in the store has no start of it,"
        " but may lack the last second. It is not repeated by itself"
    )


def _told_to_the_end(entry: Entry) -> bool:
    return entry.answer is not None and str(entry.answer.ack) in entry.acked


class TakeOver:
    """Watches the store while something hangs on it; all but the thread's looking happens in the daemon's loop."""

    def __init__(
        self,
        home: VmHome,
        journal: Journal,
        peers: Peers,
        tasks: dict[str, Task],
        *,
        has_store: Callable[[], bool],
        silent_since: Callable[[], float | None],  # monotonic; the bridge has not answered since
        hand_over: Callable[[Callable[[], None]], None],
        begin: Callable[[Command], None],  # an accepted command of the journal
        report: Callable[[Command], None],
        abandon: Callable[[Command], None],
        changed: Callable[[], None],  # something that waited may go on
    ) -> None:
        self._home = home
        self._journal = journal
        self._peers = peers
        self._tasks = tasks
        self._has_store = has_store
        self._silent_since = silent_since
        self._hand_over = hand_over
        self._begin = begin
        self._report = report
        self._abandon = abandon
        self._changed = changed
        self._vm_id = str(home.record()["vm_id"])
        self._said: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="peers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    @property
    def patience_s(self) -> float:
        """How long each of the two signs has to last."""
        return max(0.1, self._home.rules().lost_after_s)

    # --- in the loop -----------------------------------------------------------------------------------

    def admit(self, task: Task, *, accepted: bool) -> None:
        """Say of a new task whether it needs proof; `accepted`: the laptop has agreed to it before."""
        command = task.command
        if command.former_vm and not command.former_gone and not accepted:
            task.proof = Proof.NEEDED if self._has_store() else Proof.TOLD

    def told(self, command: Command) -> None:
        """The laptop delivered it again: perhaps with the news that its former VM is gone."""
        task = self._tasks.get(command.id)
        if task is not None and task.command.attempt == command.attempt and command.former_gone:
            task.proof = Proof.GIVEN if task.proof is Proof.NEEDED else task.proof
            self._changed()

    def settled(self, command: Command) -> None:
        """The laptop has taken our answer."""
        task = self._tasks.get(command.id)
        if task is not None and task.proof is Proof.TOLD and task.command.attempt == command.attempt:
            task.proof = Proof.GIVEN
            self._changed()

    def contest(self, command: Command) -> None:
        """Another VM holds the run's lease in the store: wait until that one has ended it or is dead itself."""
        task = self._tasks.get(command.id)
        if task is not None and task.command.attempt == command.attempt:
            task.phase, task.contested_at = Phase.WAITING, time.monotonic()
            self._say(f"{command.run_id}: another VM has it in the store; waits for that one")

    def step(self) -> None:
        """Where the laptop is away too, an answer that it can't give is not waited for."""
        for task in list(self._tasks.values()):
            if task.proof is Proof.TOLD and self._bridge_is_silent() and self._has_store():
                self._again(task)

    def _learn(self, peers: list[Peer]) -> None:
        silent = {peer.vm_id for peer in peers if peer.silent_s >= self.patience_s}
        for task in list(self._tasks.values()):
            if task.proof is Proof.NEEDED and task.command.former_vm in silent:
                self._say(f"{task.command.run_id}: {task.command.former_vm} is silent in the store too")
                task.proof = Proof.TOLD
                self._report(task.command)
            if task.contested_at:
                self._settle_contest(task, peers)
        if self._bridge_is_silent():
            self._take(find(self._journal, peers, self.patience_s, self._vm_id))
        elif mine := self._taken_from_us():
            self._take(find(self._journal, peers, self.patience_s, self._vm_id, mine))
        self._changed()

    def _take(self, findings: Findings) -> None:
        for line in findings.lines:
            self._say(line)
        relayed = [command for command, _ in findings.relay]
        self._journal.accept([*findings.take, *relayed])
        for command in findings.take:
            self._begin(command)
        for command, answer in findings.relay:
            self._journal.finished(command, answer)
            self._report(command)

    def _settle_contest(self, task: Task, peers: list[Peer]) -> None:
        """Try again when the other one has ended the run; above its attempt when it is dead; else go on waiting."""
        holders = [
            (entry, peer)
            for peer in peers
            for entry in peer.entries
            if entry.command.id == task.command.id and entry.command.attempt >= task.command.attempt
        ]
        live = [entry for entry, peer in holders if not entry.is_over and peer.silent_s < self.patience_s]
        if live and task.command.delivery == 0:
            self._abandon(task.command)  # it was we who took it over, and the other one was faster
        elif not live and any(entry.step is Step.FINISHED for entry, _ in holders):
            task.contested_at = 0.0  # what it left is brought from the store
        elif not live and time.monotonic() - task.contested_at >= self.patience_s:
            self._again(task, above=max((entry.command.attempt for entry, _ in holders), default=0))

    def _again(self, task: Task, above: int = 0) -> None:
        """Take up a command of our own anew, with an attempt that no lease and no offer has."""
        attempt = max(task.command.attempt, above) + 1
        command = dataclasses.replace(task.command, attempt=attempt, delivery=0, former_gone=True)
        self._journal.accept([command])
        self._say(f"{command.run_id}: goes on here as attempt {attempt}")
        self._begin(command)

    def _bridge_is_silent(self) -> bool:
        since = self._silent_since()
        return since is not None and time.monotonic() - since >= self.patience_s

    def _taken_from_us(self) -> set[str]:
        """Commands that another VM took from this one; should that one die unheard, they come back here."""
        return {
            entry.command.id
            for entry in self._journal.entries()
            if entry.step is Step.ABANDONED and self._journal.newest(entry.command.id) is entry
        }

    def _say(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            _log.info("%s", line)

    # --- the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        trouble, idle = "", 0
        while not self._stop.is_set():
            pause_s = min(_MOST_PAUSE_S, self.patience_s / 2)
            urgent, wanted = self._wanted()
            idle = 0 if urgent else idle + 1
            if urgent or (wanted and idle % IDLE_LOOKS == 0):
                try:
                    peers = self._peers.look({vm_id for vm_id in wanted if vm_id})
                    self._hand_over(_bound(self._learn, peers))
                    trouble = ""
                except (BridgeheadError, OSError) as error:
                    if trouble != (trouble := str(error)):
                        _log.warning("the other VMs can't be looked for in the store: %s", error)
            self._stop.wait(pause_s if urgent else min(1.0, pause_s))

    def _wanted(self) -> tuple[bool, set[str]]:
        """Whether to look now, and for whom ("" for nobody in particular)."""
        tasks = list(self._tasks.values())
        former = {task.command.former_vm for task in tasks if task.proof is Proof.NEEDED}
        contested = any(task.contested_at for task in tasks)
        urgent = bool(former) or contested or self._silent_since() is not None
        return urgent and self._has_store(), former | ({""} if self._taken_from_us() else set())


def _bound(function: Callable[[list[Peer]], None], peers: list[Peer]) -> Callable[[], None]:
    return lambda: function(peers)


def survey(peers: Iterable[Peer]) -> list[str]:
    """One line for each VM that left something undone, for the cell: what was under way, what queued, how much done."""
    lines = []
    for peer in peers:
        going = [item.command.run_id for item in peer.entries if not item.is_over and item.starts]
        queued = [item.command.run_id for item in peer.entries if not item.is_over and not item.starts]
        done = sum(item.answer is not None for item in peer.entries)
        parts = [f"under way: {', '.join(filter(None, going))}"] if any(going) else []
        parts += [f"queued: {', '.join(filter(None, queued))}"] if any(queued) else []
        if parts:
            lines.append(f"{peer.vm_id}: {'; '.join([*parts, f'{done} ended'])}")
    return lines
