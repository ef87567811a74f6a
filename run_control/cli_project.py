"""Commands about the project and this laptop: init, demo, up, down, notebook, doctor, bundle verify, completion."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridgehead import names
from bridgehead.errors import UsageError
from bridgehead.queue_lines import nearest
from run_control import cli_models
from run_control.cli_support import JsonFlag, ProjectFlag, emit, note, one_key, project_of, say, table

_THIS_MACHINE = "http://127.0.0.1:"

if TYPE_CHECKING:
    from run_control.project import Project
    from run_control.up import UpReport

_ANNOUNCED_S = 1.5  # for the store to take the address; a slow one is told of by `status`


def register(app: typer.Typer) -> None:
    for command in (init, demo, up, down, notebook, doctor, completion):
        app.command()(command)
    bundle = typer.Typer(help="Ship bundles.", rich_markup_mode=None)
    bundle.command("verify")(bundle_verify)
    bundle.callback()(bundle_group)
    cli_models.register_bundle(bundle)
    app.add_typer(bundle, name="bundle")


def init(
    context: typer.Context,
    folder: Annotated[Path | None, typer.Argument(metavar="DIR", help="The folder to make it in.")] = None,
    json: JsonFlag = False,
) -> int:
    """Make a new project folder. Never overwrites anything."""
    from run_control import init as maker

    folder = folder or context.obj or Path(".")
    project, written = maker.init(folder)

    def show() -> None:
        say(f"project in {project.root}: {', '.join(written)}")
        note(f"next: bridgehead -C {folder} up" if folder != Path(".") else "next: bridgehead up")

    return emit({"project": str(project.root), "written": written}, as_json=json, show=show)


def demo(
    keep: Annotated[Path | None, typer.Option("--keep", metavar="DIR", help="A new folder to leave it in.")] = None,
    study: Annotated[bool, typer.Option("--study", help="A study of three arms instead, stopped half-way.")] = False,
    json: JsonFlag = False,
) -> int:
    """The whole product on this machine: train, kill the VM half-way, resume bit for bit, ship. Under 5 minutes."""
    if study:
        from run_control import demo_study

        return demo_study.demo(keep, as_json=json)
    from run_control import demo as show_case

    return show_case.demo(keep, as_json=json)


def up(
    context: typer.Context,
    runtime: Annotated[str, typer.Option(help="notebook: a VM that you open; local: one made here.")] = "notebook",
    tunnel: Annotated[
        str | None,
        typer.Option(help="none, cloudflared, ssh or command; default: [tunnel] of the project file, else none."),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help=f"Default: {names.DEFAULT_PORT}; 0: any free one.")
    ] = None,
    json: JsonFlag = False,
    project: ProjectFlag = None,
) -> int:
    """Start the bridge (and with --runtime local a notebook VM), or say that it is up."""
    from run_control import address_told, payload_words
    from run_control import up as starter
    from run_control.alarms import alarms

    if runtime not in starter.RUNTIMES:
        raise UsageError(f"no runtime {runtime!r}", hint=nearest(runtime, starter.RUNTIMES))
    found = project_of(context, project)
    report = starter.up(found, runtime=runtime, tunnel=tunnel, port=port)
    if report.started_bridge:
        address_told.await_outcome(found, report.url, _ANNOUNCED_S)
    trouble = list(dict.fromkeys([*report.untracked, *alarms(found), *payload_words.lines(found)]))

    def show() -> None:
        say(f"bridge {'started' if report.started_bridge else 'already up'}: {report.url} (tunnel: {report.tunnel})")
        if report.released_vm:
            say(f"local VM {report.released_vm} had given itself back, and is gone now")
        if report.vm:
            say(f"local VM {report.vm} {'started' if report.started_vm else 'already up'}")
        for line in _next_steps(report, _first_stage(found)):
            note(line)
        for line in trouble:
            note(line)

    return emit({**report.to_json(), "alarms": trouble}, as_json=json, show=show)


def _first_stage(project: Project) -> str:
    """One to suggest: of the project's stages, the first that comes after no other."""
    from run_control import project_file

    stages = project_file.load(project.root).stages.values()
    return next((stage.name for stage in stages if not stage.after), "STAGE")


def _next_steps(report: UpReport, stage: str) -> list[str]:
    queue = f"next: bridgehead run {stage}, or add a line to {names.QUEUE_FILE}; then bridgehead status"
    if report.vm:
        return [queue]
    steps = [
        "next: open https://colab.research.google.com, Upload, and choose",
        f"      {report.notebook}",
        "      pick a GPU under Runtime > Change runtime type, then run its one cell and leave the tab open.",
        "      The notebook holds your pairing code: don't share it. Run the cell again whenever a VM was lost.",
    ]
    if report.url.startswith(_THIS_MACHINE):
        steps.append(
            "      Colab needs a tunnel to this laptop: bridgehead down, then bridgehead up --tunnel cloudflared."
        )
    return steps


def down(context: typer.Context, json: JsonFlag = False, project: ProjectFlag = None) -> int:
    """Stop the bridge, its tunnel and local VMs. Runs that were going resume at the next up."""
    from run_control import up as starter

    report = starter.down(project_of(context, project))

    def show() -> None:
        for name in report.stopped_vms:
            say(f"local VM {name} stopped")
        say("bridge stopped" if report.stopped_bridge else "the bridge was not up")

    return emit(report.to_json(), as_json=json, show=show)


def notebook(
    context: typer.Context,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Where to write it.")] = None,
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="Of this pairing; see keys list.")] = "",
    show_code: Annotated[bool, typer.Option("--show-code", help="Print the pairing code. It is a secret.")] = False,
    json: JsonFlag = False,
    project: ProjectFlag = None,
) -> int:
    """Write bootstrap.ipynb with the pairing code in it, ready to upload."""
    from run_control import bridge_control, key_control
    from run_control import notebook as writer

    found = project_of(context, project)
    if out is not None:
        writer.check(out)
    key_id = key_control.keys(found).find(key).id if key else ""
    pairing = bridge_control.pairing(found, bridge_control.need(found), key_id)
    path = writer.write(out or (found.private / f"bootstrap-{key_id}.ipynb" if key_id else found.notebook), pairing)
    data: dict[str, Any] = {"notebook": str(path)}
    if show_code:
        data["code"] = pairing.encode()

    def show() -> None:
        say(data.get("code", str(path)))
        note("it holds your pairing code: don't share it")

    return emit(data, as_json=json, show=show)


def doctor(context: typer.Context, json: JsonFlag = False, project: ProjectFlag = None) -> int:
    """Check this laptop and this project. Exit 9 when something is broken."""
    from run_control import doctor as checks

    found = checks.examine(project or context.obj)

    def show() -> None:
        table(("CHECK", "STATE", "FOUND", "NEXT"), [(c.name, c.state, c.text, c.hint) for c in found])

    data = {"checks": [check.to_json() for check in found]}
    return emit(data, as_json=json, show=show, error=checks.worst(found))


def bundle_group() -> None:
    """Ship bundles: the verified ONNX model and what belongs to it."""


def bundle_verify(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A bundle folder, its archive, or in/<run>.")],
    key: Annotated[
        list[Path] | None, typer.Option("--key", metavar="FILE", help="Its signature must be this key's.")
    ] = None,
    json: JsonFlag = False,
) -> int:
    """Check every hash, run the sample clips in onnxruntime and compare the outputs. Exit 9 when it does not hold."""
    from export import bundle

    report = bundle.verify(path, one_key(key))
    data = report.to_json()

    def show() -> None:
        say(f"ok: {path}")
        for key, value in data.items():
            if key not in ("ok", "v") and isinstance(value, (str, int, float)):
                say(f"  {key}: {value}")

    return emit(data, as_json=json, show=show)


def completion(
    context: typer.Context, shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]
) -> int:
    """Print a completion script: source <(bridgehead completion bash)."""
    from run_control import completion as scripts

    group: Any = context.find_root().command
    words = {name: _words(command) for name, command in group.commands.items()}
    say(scripts.script(shell, words))
    return 0


def _words(command: Any) -> list[str]:
    options = [option for item in command.params for option in item.opts if option.startswith("--")]
    return [*getattr(command, "commands", {}), *options]
