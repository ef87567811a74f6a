"""decision.yaml: adopt, reject or repeat, with the evidence and the hashes of all that it stands on."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Any

from bridgehead import files
from bridgehead.errors import UsageError
from run_control import yaml_file
from run_control.key_control import me
from run_control.project import Project
from run_control.studies import analysis, study_file
from run_control.studies.figures import Against, Figures
from run_control.studies.study_file import DECISION, Study
from run_control.studies.tracker import Tracker

_HEAD = "# Written by bridgehead study decide.\n"


class Choice(StrEnum):
    ADOPT = "adopt"  # this arm instead of the control
    REJECT = "reject"  # no arm is worth it: the control stays
    REPEAT = "repeat"  # the intervals do not tell


def suggested(found: Figures) -> tuple[Choice, str, str]:
    """Choice, arm and reason, from the intervals alone."""
    passed = [item for item in found.against if item.verdict == "pass" and _gate_passed(found, item.arm)]
    if passed:
        best = max(passed, key=lambda item: item.gain or 0.0)
        return Choice.ADOPT, best.arm, f"{best.arm}: {best.why[0]}"
    if found.missing:
        return Choice.REPEAT, "", f"not all arms have ended: {'; '.join(found.missing)}"
    undecided = [item.arm for item in found.against if item.verdict == "undecided"]
    if undecided or not found.against:
        return Choice.REPEAT, "", f"the interval of {', '.join(undecided) or 'no arm'} does not tell"
    blocked = [item.arm for item in found.against if item.verdict == "pass"]
    why = f"the gate did not pass {', '.join(blocked)}" if blocked else "no arm gains what was asked for"
    return Choice.REJECT, "", why


def decide(
    project: Project,
    folder: Path,
    study: Study,
    tracker: Tracker,
    *,
    choice: Choice | None = None,
    arm: str = "",
    because: str = "",
    again: bool = False,
) -> dict[str, Any]:
    """Write the decision; without a choice, the one that the intervals suggest.

    Raises UsageError when one is written already, when analysis.md is not what the records say, or when the choice goes
    against the evidence and nobody says why.
    """
    path = folder / DECISION
    if path.exists() and not again:
        raise UsageError(f"{DECISION} is written already", hint="--again replaces it; the old one is kept beside it")
    found, analysis_sha256 = analysis.check(project, folder, study, tracker)
    proposal = suggested(found)
    chosen, of_arm = choice or proposal[0], arm or (proposal[1] if choice in (None, proposal[0]) else "")
    _check(study, found, proposal, chosen, of_arm, because)
    record = {
        "v": study_file.VERSION,
        "study": folder.name,
        "decision": str(chosen),
        "arm": of_arm if chosen is Choice.ADOPT else "",
        "because": because or proposal[2],
        "suggested": {"decision": str(proposal[0]), "arm": proposal[1], "because": proposal[2]},
        "question": study.question,
        "hypothesis": study.hypothesis,
        "evidence": _evidence(study, tracker, found),
        "study_sha256": study.sha256,
        "tracker_sha256": tracker.sha256,
        "analysis_sha256": analysis_sha256,
        "by": me()["user"],
        "at": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    if path.exists():  # a copy: on a full disk the decision that stood still stands
        files.write_atomic(path.with_name(f"{DECISION}.before"), path.read_bytes())
    yaml_file.save(path, record, head=_HEAD)
    return record


def _check(
    study: Study, found: Figures, proposal: tuple[Choice, str, str], chosen: Choice, arm: str, because: str
) -> None:
    if chosen is Choice.ADOPT and (arm not in study.arms or arm == study.control):
        others = [name for name in study.arms if name != study.control]
        raise UsageError(
            "adopt which arm?" if not arm else f"{arm!r} is no arm to adopt", hint=f"--arm {' or '.join(others)}"
        )
    against = {item.arm: item for item in found.against}
    if chosen is Choice.ADOPT and arm not in against:
        raise UsageError(f"{arm} has not ended at any point where the control has: there is nothing to adopt it on")
    if (chosen, arm if chosen is Choice.ADOPT else "") != proposal[:2] and not because.strip():
        raise UsageError(
            f"the evidence suggests {proposal[0]}{' ' + proposal[1] if proposal[1] else ''} ({proposal[2]})",
            hint='--because "why" to decide otherwise; it is kept',
        )


def _evidence(study: Study, tracker: Tracker, found: Figures) -> dict[str, Any]:
    return {
        "metric": found.metric,
        "confidence": study.confidence,
        "arms": [
            {"arm": arm.arm, "runs": arm.runs, "value": arm.value, "interval": arm.interval, "gate": arm.verdicts}
            for arm in found.arms
        ],
        "against": [_short(item) for item in found.against],
        "missing": found.missing,
        "spent": tracker.spent,
        "runs": {cell.id: [run.run_id for run in cell.runs] for cell in tracker.cells},
    }


def _short(item: Against) -> dict[str, Any]:
    return {
        "arm": item.arm,
        "control": item.control,
        "gain": item.gain,
        "interval": item.interval,
        "verdict": item.verdict,
    }


def _gate_passed(found: Figures, arm: str) -> bool:
    """Where the last stage is a gate, it has passed every run of the arm."""
    verdicts = next(item.verdicts for item in found.arms if item.arm == arm)
    return set(verdicts) <= {"pass", ""}
