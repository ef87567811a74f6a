"""Commands about run specs: diff, rerun, prices; and what `run --dry-run` prints."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bridgehead.errors import UsageError
from run_control.cli_support import JsonFlag, ProjectFlag, emit, project_of, say, table

if TYPE_CHECKING:
    from run_control.plan import Plan
    from run_control.project import Project

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run id, its beginning, or a stage: its newest run.")]


def register(app: typer.Typer) -> None:
    for command in (diff, rerun, prices):
        app.command()(command)


def diff(
    context: typer.Context, first: RunArgument, second: RunArgument, json: JsonFlag = False, project: ProjectFlag = None
) -> int:
    """What two runs differ in: config, code, data, seeds, limits, machine; and whether their weights are the same."""
    from run_control import rerunning, views

    found = project_of(context, project)
    ids = [views.run(found, word).run_id for word in (first, second)]
    differences = rerunning.diff(found, *ids)
    weights = rerunning.weights(found, *ids)

    def show() -> None:
        if differences:
            table(("WHAT", *ids), [(item.key, item.first or "(none)", item.second or "(none)") for item in differences])
        else:
            say(f"{ids[0]} and {ids[1]} are of one spec, and nothing else that is known differs")
        say(f"weights: {weights.words}")

    data = {
        "runs": ids,
        "same": not differences,
        "differences": [item.to_json() for item in differences],
        "weights": weights.state,
    }
    return emit(data, as_json=json, show=show)


def rerun(
    context: typer.Context,
    run: RunArgument,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Although something has changed: the same config on what is here now.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show spec, price and checks; queue nothing.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Stay until it has ended; exit 3 when it failed.")] = False,
    json: JsonFlag = False,
    project: ProjectFlag = None,
) -> int:
    """Queue exactly the same run once more, or say what has changed since. Same image: same bits."""
    from run_control import cli_runs, rerunning, views

    found = project_of(context, project)
    run_id = views.run(found, run).run_id
    made = rerunning.again(found, run_id, anyway=anyway)
    if dry_run:
        return show_plan(found, "", made, as_json=json)
    line = rerunning.line_again(found, run_id, made)
    return cli_runs.submit(found, line, wait=wait, as_json=json)


def prices(context: typer.Context, json: JsonFlag = False, project: ProjectFlag = None) -> int:
    """The table of prices: each with its date, its source, and whether it is stale."""
    from bridgehead.errors import ProjectError
    from run_control import pricing

    try:
        root: Path | None = project_of(context, project).root
    except ProjectError:
        root = None  # outside of a project: the table that Bridgehead brings
    today = datetime.date.today()  # noqa: DTZ011 - a person's own calendar
    rows = pricing.catalogue(root)
    shown = []
    for row in rows:
        age = row.age_days(today)
        stale = f"stale: {age} days" if age > pricing.STALE_DAYS else f"{age} days"
        what = f"{row.gpu_count} x {row.gpu} {row.gpu_memory_gb:g} GB" if row.gpu else "no GPU"
        shown.append((row.provider, row.instance, what, str(row.price), stale, row.source))
    data = {"prices": [dict(zip(_COLUMNS, cells, strict=True)) for cells in shown]}
    return emit(data, as_json=json, show=lambda: table([name.upper() for name in _COLUMNS], shown))


_COLUMNS = ("provider", "instance", "gpu", "price_per_hour", "age", "source")


def run_file(
    project: Project,
    name: str,
    words: list[str],
    *,
    unpriced: str = "",
    vm: str = "",
    dry_run: bool,
    wait: bool,
    as_json: bool,
) -> int:
    """`bridgehead run FILE.toml` or FILE.yaml. `words`: what stands beside it and has no place there."""
    from run_control import cli_runs, launching, spec_file, spec_text

    path = Path(name) if Path(name).is_absolute() or Path(name).exists() else project.root / name
    if not spec_text.is_one(name) and not path.is_dir():
        raise UsageError(
            f"{name}: a spec file is TOML or YAML, and its name ends in {', '.join(spec_text.SUFFIXES)}",
            hint=f'write it as {Path(name).with_suffix(spec_text.TOML)}: stage = "train", [config], epochs = 4',
        )
    if unpriced:
        launching.unpriced_word(unpriced)  # refuses what is no reason
    if words:
        raise UsageError("a spec file says all of its run: nothing may stand beside it", hint=f"edit {name}")
    line, made = spec_file.line_of_file(project, path, keep=not dry_run, unpriced=" ".join(unpriced.split()), vm=vm)
    if dry_run:
        return show_plan(project, line, made, as_json=as_json)
    if made.refusal is not None:
        raise made.refusal
    return cli_runs.submit(project, line, wait=wait, as_json=as_json)


def show_plan(project: Project, line: str, made: Plan, *, as_json: bool) -> int:
    """The plan, with memos about what it would use; exit 2 when the run would be refused."""
    from run_control import launch_notes, plan

    made = launch_notes.with_notes(project, made)

    def show() -> None:
        if line:
            say(line)
        for key, value in made.stage.to_json().items():
            if key not in ("v", "pins"):
                say(f"  {key}: {value}")
        for text in plan.lines(made):
            say(text)
        table(("CHECK", "STATE", "FOUND", "NEXT"), [(c.name, c.state, c.text, c.hint) for c in made.checks])

    stage = {key: value for key, value in made.stage.to_json().items() if key != "pins"}
    data = {"line": line, "spec": stage, **made.to_json()}
    return emit(data, as_json=as_json, show=show, error=made.refusal)
