"""Commands about runs: status (ps), run, sh, stop, wait, logs, queue."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from bridgehead import names
from bridgehead.errors import BridgeDownError, BridgeheadError, StillRunning, UsageError
from run_control import cli_stop
from run_control.cli_support import (
    JsonFlag,
    ProjectFlag,
    detaching,
    emit,
    event,
    note,
    parse_duration,
    project_of,
    say,
    table,
)

if TYPE_CHECKING:
    from run_control.project import Project
    from run_control.queueing import Queued
    from run_control.views import RunView

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run id, its beginning, or a stage: its newest run.")]
RunsArgument = Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help="Default: all that have not ended.")]
TimeoutOption = Annotated[
    str, typer.Option("--timeout", metavar="TIME", help="90s, 30m, 2h, then exit 7; 0 looks once.")
]
VmOption = Annotated[str, typer.Option("--vm", metavar="VM", help="Only on this VM.")]
WaitFlag = Annotated[bool, typer.Option("--wait", help="Stay until it has ended; exit 3 when it failed.")]
DEFAULT_TAIL = 100


def register(app: typer.Typer) -> None:
    app.command("status")(status)
    app.command("ps", help="The same as status.")(status)
    for command in (run, sh, cli_stop.stop, wait, logs, queue):
        app.command()(command)


def status(
    context: typer.Context,
    run: Annotated[str, typer.Argument(metavar="[RUN]", help="One run alone.")] = "",
    exit_status: Annotated[
        bool, typer.Option("--exit-status", help="With RUN: exit 0 done, 3 failed, 5 VM lost, 8 still running.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Stay, and show what changes; with RUN until it has ended. Ctrl-C: 130.")
    ] = False,
    json: JsonFlag = False,
    project: ProjectFlag = None,
) -> int:
    """VMs and runs: state, progress, and how far the newest checkpoint has climbed."""
    from run_control import status_now, status_watch, views
    from run_control.wait import outcome

    found = project_of(context, project)
    if exit_status and not run:
        raise UsageError("--exit-status needs a RUN", hint="bridgehead status RUN --exit-status")
    if watch:
        status_watch.watch(found, views.run(found, run).run_id if run else "", as_json=json)
    elif not run:
        now = status_now.look(found)
        return emit(now.data, as_json=json, show=lambda: status_now.show(now, say=say, note=note, table=table))
    view = views.run(found, run)
    code = 0 if watch else emit({"run": view.to_json()}, as_json=json, show=lambda: _show_run(view))
    error = outcome(view) if exit_status else None
    return error.exit_code if error else code


def run(
    context: typer.Context,
    stage: Annotated[str, typer.Argument(metavar="STAGE")],
    words: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Override its config.")] = None,
    resume: Annotated[
        str, typer.Option("--resume", metavar="RUN", help="Begin at the newest checkpoint of that run.")
    ] = "",
    allow_code: Annotated[bool, typer.Option("--allow-code", help="Its checkpoint may be of other code.")] = False,
    allow_config: Annotated[bool, typer.Option("--allow-config", help="… of another config.")] = False,
    allow_pool: Annotated[bool, typer.Option("--allow-pool", help="… of another pool of data.")] = False,
    vm: VmOption = "",
    unpriced: Annotated[str, typer.Option("--unpriced", metavar="WHY", help="Start it without a known price.")] = "",
    wait: WaitFlag = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show spec, price and checks; queue nothing.")] = False,
    json: JsonFlag = False,
    project: ProjectFlag = None,
) -> int:
    """Add run:STAGE to queue.txt. STAGE may be a spec file, such as arms/one.toml."""
    from run_control import cli_specs, commands, spec_file

    found = project_of(context, project)
    allowed = {names.Allow.CODE: allow_code, names.Allow.CONFIG: allow_config, names.Allow.POOL: allow_pool}
    allow = [word for word, given in allowed.items() if given]
    if spec_file.is_meant(stage):
        beside = [*(words or []), *(["--resume"] if resume else []), *(f"--allow-{word}" for word in allow)]
        return cli_specs.run_file(
            found, stage, beside, unpriced=unpriced, vm=vm, dry_run=dry_run, wait=wait, as_json=json
        )
    order = commands.order_run(found, stage, words or [], resume=resume, allow=allow, vm=vm, unpriced=unpriced)
    if dry_run:
        return cli_specs.show_plan(found, order.line, commands.plan_of(found, order), as_json=json)
    commands.check(found, order)
    return submit(found, order.line, wait=wait, as_json=json)


def sh(
    context: typer.Context,
    words: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="Quote it, or put -- before it.")],
    vm: VmOption = "",
    wait: WaitFlag = False,
    json: JsonFlag = False,
    project: ProjectFlag = None,
) -> int:
    """Run a shell command on the VM, as a run of its own."""
    from run_control import queue_writer

    text = words[0] if len(words) == 1 else shlex.join(words)
    return submit(project_of(context, project), queue_writer.shell_line(text, vm), wait=wait, as_json=json)


def wait(
    context: typer.Context,
    runs: RunsArgument = None,
    timeout: TimeoutOption = "",
    json: JsonFlag = False,
    project: ProjectFlag = None,
) -> int:
    """Stay until the runs have ended. Exit 0 when all are done, 3 when one failed; Ctrl-C only detaches."""
    from run_control import wait as waiting

    found = project_of(context, project)
    timeout_s = parse_duration(timeout) if timeout else None
    return _follow_to_end(found, waiting.resolve(found, runs or []), timeout_s, as_json=json)


def logs(
    context: typer.Context,
    run: RunArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    tail: Annotated[int, typer.Option("--tail", "-n", min=0, help="So many lines of the end.")] = DEFAULT_TAIL,
    exit_status: Annotated[bool, typer.Option("--exit-status", help="With -f: exit 3 when the run failed.")] = False,
    json: JsonFlag = False,
    project: ProjectFlag = None,
) -> int:
    """The end of a run's log; -f follows it. Made safe to show; the raw bytes are in in/<run>/log."""
    from run_control import logs as reader
    from run_control import views
    from run_control.bar_line import BarLine
    from run_control.bridge_watch import BridgeWatch
    from run_control.wait import outcome

    found = project_of(context, project)
    view = views.run(found, run)
    path = found.run(view.run_id) / names.LOG
    lines, offset = reader.tail(path, tail, complete_only=follow)
    if not path.exists():
        note(f"{view.run_id} is {view.state} and has written nothing yet")
    if not follow:
        return emit({"run_id": view.run_id, "lines": lines}, as_json=json, show=lambda: _show_lines(lines))
    sequence = 0
    with detaching(view.run_id, f"bridgehead logs -f {view.run_id}"), views.ledger_of(found) as ledger:
        for line in lines:
            sequence = _stream_line(sequence, line, as_json=json)
        watch = BridgeWatch(found, f"bridgehead logs -f {view.run_id}")

        def ended() -> bool:
            watch.check()
            return ledger.find_run(view.run_id).ended

        with BarLine() as bar:
            for line in reader.follow(path, offset, ended, on_bar=bar.show):
                bar.clear()
                sequence = _stream_line(sequence, line, as_json=json)
    view = views.run(found, view.run_id)
    if json:
        event(sequence + 1, {"run": view.to_json()})
    error = outcome(view) if exit_status else None
    return error.exit_code if error else 0


def queue(
    context: typer.Context,
    newest: Annotated[
        int | None, typer.Option("--tail", "-n", min=0, help="So many of the newest lines; default: all.")
    ] = None,
    json: JsonFlag = False,
    project: ProjectFlag = None,
) -> int:
    """What became of each line of queue.txt."""
    from run_control import bridge_control, views

    found = project_of(context, project)
    commands, notes = views.commands(found, newest), views.notes(found)

    def show() -> None:
        table(views.COMMAND_HEADERS, [views.command_row(command) for command in commands])
        for item in notes:
            note(f"line {item['line_number']}: {item['text']}" if item["line_number"] else str(item["text"]))
        if bridge_control.find(found) is None:
            note("no bridge is running: new lines wait. next: bridgehead up")

    return emit({"commands": commands, "notes": notes}, as_json=json, show=show)


def submit(project: Project, line: str, *, wait: bool, as_json: bool) -> int:
    """Append the line, say what the bridge made of it, and with `wait` stay until its run has ended."""
    from run_control import bridge_control, queueing

    queued = queueing.submit(project, line)
    if wait and not queued.run_id and bridge_control.find(project) is not None:
        raise StillRunning("queued, but the bridge has not taken the line yet", hint="bridgehead queue")
    if wait and not queued.run_id:
        raise BridgeDownError("queued, but no bridge has taken the line: nothing to wait for", hint="bridgehead up")
    code = emit(queued.to_json(), as_json=as_json, show=lambda: _show_queued(project, queued))
    return _follow_to_end(project, [queued.run_id], None, as_json=as_json) if wait else code


def _follow_to_end(project: Project, run_ids: list[str], timeout_s: float | None, *, as_json: bool) -> int:
    from run_control import bridge_control, postmortems, uploads_view
    from run_control import wait as waiting
    from run_control.bridge_watch import BridgeWatch

    last: dict[str, RunView] = {}
    one = run_ids[0] if len(run_ids) == 1 else ""
    again = " ".join(["bridgehead wait", *run_ids])
    watch = BridgeWatch(project, again)
    with detaching(one, again), uploads_view.bars(project, run_ids, wanted=not as_json) as look:

        def check() -> None:
            watch.check()
            look()

        if bridge_control.find(project) is None:
            note("no bridge is running: nothing new arrives until bridgehead up")
        for sequence, view in enumerate(waiting.watch(project, run_ids, timeout_s=timeout_s, check=check), start=1):
            if as_json:
                event(sequence, {"run": view.to_json()})
            elif view.run_id not in last or _worth_a_line(last[view.run_id], view):
                note(" · ".join(cell for cell in (*view.row(), view.waits_for, view.stays) if cell))
            last[view.run_id] = view
    errors = [error for view in last.values() if (error := waiting.outcome(view)) is not None]
    first: BridgeheadError | None = errors[0] if errors else None
    postmortems.settle(project)
    data = {"runs": [last[run_id].to_json() for run_id in run_ids]}
    return emit(data, as_json=as_json, show=lambda: None, error=first)


def _worth_a_line(old: RunView, new: RunView) -> bool:
    level = (old.checkpoint or {}).get("level"), (old.checkpoint or {}).get("step")
    return (old.state, old.vm_state in names.ENDED, old.waits_for, *level) != (
        new.state,
        new.vm_state in names.ENDED,
        new.waits_for,
        (new.checkpoint or {}).get("level"),
        (new.checkpoint or {}).get("step"),
    )


def _stream_line(sequence: int, line: str, *, as_json: bool) -> int:
    if as_json:
        event(sequence + 1, {"line": line})
    else:
        say(line)
    return sequence + 1


def _show_queued(project: Project, queued: Queued) -> None:
    from run_control import bridge_control

    if queued.taken:
        say(queued.run_id or f"taken as #{queued.seq}")
        return
    say(f"queued: {queued.line}")
    up = bridge_control.find(project) is not None
    note(
        "the bridge has not taken it yet. next: bridgehead queue"
        if up
        else "no bridge has taken it yet. next: bridgehead up"
    )


def _show_run(view: RunView) -> None:
    from run_control import views

    for header, cell in zip(views.RUN_HEADERS, view.row(), strict=True):
        if cell:
            say(f"{header.lower()}: {cell}")
    why = view.reason or view.message
    more = (("now", view.waits_for), ("exit code", view.exit_code), ("failure class", view.failure_class), ("why", why))
    for name, value in more:
        if value not in (None, ""):
            say(f"{name}: {value}")


def _show_lines(lines: list[str]) -> None:
    for line in lines:
        say(line)
