"""Collects what the verdict is made from, while a round is played and when all commands have ended."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from bridgehead import files, names, processes
from bridgehead.names import CheckpointLevel, RunState
from bridgehead.queue_lines import Verb
from chaos import store_check, workload
from chaos.reference import Reference, artifact_digests
from chaos.store_check import StoredRun
from chaos.verdict import CommandSeen, Verdict, half_files
from chaos.world import Pid, World, wait_gone
from run_control.views import RunView

_SETTLE_S = 20.0  # a VM that lost a run learns of it at its next heartbeat


class ConfirmedWatch:
    """Each checkpoint that is called confirmed has to be readable in the store, then and there."""

    def __init__(self, world: World, verdict: Verdict) -> None:
        self._world = world
        self._verdict = verdict
        self._told: set[tuple[str, int]] = set()
        self._early: set[str] = set()

    def look(self, views: list[RunView]) -> None:
        for view in views:
            stored = self._world.stored_run(view.run_id)
            self._verdict.judge_commits(view.run_id, self._new_early(view.run_id, stored))
            for claimed in _claims(self._world.project.run(view.run_id)):
                key = (view.run_id, claimed)
                if key in self._told or any(run == view.run_id for run, _ in self._world.damaged):
                    continue  # what the campaign itself has damaged proves nothing
                self._told.add(key)
                self._verdict.judge_confirmed(view.run_id, claimed, store_check.readable_steps(stored))

    def _new_early(self, run_id: str, stored: StoredRun) -> list[str]:
        """Each is told once; what the campaign itself has damaged was written late by the campaign."""
        if any(run == run_id for run, _ in self._world.damaged):
            return []
        found = {f"{run_id}/{slot}" for slot in store_check.early_commits(stored)} - self._early
        self._early |= found
        return sorted(found)


def after(world: World, verdict: Verdict, reference: Reference, shells: list[workload.Shell]) -> None:
    """All commands have ended, or the round's time is up; everything that was broken is whole again."""
    views = world.runs()
    _judge_processes_of_runs(world, verdict)
    for vm in world.vms():
        if vm.name not in world.wiped:
            world.note_lives(vm.name)
    _judge_commands(world, verdict, views, shells)
    for view in views:
        if view.state == RunState.DONE:
            _judge_run(world, verdict, view, reference)
    ConfirmedWatch(world, verdict).look(views)
    if not verdict.ok:
        world.keep_vms()
    world.down()
    verdict.judge_inbox(half_files(world.project.inbox, _expected(world, views)))


def _judge_processes_of_runs(world: World, verdict: Verdict) -> None:
    """No process of any run may live once all have ended, on whatever VM."""
    deadline = time.monotonic() + _SETTLE_S
    while (left := _run_processes(world)) and time.monotonic() < deadline:
        time.sleep(0.2)
    verdict.judge_left("outlived their run", {pid.pid: processes.command_line(pid.pid) for pid in wait_gone(left, 0.5)})


def _run_processes(world: World) -> list[Pid]:
    found = []
    for pid in world.tagged():
        with contextlib.suppress(OSError):
            block = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            is_stage = any(entry.startswith(names.ENV_RUN_DIR.encode() + b"=") for entry in block)
            if is_stage or "vm_daemons.stage_runner" in processes.command_line(pid):
                found.append(Pid(pid, processes.start_ticks(pid)))
    return found


def _judge_commands(world: World, verdict: Verdict, views: list[RunView], shells: list[workload.Shell]) -> None:
    by_order = [view for view in views if view.stage == Verb.SH]
    seen = []
    for view in views:
        if view.stage == Verb.SH:
            name = shells[by_order.index(view)].name
            marks = _count(world.truth / name)
            seen.append(CommandSeen(view.run_id, Verb.SH, view.state, view.failure_class, marks))
        else:
            seen.append(CommandSeen(view.run_id, Verb.RUN, view.state, f"{view.failure_class} {view.reason}".strip()))
    verdict.judge_commands(seen)
    if len(by_order) != len(shells):
        verdict.commands_lost += len(shells) - len(by_order)
        verdict.why.append(f"{len(shells)} shell commands were queued, {len(by_order)} were taken")


def _judge_run(world: World, verdict: Verdict, view: RunView, reference: Reference) -> None:
    folder = world.project.run(view.run_id)
    for item in names.GROWING_FILES:
        lives = world.lives_of(view.run_id, item, view.attempt)
        copy = (folder / item).read_bytes() if (folder / item).exists() else b""
        if lives:
            verdict.judge_log(f"{view.run_id}/{item}", copy, lives)
    if view.stage == names.PRETRAIN:
        verdict.judge_weights(view.run_id, artifact_digests(folder), reference.pretrain)
    elif view.stage == workload.DICE:
        got = _json(folder / names.RESULTS)
        verdict.judge_weights(view.run_id, {"weights": str(got.get("weights_sha256"))}, reference.dice)


def _expected(world: World, views: list[RunView]) -> dict[str, str]:
    """Files below in/ whose hash their run has told."""
    expected = {}
    for view in views:
        told = _json(world.project.run(view.run_id) / names.RESULTS).get("artifact_sha256")
        if view.state == RunState.DONE and told:
            expected[f"{view.run_id}/{names.ARTIFACTS}/{names.ENCODER_WEIGHTS}"] = str(told)
    return expected


def _claims(folder: Path) -> set[int]:
    """The steps that the laptop shows as confirmed."""
    found = set()
    status = _json(folder / names.STATUS)
    levels = _json(folder / names.CHECKPOINT_LEVELS).get("levels")
    candidates: list[Any] = [status.get("checkpoint")]
    for shown in (status.get("levels"), levels):
        if isinstance(shown, dict):
            candidates.append(shown.get(CheckpointLevel.CONFIRMED))
    for item in candidates:
        if isinstance(item, dict) and item.get("level", "") == CheckpointLevel.CONFIRMED:
            found.add(int(item["step"]))
    return found


def _json(path: Path) -> dict[str, Any]:
    try:
        found = files.read_json(path)
    except OSError:
        return {}
    return found if isinstance(found, dict) else {}


def _count(path: Path) -> int:
    try:
        return len(path.read_text().splitlines())
    except FileNotFoundError:
        return 0
