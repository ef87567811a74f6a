"""Commands about the registry: models, promote, demote, lineage; and bundle sign, keygen."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridgehead import names
from bridgehead.errors import UsageError, VerificationError
from bridgehead.queue_lines import nearest
from run_control.cli_support import JsonFlag, ProjectFlag, emit, note, one_key, project_of, say, table

if TYPE_CHECKING:
    from run_control.registry.catalog import Model, State
    from run_control.registry.promotion import Done

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A digest, its beginning, an alias, or the run that made it.")
]
_SLICES = ("SLICE", "ITEMS", "MODEL", "OTHER", "CHANGE", "INTERVAL", "")
_HEADERS = ("MODEL", "NAME", "STATE", "ALIASES", "GATE", "RUN", "CHANGED")


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="The registry of models.", rich_markup_mode=None)
    group.callback(invoke_without_command=True)(models)
    group.command("show")(show)
    group.command("history")(history)
    group.command("verify")(verify)
    group.command("export")(export)
    app.add_typer(group, name="models")
    app.command("promote")(promote)
    app.command("demote")(demote)
    app.command("lineage")(lineage)


def register_bundle(group: typer.Typer) -> None:
    group.command("keygen")(keygen)
    group.command("sign")(sign)


def models(context: typer.Context, json: JsonFlag = False, project: ProjectFlag = None) -> int:
    """Every model, its state and what it stands on."""
    if context.invoked_subcommand is not None:
        context.obj = project or context.obj
        return 0
    from run_control.registry import catalog, place

    journal = place.journal(project_of(context, project))
    known = catalog.replay(journal.entries())
    found = sorted(known.models.values(), key=lambda model: model.registered)
    trouble = journal.trouble

    def show_all() -> None:
        table(_HEADERS, [_row(model) for model in found])
        if not found:
            note(f"no model yet. next: bridgehead promote {names.FINETUNE}, once the gate has passed it")
        if trouble:
            note(f"as this laptop last knew it; the store can't be asked: {trouble}")

    data = {"models": [model.to_json() for model in found], "aliases": known.aliases, "trouble": trouble}
    return emit(data, as_json=json, show=show_all)


def show(context: typer.Context, model: ModelArgument, json: JsonFlag = False, project: ProjectFlag = None) -> int:
    """One model: its artifacts, and the evidence of each step."""
    from run_control.registry import catalog, place

    found = catalog.replay(place.journal(project_of(context, project)).entries()).find(model)

    def show_one() -> None:
        _show_model(found)

    return emit({"model": found.to_json()}, as_json=json, show=show_one)


def history(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="[MODEL]", help="Default: all of them.")] = "",
    json: JsonFlag = False,
    project: ProjectFlag = None,
) -> int:
    """What was done, when and by whom, the void acts too."""
    from run_control.registry import catalog, place

    known = catalog.replay(place.journal(project_of(context, project)).entries())
    chosen = [known.find(model)] if model else list(known.models.values())
    lines = sorted(({**line, "model": item.digest} for item in chosen for line in item.history), key=_order)
    rows = [(str(line["seq"]), _when(line["at"]), line["by"], line["model"][:12], _act(line)) for line in lines]
    headers = ("#", "WHEN", "WHO", "MODEL", "WHAT")
    return emit({"history": lines}, as_json=json, show=lambda: table(headers, rows))


def verify(context: typer.Context, json: JsonFlag = False, project: ProjectFlag = None) -> int:
    """Follow the chain of entries. Exit 9 when one is missing or was changed."""
    from run_control.registry import entries, place

    journal = place.journal(project_of(context, project))
    found = journal.entries()
    problems = entries.check_chain(found)
    error = VerificationError(problems[0], hint="bridgehead models history") if problems else None
    data = {"entries": len(found), "problems": problems, "head": found[-1].digest if found else ""}
    return emit(data, as_json=json, show=lambda: say(f"{len(found)} entries"), error=error)


def export(
    context: typer.Context,
    model: ModelArgument,
    to: Annotated[str, typer.Option("--to", metavar="KIND", help="hf: a folder; mlflow: a registry.")],
    where: Annotated[str, typer.Argument(metavar="WHERE", help="The folder, or MLflow's URI.")],
    json: JsonFlag = False,
    project: ProjectFlag = None,
) -> int:
    """Hand a deployable model to another tool."""
    from run_control.registry import catalog, exports, place

    if to not in exports.KINDS:
        raise UsageError(f"no export of kind {to!r}", hint=nearest(to, exports.KINDS))
    journal = place.journal(project_of(context, project))
    found = catalog.replay(journal.entries()).find(model)
    data = exports.export(journal, found, to, where)
    return emit(data, as_json=json, show=lambda: say(str(data["where"])))


def promote(
    context: typer.Context,
    model: ModelArgument,
    to: Annotated[str, typer.Option("--to", metavar="STATE", help="Default: one step up.")] = "",
    alias: Annotated[str, typer.Option("--alias", metavar="NAME", help="Such as champion; it moves there.")] = "",
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Of a model that is new here.")] = "",
    key: Annotated[
        list[Path] | None, typer.Option("--key", metavar="FILE", help="Public key of its signature.")
    ] = None,
    target: Annotated[str, typer.Option("--target", metavar="WHERE", help="Where it is deployed.")] = "",
    without_champion: Annotated[
        str, typer.Option("--without-champion", metavar="WHY", help="No table against the champion.")
    ] = "",
    allow_regression: Annotated[
        str, typer.Option("--allow-regression", metavar="WHY", help="It may be worse than the champion.")
    ] = "",
    json: JsonFlag = False,
    project: ProjectFlag = None,
) -> int:
    """Register a run that the gate passed, and let it climb; each step needs its own evidence. Exit 9 without it."""
    from run_control.registry import place, promotion

    found = project_of(context, project)
    journal = place.journal(found)
    wish = promotion.Wish(_state(to) if to else None, one_key(key), target, without_champion, allow_regression)
    steps: list[str] = []
    if to or target or key or not alias:  # an alias alone is no step
        done = promotion.promote(found, journal, model, wish, name=name)
        steps = done.steps
    if alias:
        done = promotion.set_alias(journal, model, alias)
        done.steps = [*steps, *done.steps]
    return emit(done.to_json(), as_json=json, show=lambda: _show_done(done))


def demote(
    context: typer.Context,
    model: ModelArgument,
    to: Annotated[str, typer.Option("--to", metavar="STATE", help="A state below its own.")] = "",
    alias: Annotated[str, typer.Option("--alias", metavar="NAME", help="Only take this alias away.")] = "",
    reason: Annotated[str, typer.Option("--reason", metavar="WHY", help="Kept for ever.")] = "",
    json: JsonFlag = False,
    project: ProjectFlag = None,
) -> int:
    """Take a model down, or an alias away from it."""
    from run_control.registry import place, promotion

    if bool(to) == bool(alias):
        raise UsageError("either --to STATE or --alias NAME", hint="bridgehead demote MODEL --to raw --reason WHY")
    journal = place.journal(project_of(context, project))
    if alias:
        done = promotion.set_alias(journal, model, alias, remove=True)
    else:
        done = promotion.demote(journal, model, _state(to), reason)
    return emit(done.to_json(), as_json=json, show=lambda: _show_done(done))


def lineage(context: typer.Context, model: ModelArgument, json: JsonFlag = False, project: ProjectFlag = None) -> int:
    """Where a model or a run comes from: its runs, data, code and config."""
    from run_control.registry import catalog, place
    from run_control.registry import lineage as tree

    found = project_of(context, project)
    data = tree.of(found, catalog.replay(place.journal(found).entries()), model)

    def show_tree() -> None:
        for line in tree.lines(data):
            say(line)

    return emit(data, as_json=json, show=show_tree)


def keygen(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The private key; its public half is FILE.pub.")],
    json: JsonFlag = False,
) -> int:
    """Make a key to sign bundles with. Keep FILE off every VM; give FILE.pub to whoever verifies."""
    from export import signature

    public = signature.make_key(path)
    data = {"private_key": str(path), "public_key": str(public)}
    return emit(data, as_json=json, show=lambda: say(str(public)))


def sign(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A bundle folder, its archive, or in/<run>.")],
    key: Annotated[list[Path], typer.Option("--key", metavar="FILE", help="The private key.")],
    json: JsonFlag = False,
) -> int:
    """Sign a bundle's manifest, after checking every file against it."""
    from export import bundle, signature

    private = one_key(key)
    assert private is not None  # the option has to be given
    with bundle.open_bundle(path) as opened:
        opened.check_files()
        inside = path.is_dir()
        target = opened.folder / names.BUNDLE_SIGNATURE if inside else path.with_name(path.name + signature.SUFFIX)
        key_id = signature.sign(opened.folder / names.BUNDLE_MANIFEST, target, private)
    data = {"signature": str(target), "key_id": key_id}
    return emit(data, as_json=json, show=lambda: say(f"signed with {key_id}: {target}"))


def _state(text: str) -> State:
    from run_control.registry.catalog import State

    try:
        return State(text.lower())
    except ValueError:
        raise UsageError(f"no state {text!r}", hint=nearest(text, State)) from None


def _row(model: Model) -> tuple[str, ...]:
    gate = model.evidence.get("candidate", {})
    low, high = gate.get("interval") or (None, None)
    shown = f"{gate['effect']:+.3f} [{low:+.3f}, {high:+.3f}]" if low is not None and high is not None else ""
    aliases = " ".join(sorted(model.aliases))
    return (model.digest[:12], model.name, str(model.state), aliases, shown, model.run_id, _when(model.changed))


def _show_model(model: Model) -> None:
    for header, cell in zip(_HEADERS, _row(model), strict=True):
        if cell:
            say(f"{header.lower()}: {cell}")
    for item in model.artifacts:
        say(f"artifact: {item['path']} {item['size']} bytes, sha256 {item['sha256'][:12]}")
    for state, found in model.evidence.items():
        brief = {key: value for key, value in found.items() if isinstance(value, (str, int, float)) and value != ""}
        say(f"{state}: " + ", ".join(f"{key} {value}" for key, value in brief.items()))
        if found.get("rows"):
            table(_SLICES, [_slice(row) for row in found["rows"]])


def _slice(row: dict[str, Any]) -> tuple[str, ...]:
    low, high = row["interval"]
    numbers = [f"{row[name]:.4g}" if row[name] is not None else "" for name in ("candidate", "champion")]
    change = f"{row['change']:+.4g}" if row["change"] is not None else ""
    return (
        row["slice"],
        str(row["items"]),
        *numbers,
        change,
        f"[{low:+.3g}, {high:+.3g}]" if low is not None else "",
        row["word"],
    )


def _show_done(done: Done) -> None:
    say(f"{done.model.digest[:12]} {done.model.state}: {', '.join(done.steps) or 'as it was'}")


def _act(line: dict[str, Any]) -> str:
    keys = ("from", "to", "alias", "remove", "target", "reason", "run_id")
    told = " ".join(f"{key}={line[key]}" for key in keys if key in line)
    return f"{line['kind']} {told}" + (f" (void: {line['void']})" if "void" in line else "")


def _order(line: dict[str, Any]) -> tuple[int, str]:
    return (line["seq"], line["digest"])


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at)) if at else ""
