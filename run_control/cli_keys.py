"""Commands about who may do what: keys (list, new, revoke, rotate), and audit. A key itself is never shown."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridgehead.errors import VerificationError
from run_control.cli_support import JsonFlag, ProjectFlag, emit, note, parse_duration, project_of, say, table

if TYPE_CHECKING:
    from bridge.key_records import PairingKey
    from run_control.project import Project

KEY_HEADERS = ("KEY", "NAME", "STATE", "MADE", "LAST USED", "SH", "VMS")
AUDIT_HEADERS = ("AT", "EVENT", "#", "WHAT", "WHO", "VM", "KEY")
KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="An id, its beginning, or a name.")]
_STAMP = "%Y-%m-%d %H:%M:%S"


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Pairing keys: one for each pairing code.", rich_markup_mode=None)
    group.callback()(keys_group)
    group.command("list")(list_keys)
    group.command("new")(new)
    group.command("revoke")(revoke)
    group.command("rotate")(rotate)
    app.add_typer(group, name="keys")
    app.command()(audit)


def keys_group() -> None:
    """Pairing keys. A running bridge heeds a change at once."""


def list_keys(context: typer.Context, json: JsonFlag = False, project: ProjectFlag = None) -> int:
    """Every key ever made: who uses it and whether it is good. Never the key itself."""
    from run_control import key_control

    found = key_control.views(project_of(context, project))

    def show() -> None:
        rows = [
            (
                v.id,
                v.name,
                v.state_in_words,
                _when(v.made),
                _when(v.last_used),
                "yes" if v.sh else "no",
                " ".join(v.vms),
            )
            for v in found
        ]
        table(KEY_HEADERS, rows)

    return emit({"keys": [view.to_json() for view in found]}, as_json=json, show=show)


def new(
    context: typer.Context,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="To tell it from others.")] = "",
    no_sh: Annotated[bool, typer.Option("--no-sh", help="Its VMs run no sh: lines, whoever asks.")] = False,
    json: JsonFlag = False,
    project: ProjectFlag = None,
) -> int:
    """Make one more pairing, for VMs that are to be kept apart from those of others."""
    from run_control import key_control

    found = project_of(context, project)
    with key_control.changing(found) as (store, tell):
        made = store.make(name, allow_sh=not no_sh, tell=tell)
    path, trouble = key_control.write_notebook(found, made.id)

    def show() -> None:
        say(f"{made.id} made")
        if trouble is None:
            up = f"next: bridgehead up, then bridgehead notebook --key {made.id}"
            note(f"next: run {path} on the VM" if path else up)

    return emit({**_brief(made), "notebook": path}, as_json=json, show=show, error=trouble)


def revoke(context: typer.Context, key: KeyArgument, json: JsonFlag = False, project: ProjectFlag = None) -> int:
    """End a key now, with all that were rotated from it or to it: its VMs get 401 from here on."""
    from run_control import key_control

    found = project_of(context, project)
    with key_control.changing(found) as (store, tell):
        ended, heir = store.revoke(store.find(key).id, tell=tell)
    path, trouble = key_control.write_notebook(found, "") if heir is not None else ("", None)

    def show() -> None:
        say(f"revoked: {', '.join(item.id for item in ended)}")
        if heir is not None:
            say(f"new pairing codes carry {heir.id}")
        if trouble is None:
            note(_pair_anew(path))

    told = {"revoked": [item.id for item in ended], "current": heir.id if heir else "", "notebook": path}
    return emit(told, as_json=json, show=show, error=trouble)


def rotate(
    context: typer.Context,
    key: Annotated[str, typer.Argument(metavar="[KEY]", help="Default: the current one.")] = "",
    grace: Annotated[str, typer.Option(metavar="TIME", help="How long the old one is good at most.")] = "24h",
    json: JsonFlag = False,
    project: ProjectFlag = None,
) -> int:
    """Replace a key by one derived from it; runs go on. Against a key that leaked, revoke instead."""
    from run_control import key_control

    grace_s = parse_duration(grace)
    found = project_of(context, project)
    with key_control.changing(found) as (store, tell):
        old = store.find(key)
        made = store.rotate(old.id, grace_s=grace_s, tell=tell)
    current = store.current()[0] == made.id
    path, trouble = key_control.write_notebook(found, "" if current else made.id)

    def show() -> None:
        say(f"{made.id} follows {old.id}, which is good until its VMs use the new one, {grace} at most")
        if trouble is None:
            note(f"the notebook is written anew: {path}" if path else "the next bridgehead up writes the notebook anew")

    return emit({**_brief(made), "after": old.id, "notebook": path}, as_json=json, show=show, error=trouble)


def audit(
    context: typer.Context,
    run: Annotated[str, typer.Option("--run", metavar="RUN", help="What was done to one run alone.")] = "",
    verify: Annotated[
        bool, typer.Option("--verify", help="Check the chain of hashes; exit 9 when it is broken.")
    ] = False,
    json: JsonFlag = False,
    project: ProjectFlag = None,
) -> int:
    """What was commanded, by whom, which VM took it and what came of it; and what happened to keys."""
    from run_control import key_control

    found = project_of(context, project)
    if verify:
        return _verify(found, as_json=json)
    lines = key_control.audit_lines(found, run)
    return emit({"lines": lines}, as_json=json, show=lambda: table(AUDIT_HEADERS, [_row(line) for line in lines]))


def _verify(project: Project, *, as_json: bool) -> int:
    from run_control import key_control

    verdict = key_control.verify_audit(project)
    error = None
    if verdict.problems:
        error = VerificationError(f"the audit file was changed: {verdict.problems[0]}", hint="compare it with a backup")

    def show() -> None:
        say(f"{verdict.lines} lines in {verdict.files} files, the last is {verdict.head[:16]}")
        for problem in verdict.problems:
            say(problem)

    told = {
        "lines": verdict.lines,
        "files": verdict.files,
        "head": verdict.head,
        "torn": verdict.torn,
        "problems": verdict.problems,
    }
    return emit(told, as_json=as_json, show=show, error=error)


def _row(line: dict[str, Any]) -> tuple[str, ...]:
    what = str(line.get("line") or line.get("run_id") or line.get("counts") or line.get("name") or "")
    if line.get("expected") is not None:
        what = f"{line['expected']} lines were expected, {line.get('found')} found"
    elif line.get("of"):
        what = f"not done: {line['of']}"
    if line.get("event") not in ("taken", "given"):
        ending = [str(line[key]) for key in ("state", "failure_class", "reason") if line.get(key)]
        if line.get("exit_code") is not None:
            ending.insert(1, f"exit {line['exit_code']}")
        what = " ".join(filter(None, (what, ", ".join(ending))))
    queued_by = line.get("queued_by") or {}
    who = " ".join(str(queued_by[key]) for key in ("via", "user") if queued_by.get(key))
    at, (event, seq, vm, key) = (
        line.get("at"),
        (str(line.get(name, "")) for name in ("event", "seq", "vm_id", "key_id")),
    )
    return (_when(at if isinstance(at, int | float) else 0.0), event, seq, what[:200], who, vm, key)


def _pair_anew(path: str) -> str:
    if path:
        return f"next: to pair a VM anew, run {path} there"
    return "next: to pair a VM anew: bridgehead keys new, or bridgehead notebook once the bridge is up"


def _brief(item: PairingKey) -> dict[str, Any]:
    return {"id": item.id, "name": item.name, "sh": item.allow_sh}


def _when(at: float) -> str:
    return time.strftime(_STAMP, time.localtime(at)) if at else ""
