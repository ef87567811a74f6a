"""What a press of a button does: the same functions as the command line, each press once however often it arrives.

`act` is called on a thread that may wait. It never raises for what a view sends: the answer says what was wrong.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from bridgehead import names
from bridgehead.errors import BridgeheadError, UsageError, VerificationError
from bridgehead.queue_lines import Verb, parse_line
from control_panel.checks import Checks, Seal, seal
from control_panel.log_text import Reader, plain
from control_panel.presses import Press, Presses
from control_panel.sent import Sent
from control_panel.shapes import Artifact, HashState, QueueLine
from run_control import (
    commands,
    desktop,
    launch_notes,
    log_pages,
    plan,
    queue_writer,
    queueing,
    releasing,
    stopping,
    views,
)
from run_control.commands import Order
from run_control.project import Project

Answer = dict[str, Any]
REMEMBERED_MAX: Final = 4096  # presses whose answer is repeated and not acted on again
_NOT_TAKEN: Final = f"it is in {names.QUEUE_FILE}; no bridge has taken it yet"
_NEVER_CAME: Final = "it never arrived, so nothing was done"
_PRESS_AGAIN: Final = "the same was pressed in another view at this moment and counts once; press again for another"
_SHOWN_ALREADY: Final = "this cell was shown already; ask anew for another look at it"


class Actions:
    """Safe from several threads."""

    def __init__(
        self,
        project: Project,
        *,
        sent: Sent | None = None,
        on_check: Callable[[Artifact], None] = lambda artifact: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`on_check` hears what `verify` has found."""
        self.sent = sent or Sent()
        self.checks = Checks(project.private)
        self._project = project
        self._on_check = on_check
        self._clock = clock
        self._lock = threading.Lock()
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        self._presses = Presses(project.private, project.queue)
        self._verbs: dict[str, Callable[[str, Mapping[str, Any]], Answer]] = {
            "plan": self._plan,
            "fate": self._fate,
            "pair": self._pair,
            "verify": self._verify,
            "open": self._open,
            "log": self._log,
            **dict.fromkeys(("run", "stop", "resume", "rerun", "export", "gate", "sh", "sync", "release"), self._queue),
        }

    def act(self, command: Mapping[str, Any]) -> Answer:
        """`command`: {"id", "verb", "args"}. Returns {"id", "state", "text", "line"} and what the verb adds.

        It may tell its "view" and what that had "seen": the number of the newest line of the queue that it showed.

        States: sent (in queue.txt), taken (the bridge has it), done, refused (nothing was done), failed. An id that
        came before gets the answer that it got then, or as far as it is; one that came to an earlier kernel makes only
        those of its lines that did not get into queue.txt.
        """
        command_id, verb, args = str(command.get("id", ""))[:64], str(command.get("verb", "")), command.get("args")
        if not command_id or verb not in self._verbs or not isinstance(args, Mapping):
            return _answer(command_id, "refused", f"no such command: {verb[:40]!r}")
        with self._lock:
            known = self._answers.get(command_id)
            if known is not None:
                return known
            self._remember(command_id, _answer(command_id, "sent", "it is under way"))
        meant = args.get("verb", "run") if verb == "plan" else verb
        origin = {"view": str(command.get("view", ""))[:64], "seen": _whole(command.get("seen"))}
        answer = self._guarded(command_id, verb, {**args, **origin, "verb": meant})
        with self._lock:
            self._remember(command_id, _answer(command_id, "refused", _SHOWN_ALREADY) if "cell" in answer else answer)
        return answer

    def _guarded(self, command_id: str, verb: str, args: Mapping[str, Any]) -> Answer:
        try:
            return self._verbs[verb](command_id, args)
        except BridgeheadError as error:
            return {**_answer(command_id, "refused", plain(error.message)), "next": plain(error.hint)}
        except (OSError, sqlite3.Error) as error:
            said, path = getattr(error, "strerror", "") or str(error), getattr(error, "filename", None)
            where = f"{Path(path).name}: " if isinstance(path, str | os.PathLike) else ""
            step = f"put that right in {self._project.root}, then press again" if where else ""
            return {**_answer(command_id, "failed", plain(f"{where}{said}")), "next": plain(step)}

    def _remember(self, command_id: str, answer: Answer) -> None:
        self._answers[command_id] = answer
        while len(self._answers) > REMEMBERED_MAX:
            self._answers.popitem(last=False)

    # --- what becomes a line of queue.txt ---------------------------------------------------------

    def _orders(self, args: Mapping[str, Any], *, keep: bool) -> list[Order]:
        """The lines of this press. `keep`: they will be queued. Raises UsageError and NotFoundError."""
        verb, run, project = str(args["verb"]), _text(args, "run"), self._project
        if verb == "run":
            overrides = args.get("overrides")
            words = commands.override_words(overrides) if isinstance(overrides, Mapping) else []
            stage, vm, unpriced = (_text(args, name) for name in ("stage", "vm", "unpriced"))
            return [commands.order_run(project, stage, words, vm=vm, unpriced=unpriced)]
        if verb == "stop":
            return self._stop_orders(run, now=args.get("now") is True)
        if verb == "resume":
            return [commands.order_resume(project, run)]
        if verb == "rerun":
            return [commands.order_rerun(project, run, anyway=args.get("anyway") is True, keep=keep)]
        if verb in (names.EXPORT, names.GATE):
            return [commands.order_shipped(project, verb)]
        if verb == "sh":
            return [Order(queue_writer.shell_line(_text(args, "text"), _text(args, "vm")))]
        if verb == "sync":
            return [Order(f"{Verb.SYNC}:")]
        if verb == "release":
            return [Order(releasing.plan(project, _text(args, "vm")).line)]
        raise UsageError(f"{verb[:40]} is no line of {names.QUEUE_FILE}")

    def _stop_orders(self, run: str, *, now: bool) -> list[Order]:
        """A second line would kill what the first one lets save: only a press that says so may write it."""
        view, lines = commands.stop_lines(self._project, run, now=now)
        if not lines:
            raise UsageError(f"{view.run_id} has ended already: {view.state}")
        already = None if now else stopping.under_way(self._project, view)
        if already is not None and already.lines:
            raise UsageError(
                f"{view.run_id} is already being stopped by {already.in_words(self._clock())}",
                hint="wait until it has saved; Kill now ends it at once and loses what came after its last checkpoint",
            )
        return [Order(line) for line in lines]

    def _plan(self, command_id: str, args: Mapping[str, Any]) -> Answer:
        orders = self._orders(args, keep=False)
        answer = _answer(command_id, "done", "", "; ".join(shown(order.line) for order in orders))
        if args["verb"] == "release":
            back = releasing.plan(self._project, _text(args, "vm"))
            lines = [*back.lines, *(f"Note: {warning}" for warning in back.warnings)]
            return {**answer, "text": "\n".join(map(plain, lines)), "warn": bool(back.under_way or back.warnings)}
        if not orders[0].stage:
            return answer
        made = launch_notes.with_notes(self._project, commands.plan_of(self._project, orders[0]))
        told = {**answer, "text": "; ".join(plan.lines(made)), "plan": made.to_json()}
        told["spec"] = {key: value for key, value in made.stage.to_json().items() if key != "pins"}
        if made.refusal is None:
            return told
        return {**told, "state": "refused", "text": plain(made.refusal.message), "next": plain(made.refusal.hint)}

    def _queue(self, command_id: str, args: Mapping[str, Any]) -> Answer:
        """One after the other, so that the second of two views or kernels sees the line of the first."""
        project = self._project
        with queueing.in_turn(project.stop_lock if args["verb"] == "stop" else project.press_lock):
            return self._queue_now(command_id, args)

    def _queue_now(self, command_id: str, args: Mapping[str, Any]) -> Answer:
        press = self._presses.find(command_id)
        if press is None:
            orders = self._orders(args, keep=True)
            commands.check(self._project, orders[0])
            made = [order.line for order in orders]
            twin, view = self._twin(made, args), str(args["view"])
            after = queueing.newest_seq(self._project)
            press = self._presses.note(command_id, [] if twin else made, after, view=view, twin=twin)
        if press.twin:
            return self._twins_answer(press)
        missing = self._missing(press)
        if not missing:
            return self._told_before(press)
        if args["verb"] == "stop" and args.get("now") is not True:  # since that kernel another view may have acted
            self._stop_orders(_text(args, "run"), now=False)
        for line in missing[:-1]:  # a stop at once is two lines: the first asks, the second kills
            queueing.submit(self._project, line, via="panel")
        return self._submit_last(press, missing[-1])

    def _twin(self, lines: list[str], args: Mapping[str, Any]) -> str:
        """The press of another view that this one is the same as. A stop has a rule of its own: see _stop_orders."""
        if args["verb"] == "stop" or not args["view"] or args["seen"] is None:
            return ""
        taken = [(seq, text) for seq, text, _ in queueing.taken_after(self._project, 0)]
        found = self._presses.twin(lines, args["view"], args["seen"], taken)
        return found.id if found is not None else ""

    def _twins_answer(self, press: Press) -> Answer:
        first = self._presses.find(press.twin)
        if first is None:
            return _answer(press.id, "refused", _PRESS_AGAIN)
        told = self._told_before(first, press.id)
        return {**told, "text": f"{told['text']}; {_PRESS_AGAIN}"}

    def _submit_last(self, press: Press, line: str) -> Answer:
        """The line whose fate is the press's."""
        words = _words(press)
        waiting = QueueLine(0, press.id, words, "sent", t=self._clock())
        self.sent.add(press.id, line, waiting, queueing.newest_seq(self._project))
        try:
            queued = queueing.submit(self._project, line, via="panel")
        except OSError:
            self.sent.drop(press.id)
            raise
        except UsageError:  # the bridge rejects it; it is in the file all the same
            self._presses.made(press)
            raise
        self._presses.made(press)
        if not queued.taken:
            return _answer(press.id, "sent", _NOT_TAKEN, words)
        self.sent.taken(press.id, queued.seq)
        return _taken(press.id, queued.seq, queued.run_id, words)

    # --- a press that came to an earlier kernel ---------------------------------------------------------

    def _missing(self, press: Press) -> list[str]:
        return self._presses.missing(press, [text for _, text, _ in queueing.taken_after(self._project, press.after)])

    def _told_before(self, press: Press, asks: str = "") -> Answer:
        """Its lines are in the file: what became of the last one. `asks`: the press that is answered, if another."""
        rows = [row for row in queueing.taken_after(self._project, press.after) if row[1] == press.lines[-1]]
        found = [(seq, run) for seq, _, run in rows if not self.sent.other(press.id, seq)]
        if not found:
            return _answer(asks or press.id, "sent", _NOT_TAKEN, _words(press))
        self.sent.taken(press.id, found[0][0])
        return _taken(asks or press.id, *found[0], _words(press))

    def _fate(self, command_id: str, args: Mapping[str, Any]) -> Answer:
        """What became of the press `of`, for a view that lost its answer; nothing is done for it."""
        asked = _text(args, "of")
        with self._lock:
            known = self._answers.get(asked)
        press = None if known is not None else self._presses.find(asked)
        if press is not None and press.twin:
            known = self._twins_answer(press)
        elif press is not None and len(self._missing(press)) < len(press.lines):
            known = self._told_before(press)
        return {**(known or _answer(asked, "refused", _NEVER_CAME)), "of": asked, "id": command_id}

    # --- what does not ---------------------------------------------------------------------------------

    def _pair(self, command_id: str, _args: Mapping[str, Any]) -> Answer:
        text = "it holds your pairing code: paste it into a notebook of your own and share it with nobody"
        return {**_answer(command_id, "done", text), "cell": commands.pairing_cell(self._project)}

    def _verify(self, command_id: str, args: Mapping[str, Any]) -> Answer:
        run, path = _text(args, "run"), _text(args, "path") or names.BUNDLE
        found = commands.arrived(self._project, run, path)
        before = seal(found)
        try:
            report = commands.verify_bundle(found)
        except VerificationError as error:
            self._checked(run, path, HashState.BAD, error.in_one_line(), before, seal(found))
            return {**_answer(command_id, "failed", plain(error.message)), "next": plain(error.hint)}
        text = f"verified: {report['files']} files, {report['samples']} samples, gate {report['gate']}"
        self._checked(run, path, HashState.VERIFIED, text, before, seal(found))
        return {**_answer(command_id, "done", text), "report": report}

    def _checked(
        self, run: str, path: str, state: HashState, note: str, before: Seal | None, after: Seal | None
    ) -> None:
        now, text = self._clock(), plain(note, 300)
        self.checks.note(run, path, state, text, now, after if before == after else None)
        self._on_check(Artifact(run, path, 0, state, "bundle", now, text, now))

    def _open(self, command_id: str, args: Mapping[str, Any]) -> Answer:
        found = commands.arrived(self._project, _text(args, "run"), _text(args, "path"))
        folder = found if found.is_dir() else found.parent
        return _answer(command_id, "done" if desktop.open_folder(folder) else "failed", str(folder))

    def _log(self, command_id: str, args: Mapping[str, Any]) -> Answer:
        run = views.run(self._project, _text(args, "run"))
        path, offset = self._project.run(run.run_id) / names.LOG, _whole(args.get("from_bytes"))
        if _text(args, "search"):
            found = log_pages.search(path, _text(args, "search"), from_bytes=offset or 0)
        elif args.get("first_error"):
            found = log_pages.first_error(path, from_bytes=offset or 0)
        else:
            found = log_pages.page(path, from_bytes=offset, to_bytes=_whole(args.get("to_bytes")))
        reader = Reader(run.run_id)
        made = reader.lines([line for _, line in found.lines], run.vm_id, 0.0)
        lines = [{**line.to_json(), "at": at} for (at, _), line in zip(found.lines, made, strict=True)]
        text = "" if found.searched_to is None else f"nothing up to byte {found.searched_to:,}; search on"
        return {**_answer(command_id, "done", text), "run": run.run_id, **log_pages.to_json(found, lines)}


def shown(line: str) -> str:
    """A queue line as a person reads it: what sh: holds in clear."""
    parsed = parse_line(line)
    if parsed is None or parsed.verb is not Verb.SH:
        return plain(line, 500)
    pin = f"@{parsed.vm} " if parsed.vm else ""
    return plain(f"{pin}{Verb.SH}: {parsed.argument}", 500)


def _words(press: Press) -> str:
    return "; ".join(shown(line) for line in press.lines)


def _taken(command_id: str, seq: int, run_id: str, words: str) -> Answer:
    return {**_answer(command_id, "taken", f"#{seq} {run_id}".strip(), words), "run": run_id}


def _answer(command_id: str, state: str, text: str, line: str = "") -> Answer:
    return {"id": command_id, "state": state, "text": text, "line": line}


def _text(args: Mapping[str, Any], name: str) -> str:
    value = args.get(name, "")
    return value if isinstance(value, str) else ""


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
