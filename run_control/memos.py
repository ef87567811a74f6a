"""Ops-friction memos: what went wrong that was nobody's code, when, how often, what it cost and what helped.

One memo per failure class in memos/ of the project: a JSON record, and a Markdown page for a person.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bridgehead import files, names
from bridgehead.errors import BridgeDownError, NotFoundError, UsageError
from bridgehead.failures.classes import INFRASTRUCTURE, facts
from bridgehead.names import FailureClass, RunState
from bridgehead.records import Status, duration
from run_control import locks, memo_evidence, money, run_cost
from run_control.project import Project
from run_control.views import RunView

FOLDER: Final = "memos"
KEPT_INCIDENTS: Final = 50  # the newest; the counts go on
APPLIES_S: Final = 30 * 86_400.0  # younger ones are quoted before a launch
_LOCK: Final = "memos.lock"
_LOCK_S: Final = 5.0
HEADERS: Final = ("MEMO", "TIMES", "LAST", "COST", "SYMPTOM", "HELPED")


def note(project: Project, view: RunView, postmortem: dict[str, Any], now: float) -> str:
    """Count this end in its memo; returns the class, or "" for one that needs no memo.

    A run that ended well is noted as what helped, in the memos of failures before of the same stage and config.
    Raises OSError.
    """
    failure = _class_of(view, postmortem)
    with _writing(project):
        if failure == FailureClass.DONE:
            _note_help(project, view, now)
            return ""
        if failure not in INFRASTRUCTURE:
            return ""
        memo = _load(project, failure) or _new(failure)
        if any(_key(item) == (view.run_id, view.attempt) for item in memo["incidents"]):
            return str(failure)
        memo["incidents"] = [*memo["incidents"], _incident(project, view, postmortem, now)][-KEPT_INCIDENTS:]
        memo["times"] += 1
        memo["lost_s"] = round(memo["lost_s"] + memo["incidents"][-1]["lost_s"], 1)
        memo["lost_money"] = _with(memo.get("lost_money") or {}, memo["incidents"][-1]["lost_money"])
        at = memo["incidents"][-1]["at"]
        memo["first"], memo["last"] = min(memo["first"] or at, at), max(memo["last"], at)
        memo["symptom"] = memo["incidents"][-1]["symptom"] or memo["symptom"]
        _save(project, memo)
    return str(failure)


def all_of(project: Project) -> list[dict[str, Any]]:
    """All memos, the most recent first; one that can't be read is passed over."""
    found = [_load(project, failure) for failure in FailureClass]
    return sorted((memo for memo in found if memo is not None), key=lambda memo: -memo["last"])


def applying(
    project: Project, *, stage: str = "", classes: frozenset[FailureClass] | None = None, now: float | None = None
) -> list[str]:
    """One line for each memo that a launch should hear of: seen within 30 days, of these classes, in this stage."""
    moment = time.time() if now is None else now
    lines = []
    for memo in all_of(project):
        wanted = classes is None or FailureClass(memo["class"]) in classes
        stages = {item["stage"] for item in memo["incidents"]}
        if wanted and moment - memo["last"] < APPLIES_S and (not stage or stage in stages):
            lines.append(_quote(memo, moment))
    return lines


def helped(project: Project, name: str, words: str, now: float) -> dict[str, Any]:
    """Write down what helped. Raises NotFoundError when there is no such memo."""
    with _writing(project):
        memo = find(project, name)
        memo["helped"] = [*memo["helped"], {"at": round(now, 3), "what": words.strip()[:500], "by": "person"}]
        _save(project, memo)
    return memo


def find(project: Project, name: str) -> dict[str, Any]:
    """Raises NotFoundError, and UsageError for what is no class."""
    try:
        memo = _load(project, FailureClass(name))
    except ValueError:
        raise UsageError(f"no failure class {name!r}", hint="bridgehead memos") from None
    if memo is None:
        raise NotFoundError(f"no memo about {name}", hint="bridgehead memos")
    return memo


def row(memo: dict[str, Any], now: float) -> tuple[str, ...]:
    """Cells under HEADERS."""
    ago = f"{duration(max(0.0, now - memo['last']))} ago"
    told = memo["helped"][-1]["what"] if memo["helped"] else ""
    return memo["class"], str(memo["times"]), ago, _cost(memo), memo["symptom"][:80], told[:60]


def _class_of(view: RunView, postmortem: dict[str, Any]) -> FailureClass:
    if view.state == RunState.LOST:
        return FailureClass.VM_LOST
    if view.state in (RunState.DONE, RunState.STOPPED):
        return FailureClass.DONE if view.state == RunState.DONE else FailureClass.STOPPED
    verdict = postmortem.get("verdict")
    named = verdict.get("class") if isinstance(verdict, dict) else view.failure_class
    try:
        return FailureClass(str(named))
    except ValueError:
        return FailureClass.UNKNOWN


def _incident(project: Project, view: RunView, postmortem: dict[str, Any], now: float) -> dict[str, Any]:
    """`at`: when the run ended, also when the laptop heard of it hours later."""
    status = _status(project, view)
    risk = (view.at_risk or {}).get("seconds") if view.state == RunState.LOST else None
    lost_s = float(risk) if isinstance(risk, int | float) else _lost_s(view, status)
    at = status.ended if status is not None and 0 < status.ended <= now else now
    verdict = postmortem.get("verdict")
    evidence = verdict.get("evidence") if isinstance(verdict, dict) else None
    decisive = [item["text"] for item in evidence or [] if isinstance(item, dict) and item.get("decides")]
    symptom = decisive[0] if decisive else view.reason or ("its VM fell silent" if view.state == RunState.LOST else "")
    return {
        "at": round(at, 3), "run_id": view.run_id, "attempt": view.attempt, "stage": view.stage, "vm_id": view.vm_id,
        "symptom": " ".join(symptom.split())[:300], "lost_s": round(lost_s, 1), "seq": view.seq,
        "lost_money": run_cost.of_lost(view.cost, lost_s),
        "config_sha256": memo_evidence.config_of(project, view.run_id),
    }  # fmt: skip


def _status(project: Project, view: RunView) -> Status | None:
    """What the VM last said of this attempt."""
    with contextlib.suppress(UsageError):
        status = Status.from_json(files.read_json(project.run(view.run_id) / names.STATUS))
        return status if status.attempt == view.attempt else None
    return None


def _lost_s(view: RunView, status: Status | None) -> float:
    """Seconds of work since the newest checkpoint: up to the last word of progress, and none past what was saved."""
    kept_step = max((int(item.get("step") or 0) for item in view.levels.values()), default=0)
    if status is None or not status.progress_at or (view.levels and kept_step >= view.step):
        return 0.0
    kept_at = max((float(item.get("saved_at") or 0.0) for item in view.levels.values()), default=0.0)
    return max(0.0, status.progress_at - (kept_at or status.started or status.progress_at))


def _note_help(project: Project, view: RunView, now: float) -> None:
    """The first good end of the same stage and config after an incident: what was different may have helped."""
    status = _status(project, view)
    started = status.started if status is not None else 0.0
    for memo in all_of(project):
        waiting = [item for item in memo["incidents"] if not item.get("ended_well")]
        open_ones = [item for item in waiting if memo_evidence.counts(project, view, started, item)]
        if not open_ones:
            continue
        for item in open_ones:
            item["ended_well"] = view.run_id
        last = open_ones[-1]
        place = "on the same VM" if last["vm_id"] == view.vm_id else "on another VM"
        how = f"attempt {view.attempt} of {view.run_id}" if last["run_id"] == view.run_id else f"{view.run_id}"
        memo["helped"] = [
            *memo["helped"],
            {"at": round(now, 3), "what": f"{how}, same config, {place}, ended well", "by": "record"},
        ][-20:]
        _save(project, memo)


def _new(failure: FailureClass) -> dict[str, Any]:
    zero: dict[str, Any] = {"times": 0, "first": 0.0, "last": 0.0, "lost_s": 0.0, "symptom": ""}
    return {"v": names.RECORD_VERSION, "class": str(failure), **zero, "helped": [], "incidents": []}


def _key(item: dict[str, Any]) -> tuple[Any, Any]:
    return item.get("run_id"), item.get("attempt")


def _path(project: Project, failure: str, ending: str) -> Path:
    return project.root / FOLDER / f"{failure}.{ending}"


def _load(project: Project, failure: FailureClass) -> dict[str, Any] | None:
    """None for one that is not there; one that a person broke is set aside, never overwritten."""
    path = _path(project, failure, "json")
    found = files.read_json(path)
    shape = _new(failure)
    if isinstance(found, dict) and all(
        isinstance(found.get(key), type(value)) for key, value in shape.items() if key != "v"
    ):
        return found
    if path.exists():
        with contextlib.suppress(OSError):
            os.replace(path, path.with_suffix(".unreadable.json"))
    return None


def _save(project: Project, memo: dict[str, Any]) -> None:
    (project.root / FOLDER).mkdir(exist_ok=True)
    files.write_atomic(_path(project, memo["class"], "md"), page(memo).encode())
    files.write_json(_path(project, memo["class"], "json"), memo)  # last: what is in it is not counted again


def page(memo: dict[str, Any]) -> str:
    """The memo for a person."""
    known = facts(memo["class"])
    lines = [f"# {memo['class']}: {known.meaning}", "", f"- **Symptom:** {_safe(memo['symptom'])}"]
    lines += [f"- **Seen:** {memo['times']} times, from {_day(memo['first'])} to {_day(memo['last'])}"]
    lines += [
        f"- **Cost:** {_cost(memo)} of work done again",
        f"- **Usual remedy:** {known.next_step}",
        "",
        "## What helped",
        "",
    ]
    lines += [f"- {_day(item['at'])}: {_safe(item['what'])}" for item in memo["helped"]] or [
        "- nothing is written down yet"
    ]
    lines += ["", "## Newest times", ""]
    for item in reversed(memo["incidents"][-10:]):
        lines.append(f"- {_day(item['at'])} {item['run_id']} attempt {item['attempt']}: {_safe(item['symptom'])}")
    hint = f'`bridgehead memos {memo["class"]} --helped "…"` adds a line above; this page is written anew each time.'
    return "\n".join([*lines, "", hint, ""])


def _quote(memo: dict[str, Any], now: float) -> str:
    told = (
        f"; helped: {memo['helped'][-1]['what']}" if memo["helped"] else f"; remedy: {facts(memo['class']).next_step}"
    )
    ago = duration(max(0.0, now - memo["last"]))
    return f"{memo['class']} {memo['times']}x, last {ago} ago, cost {_cost(memo)}: {memo['symptom'][:120]}{told}"


def _cost(memo: dict[str, Any]) -> str:
    """Time, and money where the runs had a price; one amount for each unit."""
    paid = ", ".join(str(money.parse(amount)) for amount in (memo.get("lost_money") or {}).values())
    return duration(memo["lost_s"]) + (f" ({paid})" if paid else "")


def _with(amounts: dict[str, str], lost: str) -> dict[str, str]:
    """Unit -> amount, with one more."""
    if not lost:
        return amounts
    more = money.parse(lost)
    known = amounts.get(more.unit)
    return {**amounts, more.unit: (money.parse(known) + more if known else more).to_json()}


def _safe(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in str(text)).replace("<", "&lt;")[:400]


def _day(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(moment))


@contextlib.contextmanager
def _writing(project: Project) -> Iterator[None]:
    """One writer at a time. Raises BridgeDownError when another one does not end."""
    project.make_private()
    deadline = time.monotonic() + _LOCK_S
    while (fd := locks.take(project.private / _LOCK)) is None:
        if time.monotonic() > deadline:
            raise BridgeDownError("another bridgehead command writes memos and does not end", hint="try again")
        time.sleep(0.05)
    try:
        yield
    finally:
        os.close(fd)
