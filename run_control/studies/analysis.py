"""analysis.md: tables and a plot from the records, between markers, and a person's own words around them, which stay.

The generated parts note the hashes of study and tracker. They are made again by `study analyse`; what is written inside
the markers by hand is lost, what is written outside is never touched.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from bridgehead import files
from bridgehead.errors import NotFoundError, UsageError
from run_control.project import Project
from run_control.studies import figures, plot
from run_control.studies.figures import Against, Figures
from run_control.studies.study_file import ANALYSIS, PLOT, STUDY, TRACKER, Study
from run_control.studies.tracker import Tracker

_MARKER = re.compile(r"<!-- (generated|end of): ([a-z]+) -->\Z")
_WORDS = "Write here what you make of it; this is kept.\n"
SECTIONS = ("question", "arms", "comparisons", "records")


def write(project: Project, folder: Path, study: Study, tracker: Tracker) -> Figures:
    """Raises VerificationError when the records can't be compared, UsageError for markers that do not pair."""
    found = figures.compute(project, study, tracker)
    if not any(arm.runs for arm in found.arms):
        raise NotFoundError("no arm has ended yet: there is nothing to analyse", hint="bridgehead study start")
    made = _sections(study, tracker, found)
    path = folder / ANALYSIS
    text = path.read_text(encoding="utf-8") if path.exists() else _empty(folder.name)
    files.write_atomic(folder / PLOT, plot.forest(found).encode())
    files.write_atomic(path, _filled(text, made).encode())
    return found


def check(project: Project, folder: Path, study: Study, tracker: Tracker) -> tuple[Figures, str]:
    """The figures, and the hash of the generated parts, when analysis.md says what the records say now.

    Raises NotFoundError before `analyse`, UsageError when the two differ.
    """
    path = folder / ANALYSIS
    if not path.exists():
        raise NotFoundError(f"there is no {ANALYSIS} yet", hint=f"bridgehead study analyse {folder.name}")
    found = figures.compute(project, study, tracker)
    there, made = _parts(path.read_text(encoding="utf-8")), _sections(study, tracker, found)
    for name in SECTIONS:
        if there.get(name) != made[name]:
            raise UsageError(
                f"{ANALYSIS} does not say what {STUDY}, {TRACKER} and the results say now (its part {name!r})",
                hint=f"bridgehead study analyse {folder.name}",
            )
    return found, hashlib.sha256("".join(made[name] for name in SECTIONS).encode()).hexdigest()


def _sections(study: Study, tracker: Tracker, found: Figures) -> dict[str, str]:
    return {
        "question": f"**Question.** {study.question}\n\n**Hypothesis.** {study.hypothesis}\n",
        "arms": _arms(study, found),
        "comparisons": _comparisons(study, found),
        "records": _records(study, tracker),
    }


def _arms(study: Study, found: Figures) -> str:
    percent = f"{study.confidence:.0%}"
    rows = [
        f"| arm | runs | {found.metric} | {percent} interval | each run | gate | hours |",
        "|---|---|---|---|---|---|---|",
    ]
    for arm in found.arms:
        each = " ".join(_number(value) for value in arm.by_run)
        gate = ", ".join(f"{count} × {verdict}" for verdict, count in sorted(arm.verdicts.items()) if verdict)
        name = f"**{arm.arm}** (control)" if arm.arm == study.control else arm.arm
        told = (name, arm.runs, _number(arm.value), _interval(arm.interval), each, gate, f"{arm.hours:.3f}")
        rows.append(f"| {' | '.join(map(str, told))} |")
    missing = f"\nNot in it: {'; '.join(found.missing)}.\n" if found.missing else ""
    return "\n".join(rows) + f"\n\nIntervals by {found.unit_of_draws}; runs of one arm are averaged first.\n" + missing


def _comparisons(study: Study, found: Figures) -> str:
    if not found.against:
        return "No arm has ended at the same point as the control.\n"
    bar = study.metric.min_effect - study.metric.margin
    rows = [
        f"Gain over {study.control}; asked for: above {bar:+g}.\n",
        "| arm | gain | interval | verdict |",
        "|---|---|---|---|",
    ]
    rows += [
        f"| {item.arm} | {_number(item.gain, sign=True)} | {_interval(item.interval, sign=True)} | {item.verdict} |"
        for item in found.against
    ]
    return "\n".join(rows) + f"\n\n![Gains and their intervals]({PLOT})\n\n" + "".join(map(_why, found.against))


def _why(item: Against) -> str:
    return "".join(f"- {item.arm}: {line}\n" for line in item.why)


def _records(study: Study, tracker: Tracker) -> str:
    lines = [
        f"- {cell.id}: " + ", ".join(f"`{run.run_id}`" for run in cell.runs if run.run_id) for cell in tracker.cells
    ]
    spent = tracker.spent
    return "\n".join(
        [
            f"Spent: {spent['runs']:g} runs, {spent['hours']:g} hours.",
            "",
            *lines,
            "",
            f"study {study.sha256}",
            "",
            f"tracker {tracker.sha256}",
            "",
        ]
    )


def _number(value: float | None, *, sign: bool = False) -> str:
    if value is None:
        return "no number"
    return f"{value:+.4f}" if sign else f"{value:.4f}"


def _interval(interval: list[float | None], *, sign: bool = False) -> str:
    return f"[{_number(interval[0], sign=sign)}, {_number(interval[1], sign=sign)}]"


# --- the file ------------------------------------------------------------------------------------------------


def _empty(name: str) -> str:
    titles = {
        "question": "",
        "arms": "## The arms\n\n",
        "comparisons": "## Against the control\n\n",
        "records": "## Records\n\n",
    }
    parts = [f"{titles[section]}{_begin(section)}\n{_end(section)}\n" for section in SECTIONS]
    parts.insert(3, f"## What it means\n\n{_WORDS}")
    return f"# Study {name}\n\n" + "\n".join(parts)


def _begin(section: str) -> str:
    return f"<!-- generated: {section} -->"


def _end(section: str) -> str:
    return f"<!-- end of: {section} -->"


def _filled(text: str, made: dict[str, str]) -> str:
    """`text` with its generated parts made anew; a part that somebody removed comes back at the end."""
    there = _parts(text)
    out: list[str] = []
    inside = ""
    for line in text.splitlines(keepends=True):
        match = _MARKER.match(line.strip())
        if match and match[1] == "generated":
            inside = match[2]
            out += [line if line.endswith("\n") else line + "\n", made.get(inside, there[inside])]
        elif match:
            inside = ""
            out.append(line)
        elif not inside:
            out.append(line)
    body = "".join(out)
    for section in SECTIONS:
        if section not in there:
            body = body.rstrip("\n") + f"\n\n{_begin(section)}\n{made[section]}{_end(section)}\n"
    return body


def _parts(text: str) -> dict[str, str]:
    """Section → what is between its markers. Raises UsageError for markers that do not pair."""
    found: dict[str, str] = {}
    inside, since, lines = "", 0, []
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        match = _MARKER.match(line.strip())
        if match is None:
            lines.append(line)
            continue
        opens = match[1] == "generated"
        if opens == bool(inside) or (inside and match[2] != inside) or (opens and match[2] in found):
            raise UsageError(f"{ANALYSIS}:{number}: this marker does not fit the one before", hint="restore the pair")
        if opens:
            inside, since, lines = match[2], number, []
        else:
            found[inside], inside = "".join(lines), ""
    if inside:
        raise UsageError(f"{ANALYSIS}:{since}: this part has no end marker", hint=f"add a line {_end(inside)}")
    return found
