"""Which good end is evidence that something helped: of the same run, or of a later one of its stage and config."""

from __future__ import annotations

import sqlite3
from typing import Any

from bridgehead.errors import BridgeheadError
from bridgehead.identity import config_sha256
from run_control import run_spec
from run_control.project import Project
from run_control.views import RunView, ledger_of


def config_of(project: Project, run_id: str) -> str:
    """The hash of the run's whole config; "" for a run without one, and where the ledger can't tell."""
    try:
        with ledger_of(project) as ledger:
            spec = ledger.spec_of(run_id)
    except (BridgeheadError, sqlite3.Error):
        return ""
    return config_sha256(run_spec.freeze(spec.config)) if spec is not None else ""


def counts(project: Project, view: RunView, started: float, incident: dict[str, Any]) -> bool:
    """Whether the good end of `view` says anything about this incident.

    `started`: when its last attempt began, in seconds since 1970; 0: not known. What ran with another config, or had
    begun before the incident, may have ended well for any reason.
    """
    if incident["stage"] != view.stage:
        return False
    if incident["run_id"] == view.run_id:
        return bool(view.attempt >= incident["attempt"])
    if view.seq <= incident.get("seq", 0) or 0 < started < incident["at"]:
        return False
    theirs = incident.get("config_sha256") or config_of(project, incident["run_id"])
    return bool(theirs) and theirs == config_of(project, view.run_id)
