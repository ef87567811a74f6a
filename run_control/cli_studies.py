"""Commands about studies: study new, plan, start, status, analyse, decide."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridgehead.errors import INTERRUPTED_EXIT_CODE, RunFailed, UsageError
from bridgehead.queue_lines import nearest
from run_control.cli_support import JsonFlag, ProjectFlag, emit, note, project_of, say, table

if TYPE_CHECKING:
    from run_control.project import Project
    from run_control.studies.study_file import Study
    from run_control.studies.tracker import Tracker

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The study's folder in studies/.")]
AgainFlag = Annotated[bool, typer.Option("--again", help="Replace what is there; finished runs are kept.")]
_HEADERS = ("ARM", "STATE", "RUNS", "VERDICT", "EFFECT", "WHY")


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Studies: a question, its arms, and a decision, in files.", rich_markup_mode=None)
    group.callback()(study_group)
    for command in (new, plan, start, status, analyse, decide):
        group.command(command.__name__)(command)
    app.add_typer(group, name="study")


def study_group() -> None:
    """study.yaml is yours; tracker.yaml, analysis.md and decision.yaml follow from it, and note what they came from."""


def new(context: typer.Context, name: NameArgument, json: JsonFlag = False, project: ProjectFlag = None) -> int:
    """Write a first studies/NAME/study.yaml."""
    from run_control.studies import new as maker
    from run_control.studies.study_file import STUDY

    path = maker.create(project_of(context, project), name) / STUDY

    def show() -> None:
        say(str(path))
        note(f"next: edit it, then bridgehead study plan {name}")

    return emit({"study": str(path)}, as_json=json, show=show)


def plan(
    context: typer.Context,
    name: NameArgument,
    again: AgainFlag = False,
    json: JsonFlag = False,
    project: ProjectFlag = None,
) -> int:
    """Work out every run of every arm and write tracker.yaml; queues nothing."""
    from run_control.studies import conductor, fit
    from run_control.studies import tracker as tracking

    found, folder, study = _open(context, project, name)
    fit.check(found, folder, study)
    with conductor.alone(found, folder):
        tracker = tracking.plan(folder, study, again=again)
    runs = sum(len(cell.runs) for cell in tracker.cells)
    beyond = fit.beyond_budget(study, tracker)

    def show() -> None:
        table(("ARM", "LINE"), [(cell.id, run.line) for cell in tracker.cells for run in cell.runs])
        if beyond:
            note(f"{runs} runs, and the budget allows {study.budget.runs}: will not be queued: {', '.join(beyond)}")
            note(
                f"next: a larger budget.runs, then bridgehead study plan {name} --again; or study start {name} as it is"
            )
        else:
            note(f"{runs} runs, of {study.budget.runs} that the budget allows. next: bridgehead study start {name}")

    return emit({"tracker": tracker.to_json(), "runs": runs, "beyond_budget": beyond}, as_json=json, show=show)


def start(
    context: typer.Context,
    name: NameArgument,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Queue what may be queued now, and leave.")] = False,
    json: JsonFlag = False,
    project: ProjectFlag = None,
) -> int:
    """Queue the arms within the budget and follow them. Ctrl-C only detaches; start again goes on where it was."""
    from run_control.studies import conductor

    found, folder, study = _open(context, project, name)

    def tell(tracker: Tracker) -> None:
        if not json:
            note(" · ".join(f"{cell.id} {cell.state}" for cell in tracker.cells))

    try:
        tracker = conductor.start(found, folder, study, wait=not no_wait, tell=tell)
    except KeyboardInterrupt:
        note(f"detached; what is queued goes on. follow again: bridgehead study start {name}")
        raise typer.Exit(INTERRUPTED_EXIT_CODE) from None
    return _tell(tracker, study, as_json=json)


def status(context: typer.Context, name: NameArgument, json: JsonFlag = False, project: ProjectFlag = None) -> int:
    """How far each arm is; brings tracker.yaml up to date."""
    from run_control.studies import conductor

    found, folder, study = _open(context, project, name)
    return _tell(conductor.refresh(found, folder, study), study, as_json=json, failing=False)


def analyse(context: typer.Context, name: NameArgument, json: JsonFlag = False, project: ProjectFlag = None) -> int:
    """Write the generated parts of analysis.md from the records; your own words in it stay."""
    from run_control.studies import analysis, conductor
    from run_control.studies.study_file import ANALYSIS

    found, folder, study = _open(context, project, name)
    made = analysis.write(found, folder, study, conductor.refresh(found, folder, study))

    def show() -> None:
        rows = [(item.arm, _gain(item.gain), _interval(item.interval), item.verdict) for item in made.against]
        table(("ARM", f"GAIN OVER {study.control}", "INTERVAL", "VERDICT"), rows)
        for line in made.missing:
            note(f"not in it: {line}")
        note(f"{folder / ANALYSIS}. next: bridgehead study decide {name}")

    return emit({"figures": made.to_json(), "analysis": str(folder / ANALYSIS)}, as_json=json, show=show)


def decide(
    context: typer.Context,
    name: NameArgument,
    choice: Annotated[
        str, typer.Argument(metavar="[CHOICE]", help="adopt, reject or repeat; default: what the intervals suggest.")
    ] = "",
    arm: Annotated[str, typer.Option("--arm", metavar="ARM", help="Which one to adopt.")] = "",
    because: Annotated[str, typer.Option("--because", metavar="WHY", help="Needed against the evidence.")] = "",
    again: AgainFlag = False,
    json: JsonFlag = False,
    project: ProjectFlag = None,
) -> int:
    """Write decision.yaml, with the evidence and the hashes of what it stands on."""
    from run_control.studies import conductor, decision
    from run_control.studies.study_file import DECISION

    found, folder, study = _open(context, project, name)
    if choice and choice not in set(decision.Choice):
        raise UsageError(f"no decision {choice!r}", hint=nearest(choice, decision.Choice))
    record = decision.decide(
        found,
        folder,
        study,
        conductor.refresh(found, folder, study),
        choice=decision.Choice(choice) if choice else None,
        arm=arm,
        because=because,
        again=again,
    )

    def show() -> None:
        say(f"{record['decision']} {record['arm']}".strip() + f": {record['because']}")
        note(str(folder / DECISION))

    return emit({"decision": record}, as_json=json, show=show)


def _open(context: typer.Context, project: Path | None, name: str) -> tuple[Project, Path, Study]:
    from run_control.studies import study_file

    found = project_of(context, project)
    folder = study_file.folder_of(found, name)
    return found, folder, study_file.load(folder)


def _tell(tracker: Tracker, study: Study, *, as_json: bool, failing: bool = True) -> int:
    stopped = failing and tracker.state == "stopped"
    error = (
        RunFailed(f"the study stopped: {tracker.why}", hint="edit study.yaml, then study plan --again")
        if stopped
        else None
    )

    def show() -> None:
        table(_HEADERS, [_row(cell) for cell in tracker.cells])
        spent = tracker.spent
        say()
        say(
            f"{tracker.state}: {spent['runs']:g} of {study.budget.runs} runs, "
            f"{spent['hours']:.2f} of {study.budget.hours:g} hours"
        )

    return emit({"tracker": tracker.to_json()}, as_json=as_json, show=show, error=error)


def _row(cell: Any) -> tuple[str, ...]:
    runs = " ".join(run.run_id or "-" for run in cell.runs)
    effect = cell.outcome.get("effect")
    return (cell.id, cell.state, runs, str(cell.outcome.get("verdict", "")), _gain(effect), cell.why)


def _gain(value: Any) -> str:
    return f"{value:+.4f}" if isinstance(value, float) else ""


def _interval(interval: list[float | None]) -> str:
    return f"[{_gain(interval[0])}, {_gain(interval[1])}]"
