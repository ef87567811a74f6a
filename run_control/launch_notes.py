"""What the plan of a run says besides its own checks: memos that apply, and VMs that could not do what it leads to."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

from bridge.ledger_rows import VmState
from bridgehead.errors import BridgeheadError
from run_control import memo_scope, project_file, views
from run_control.checks import WARN, Check
from run_control.plan import Plan
from run_control.project import Project


def with_notes(project: Project, made: Plan) -> Plan:
    """The plan as a person is shown it; a warning never changes whether it is refused. Raises ProjectError."""
    memos = memo_scope.checks(project, project_file.load_whole(project.root), made)
    return dataclasses.replace(made, checks=[*made.checks, *memos, *_exports(project, made)])


def export_trouble(vm: Mapping[str, Any]) -> tuple[str, str]:
    """(what, next step) of the trial of an export that failed on this VM; ("", "") where none has."""
    told = vm["heartbeat"].get("export_trial")
    if not isinstance(told, dict) or not isinstance(told.get("what"), str):
        return "", ""
    return told["what"], str(told.get("hint") or "")


def _exports(project: Project, made: Plan) -> Iterator[Check]:
    """A warning for each living VM on which the export after this run, or this export, would fail."""
    if not made.exports:
        return
    try:
        vms = views.vms(project)
    except (BridgeheadError, sqlite3.Error):  # a ledger that can't be read is told by all else
        return
    for vm in vms:
        what, hint = export_trouble(vm)
        if what and vm["state"] == VmState.LIVE and not vm.get("released"):
            yield Check("export", WARN, f"{vm['vm_id']} can't export: {what}", hint)
