"""What the command line and the panel do for a person, as plain functions.

An order is a line before it is queued. Nothing here prints or exits; what is wrong is raised, with a next step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridge.ledger_rows import CommandRow, VmState
from bridgehead import names, paths
from bridgehead.errors import NotFoundError, UsageError
from bridgehead.names import Allow
from bridgehead.queue_lines import ALLOW_KEY, RESUME_KEY, SPEC_KEY, Verb
from run_control import bridge_control, launching, notebook, project_file, queue_writer, rerunning, stopping, views
from run_control.plan import Plan
from run_control.project import Project
from run_control.views import RunView


@dataclass(frozen=True)
class Order:
    """A line for queue.txt. `stage` and `words` are those of a run of a stage; "" and () for anything else."""

    line: str
    stage: str = ""
    words: tuple[str, ...] = ()


def order_run(
    project: Project,
    stage: str,
    words: Sequence[str],
    *,
    resume: str = "",
    allow: Sequence[Allow] = (),
    vm: str = "",
    unpriced: str = "",
) -> Order:
    """`words`: key=value. Raises UsageError for a stage that is not there and for words that don't fit a line."""
    given = [*resume_words(resume, allow, words), *words]
    given += [launching.unpriced_word(unpriced)] if unpriced else []
    launching.request_of(project, project_file.load_whole(project.root), stage, given)
    return Order(queue_writer.run_line(stage, given, vm), stage, tuple(given))


def order_shipped(project: Project, shipped: str) -> Order:
    """The run of the stage that is called so, or whose command is `bridgehead:<shipped>`. Raises UsageError."""
    stages = project_file.load(project.root).stages.values()
    wanted = [stage.name for stage in stages if stage.command == f"{names.SHIPPED_COMMAND_PREFIX}{shipped}"]
    named = shipped if any(stage.name == shipped for stage in stages) else next(iter(wanted), shipped)
    return order_run(project, named, [])


def order_resume(project: Project, text: str) -> Order:
    """A new run that begins at the newest checkpoint of this one, with its overrides. Raises UsageError."""
    view, row = views.run(project, text), _row(project, text)
    if row.verb != Verb.RUN:
        raise UsageError(f"{view.run_id} is a shell command: it has no checkpoint", hint="run it again instead")
    if not view.ended:
        why = view.waits_for or f"it is {view.state}"
        raise UsageError(f"{view.run_id} has not ended ({why}): it goes on by itself", hint="bridgehead status")
    kept = [word for word in _words_of(row) if word.partition("=")[0] not in (RESUME_KEY, ALLOW_KEY, SPEC_KEY)]
    return order_run(project, row.stage, kept, resume=view.run_id)


def order_rerun(project: Project, text: str, *, anyway: bool = False, keep: bool = True) -> Order:
    """Exactly the same once more; as `bridgehead rerun` where the run has a spec, else its line again.

    `keep`: store the spec that the line names; without it the line is only for showing. A VM's name is left out when
    that VM does not live. Raises UsageError, of a run with a spec also when something has changed since.
    """
    row = _row(project, text)
    vm = row.target_vm if any(vm["vm_id"] == row.target_vm for vm in _live(project)) else ""
    if row.verb == Verb.SH:
        return Order(queue_writer.shell_line(row.argument, vm))
    with views.ledger_of(project) as ledger:
        queued = ledger.spec_of(row.run_id)
    if queued is None or not queued.pins.spec:
        return order_run(project, row.stage, _words_of(row), vm=vm)
    made = rerunning.again(project, row.run_id, anyway=anyway)
    return Order(rerunning.line_again(project, row.run_id, made, keep=keep))


def plan_of(project: Project, order: Order) -> Plan:
    """Spec, price and checks of a run of a stage, as the ledger would have it."""
    return launching.plan_line(project, order.stage, order.words)


def check(project: Project, order: Order) -> None:
    """Raises the plan's refusal where there is anything by which a run may be refused."""
    if not order.stage or not launching.may_refuse(project, project_file.load_whole(project.root)):
        return
    refusal = plan_of(project, order).refusal
    if refusal is not None:
        raise refusal


def stop_lines(project: Project, text: str, *, now: bool = False) -> tuple[RunView, list[str]]:
    """The run, and the lines that stop it; none when it has ended.

    Asked once a run saves and leaves; asked twice it is killed. With `now` there are as many lines as are still
    missing for that.
    """
    view = views.run(project, text)
    if view.ended:
        return view, []
    line = queue_writer.stop_line(view.run_id)
    if not now:
        return view, [line]
    return view, [line] if stopping.asked(project, view.run_id) else [line, line]


def override_words(overrides: Mapping[str, Any]) -> list[str]:
    """`key=value` words; a text stays as a person typed it, anything else becomes JSON without spaces."""
    return [
        f"{key}={value if isinstance(value, str) else json.dumps(value, separators=(',', ':'))}"
        for key, value in overrides.items()
    ]


def resume_words(resume: str, allowed: Sequence[Allow], more: Sequence[str]) -> list[str]:
    """The words of a queue line that say where to begin and what may differ from how that was made."""
    words = [f"{RESUME_KEY}={resume}"] if resume else []
    if allowed and not resume and not any(word.startswith(f"{RESUME_KEY}=") for word in more):
        raise UsageError(
            f"--allow-{allowed[0]} is about the checkpoint that --resume names, and there is no --resume",
            hint=f"add --resume RUN, or leave --allow-{allowed[0]} out to begin anew",
        )
    return [*words, f"{ALLOW_KEY}={','.join(allowed)}"] if allowed else words


def pairing_cell(project: Project) -> str:
    """The bootstrap cell with the pairing code in it. It is a secret. Raises BridgeDownError and PairingError."""
    code = bridge_control.pairing(project, bridge_control.need(project)).encode()
    return notebook.cell_text(code)


def arrived(project: Project, run_id: str, path: str) -> Path:
    """A file or folder below in/<run>/. Raises UsageError for a path that leads out of it, and NotFoundError."""
    folder = project.run(views.run(project, run_id).run_id)
    found = paths.inside(folder, path) if path not in ("", ".") else folder
    if not found.exists():
        raise NotFoundError(f"nothing has arrived at {found}", hint="bridgehead status")
    return found


def verify_bundle(path: Path) -> dict[str, Any]:
    """The report of `bundle verify`. Raises VerificationError and NotFoundError."""
    from export import bundle

    return bundle.verify(path).to_json()


def _row(project: Project, text: str) -> CommandRow:
    with views.ledger_of(project) as ledger:
        return ledger.find_run(text)


def _words_of(row: CommandRow) -> list[str]:
    """What stands behind the stage in a taken run: line."""
    return row.text.strip().partition(f"{Verb.RUN}:")[2].split()[1:]


def _live(project: Project) -> list[dict[str, Any]]:
    return [vm for vm in views.vms(project) if vm["state"] == VmState.LIVE]
