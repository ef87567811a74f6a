"""What the command daemon does to a run folder before a stage starts in it, and instead of starting one."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

from bridgehead import checkpoints, files, image, names
from bridgehead.checkpoints import CheckpointRefused
from bridgehead.errors import UsageError, VerificationError
from bridgehead.names import Allow, RunState
from bridgehead.queue_lines import Verb
from bridgehead.records import Command, ExitRecord, RunRecord
from vm_daemons import inherit
from vm_daemons.home import VmHome
from vm_daemons.storage.store import Store

INPUTS = "inputs"  # in the VM's home: outputs of runs that ended on another VM, fetched from the store
_OF_AN_ATTEMPT = (
    names.EXIT,
    names.MIRRORED,
    names.STOP_REQUEST,
    names.PROCESS,
    names.RESTORED,
    names.SAVE_REQUEST,
    names.HANDOVER,
    names.DEATHS,
    names.POSTMORTEM,
    names.POSTMORTEM_PAGE,
    names.POSTMORTEM_DUE,
)


def open_attempt(home: VmHome, command: Command) -> Path:
    """The run's folder, with run.json of this attempt in it and nothing that an earlier attempt said about its end."""
    run_dir = home.run(command.run_id)
    run_dir.mkdir(parents=True, exist_ok=True)
    before = files.read_json(run_dir / names.RUN_RECORD)
    if isinstance(before, dict) and before.get("attempt") == command.attempt:
        return run_dir
    for name in _OF_AN_ATTEMPT:
        (run_dir / name).unlink(missing_ok=True)
    files.write_json(run_dir / names.RUN_RECORD, _record(home, command).to_json())
    return run_dir


def end_unstarted(
    home: VmHome, command: Command, state: RunState, failure: str, message: str, *, retries: int = 0
) -> None:
    """Write the exit record of an attempt that has no process to write it."""
    run_dir = open_attempt(home, command)
    say(run_dir, f"--- {state}: {message}")
    record = ExitRecord(
        run_id=command.run_id,
        attempt=command.attempt,
        state=state,
        failure_class=str(failure),
        message=message,
        ended=time.time(),
        retries=retries,
    )
    files.write_json(run_dir / names.EXIT, record.to_json())


def exit_record(run_dir: Path) -> ExitRecord | None:
    try:
        return ExitRecord.from_json(files.read_json(run_dir / names.EXIT))
    except UsageError:
        return None


def has_ended(home: VmHome, command: Command) -> bool:
    record = exit_record(home.run(command.run_id))
    return record is not None and record.attempt == command.attempt


def has_left(run_dir: Path, attempt: int) -> bool:
    """Whether all that this attempt made has reached store and laptop."""
    mirrored = files.read_json(run_dir / names.MIRRORED)
    return isinstance(mirrored, dict) and mirrored.get("attempt") == attempt


def refused(run_dir: Path, attempt: int) -> dict[str, str]:
    """Outputs of this attempt that could not be sent, and why."""
    told = files.read_json(run_dir / names.MIRRORED)
    found = told.get("refused") if isinstance(told, dict) and told.get("attempt") == attempt else None
    return {str(name): str(why) for name, why in found.items()} if isinstance(found, dict) else {}


def fetched_input(home: VmHome, run_id: str) -> Path:
    return home.root / INPUTS / run_id


def needs_store(home: VmHome, command: Command) -> bool:
    """Whether something has to be brought from the store before the stage can start."""
    later = command.attempt > 1 or (command.spec is not None and command.spec.resume_from)
    damaged = checkpoints.all_damaged(home.run(command.run_id) / names.CHECKPOINTS)
    return bool(command.verb == Verb.RUN and (later or damaged)) or any(
        _local_input(home, run_id) is None for run_id in command.inputs.values()
    )


def runs_payload(command: Command) -> bool:
    """Whether it is a run of the user's own files."""
    shipped = command.spec is not None and command.spec.command.startswith(names.SHIPPED_COMMAND_PREFIX)
    return command.verb == Verb.RUN and not shipped


def note_payload(home: VmHome, command: Command, payload_sha256: str) -> None:
    """Have run.json name the payload that the run starts with."""
    record = dataclasses.replace(_record(home, command), payload_sha256=payload_sha256)
    files.write_json(home.run(command.run_id) / names.RUN_RECORD, record.to_json())


def payload_of(home: VmHome, command: Command) -> str:
    """The payload that run.json names; empty when there is no such file."""
    record = files.read_json(home.run(command.run_id) / names.RUN_RECORD)
    return str(record.get("payload_sha256") or "") if isinstance(record, dict) else ""


def code_to_go_on_with(home: VmHome, command: Command, *, started: bool) -> str:
    """The payload that a run which goes on must have: that of this attempt, or what made its newest checkpoint.

    Empty where any will do: there is no checkpoint, or the line says allow=code. `started`: this attempt has been.
    """
    if started:
        return payload_of(home, command)
    if command.spec is not None and Allow.CODE in command.spec.allow:
        return ""
    return str(checkpoints.newest_meta(home.run(command.run_id) / names.CHECKPOINTS).get(Allow.CODE) or "")


def prepare(home: VmHome, store: Store, command: Command) -> dict[str, Path]:
    """Bring inputs and, for a later attempt, the newest checkpoint; stage -> folder of each input.

    When an earlier attempt turns out to have ended, its outputs and exit.json are there afterwards: nothing is to be
    started. Raises VerificationError (CheckpointRefused: no copy is anywhere), NotFoundError, SupersededError,
    StoreError, OSError. Slow: it copies and hashes.
    """
    if command.verb == Verb.RUN and command.attempt > 1:
        if store.available:
            inherit.logs(home, store, command)
            if _adopt(home, store, command):
                return {}
        _restore(home, store, command)
    elif command.verb == Verb.RUN and checkpoints.all_damaged(home.run(command.run_id) / names.CHECKPOINTS):
        _restore(home, store, command)
    if command.verb == Verb.RUN and command.spec is not None and command.spec.resume_from:
        _begin_at(home, store, command, command.spec.resume_from)
    return {stage: _bring_input(home, store, run_id) for stage, run_id in command.inputs.items()}


def say(run_dir: Path, line: str) -> None:
    """One line in the run's log, where its owner looks first."""
    files.append_line(run_dir / names.LOG, line, durable=False)


def _adopt(home: VmHome, store: Store, command: Command) -> bool:
    run_dir = home.run(command.run_id)
    try:
        ended = inherit.end(home, store, command)
    except VerificationError as error:
        say(run_dir, f"--- an earlier attempt had ended, and what it left in the store is damaged: {error}")
        return False
    if ended is not None:
        say(run_dir, f"--- attempt {ended.attempt} had ended ({ended.state}); what it made came from the store")
    return ended is not None


def _begin_at(home: VmHome, store: Store, command: Command, other: str) -> None:
    """Where the line says resume=: the first attempt begins at the other run's newest checkpoint."""
    run_dir = home.run(command.run_id)
    if any(checkpoints.step_of(folder) is not None for folder in (run_dir / names.CHECKPOINTS).glob("*")):
        return
    step = inherit.checkpoint_of(home, store, other, run_dir)
    say(run_dir, f"--- begins at checkpoint {step} of {other}")


def _restore(home: VmHome, store: Store, command: Command) -> None:
    run_dir = home.run(command.run_id)
    restored = store.restore(command.run_id, run_dir) if store.available else None
    for bad in _passed_over(run_dir):
        say(run_dir, f"--- passed over {bad}")
    if restored is not None:
        size_mb = restored.size_bytes / 2**20
        say(run_dir, f"--- checkpoint {restored.step} restored from the store and checked, {size_mb:.1f} MiB")
    elif any(checkpoints.step_of(folder) is not None for folder in (run_dir / names.CHECKPOINTS).glob("*")):
        say(run_dir, "--- goes on from the checkpoint on this VM's disk")
    else:
        where = (
            f"the store holds no checkpoint{_about_the_store(home, run_dir)}"
            if store.available
            else "there is no durable store"
        )
        if checkpoints.all_damaged(run_dir / names.CHECKPOINTS) and not (command.spec and command.spec.resume_from):
            raise CheckpointRefused(f"no checkpoint on this VM's disk verifies, and {where}")
        say(run_dir, f"--- {where}: attempt {command.attempt} starts from the beginning")


def _passed_over(run_dir: Path) -> list[str]:
    report = files.read_json(run_dir / names.RESTORED)
    bad = report.get("passed_over", []) if isinstance(report, dict) else []
    return [f"the checkpoint in {item['name']}{_of_step(item['step'])}: {item['why']}{_cost(item)}" for item in bad]


def _about_the_store(home: VmHome, run_dir: Path) -> str:
    """That it was empty, another project's or somebody else's: then perhaps the wrong folder was mounted or named.

    The uploader looks before anybody writes there, so that it knows longer than who restores.
    """
    for path in (run_dir / names.RESTORED, home.state / names.VM_STORE_STATE):
        told = files.read_json(path)
        if isinstance(told, dict) and told.get("note"):
            return f" ({told['note']})"
    return ""


def _cost(item: dict[str, Any]) -> str:
    return f"; that costs {item['steps_lost']} steps" if item.get("steps_lost") else ""


def _of_step(step: object) -> str:
    """Of a commit that was cut nobody knows the step."""
    return f" (step {step})" if isinstance(step, int) and step >= 0 else ""


def _bring_input(home: VmHome, store: Store, run_id: str) -> Path:
    return _local_input(home, run_id) or store.fetch_run(run_id, fetched_input(home, run_id))


def _local_input(home: VmHome, run_id: str) -> Path | None:
    for folder in (home.run(run_id), fetched_input(home, run_id)):
        if (folder / names.EXIT).exists():
            return folder
    return None


def _record(home: VmHome, command: Command) -> RunRecord:
    if command.spec is None:
        raise UsageError(f"command {command.id} has no stage")
    vm = home.record()
    return RunRecord(
        run_id=command.run_id,
        stage=command.spec.name,
        project=str(vm.get("project") or ""),
        command_id=command.id,
        attempt=command.attempt,
        vm_id=str(vm["vm_id"]),
        created=command.created,
        spec=command.spec,
        inputs=command.inputs,
        ship_sha256=str(vm.get("ship_sha256") or ""),
        payload_sha256=str(vm.get("payload_sha256") or ""),
        fingerprint=image.fingerprint(),
    )
