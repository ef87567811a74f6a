"""Where a model or a run comes from: run after run, with data, code and what each was asked to do."""

from __future__ import annotations

from typing import Any

from bridgehead import files, names
from bridgehead.errors import NotFoundError, UsageError
from bridgehead.records import RunRecord
from run_control.project import Project
from run_control.registry import evidence
from run_control.registry.catalog import Catalog

DEEPEST = 50


def of(project: Project, known: Catalog, text: str) -> dict[str, Any]:
    """The tree of parents, with the model at its top when `text` names one. Raises NotFoundError."""
    try:
        model = known.find(text)
    except NotFoundError:
        return {"model": "", "state": "", "run": _run(project, evidence.find_run(project, text), ())}
    tree = _run(project, model.run_id, ())
    if not tree["known"]:  # the run's own records are gone; the registry kept where it comes from
        parents = {stage: _run(project, run_id, (model.run_id,)) for stage, run_id in model.origin["parents"].items()}
        tree.update({key: model.origin.get(key) for key in ("stage", "config", "code", "data")}, parents=parents)
    return {"model": model.digest, "state": str(model.state), "run": tree}


def lines(tree: dict[str, Any]) -> list[str]:
    """The tree as a person reads it."""
    top = [f"model {tree['model'][:12]} ({tree['state']})"] if tree["model"] else []
    return [*top, *_shown(tree["run"], 1 if top else 0)]


def _run(project: Project, run_id: str, above: tuple[str, ...]) -> dict[str, Any]:
    record = _record(project, run_id)
    results = files.read_json(project.run(run_id) / names.RESULTS)
    results = results if isinstance(results, dict) else {}
    parents: dict[str, Any] = {}
    if record is not None:
        for stage, parent in record.inputs.items():
            if parent in (*above, run_id):
                raise UsageError(f"{parent} is its own ancestor", hint=f"{names.RUN_RECORD} of {run_id} was changed")
            if len(above) < DEEPEST:
                parents[stage] = _run(project, parent, (*above, run_id))
    origin = evidence.origin_of(project, run_id, results)
    return {
        "run_id": run_id,
        "known": record is not None,
        **{key: origin[key] for key in ("stage", "config", "code", "data", "weights_sha256")},
        "verdict": results.get("verdict", ""),
        "parents": parents,
    }


def _record(project: Project, run_id: str) -> RunRecord | None:
    try:
        return RunRecord.from_json(files.read_json(project.run(run_id) / names.RUN_RECORD))
    except UsageError:
        return None


def _shown(run: dict[str, Any], depth: int) -> list[str]:
    pad = "  " * depth
    if not run["known"]:
        found = [f"{pad}{run['run_id']}: its records are not on this laptop"]
    else:
        verdict = f", verdict {run['verdict']}" if run["verdict"] else ""
        found = [f"{pad}{run['run_id']}{verdict}"]
    told = {
        "weights": str(run.get("weights_sha256") or "")[:12],
        "data": str((run.get("data") or {}).get("pool_fingerprint") or "")[:12],
        "code": str((run.get("code") or {}).get("payload_sha256") or "")[:12],
        "ship": str((run.get("code") or {}).get("ship_sha256") or "")[:12],
        "config": " ".join(f"{key}={value}" for key, value in (run.get("config") or {}).items()),
    }
    found += [f"{pad}  {key}: {value}" for key, value in told.items() if value]
    for stage, parent in run["parents"].items():
        found += [f"{pad}  after {stage}:", *_shown(parent, depth + 2)]
    return found
