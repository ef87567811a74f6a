"""What lets a model climb, read from the records of its runs: gate, benchmark, bundle and target.

The records are those of any project that writes them as the shipped stages do:
`results.json` of the run that made the model: `weights_sha256`, and its files in artifacts/;
`results.json` of a gate: `verdict`, `candidate` (run_id, weights_sha256), `leak_check.sides`, `criteria`, `cells`;
`results.json` of an export: `weights_sha256`, and bundle/.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from bridgehead import files, names
from bridgehead.errors import NotFoundError, UsageError, VerificationError
from bridgehead.names import RunState
from bridgehead.queue_lines import nearest
from bridgehead.records import RunRecord
from run_control import views
from run_control.project import Project

PASS = "pass"
_CONFIDENCE, _RESAMPLES = 0.95, 4000


def artifacts_of(folder: Path) -> list[dict[str, Any]]:
    """Path, size and SHA-256 of every file that a run left in artifacts/, in order of their paths."""
    root = folder / names.ARTIFACTS
    found = sorted(path for path in root.rglob("*") if files.plain_stat(path) is not None) if root.is_dir() else []
    return [
        {
            "path": path.relative_to(root).as_posix(),
            "size": path.stat().st_size,
            "sha256": files.sha256_file(path),
        }
        for path in found
    ]


def digest_of(artifacts: list[dict[str, Any]]) -> str:
    """The model's own name: the SHA-256 of its files' paths and contents."""
    return hashlib.sha256(files.canonical_json({item["path"]: item["sha256"] for item in artifacts})).hexdigest()


def made_by(project: Project, text: str) -> tuple[str, dict[str, Any]]:
    """Id and results of a finished run. Raises NotFoundError, UsageError when it has not ended well."""
    run_id = find_run(project, text)
    folder = project.run(run_id)
    ended = files.read_json(folder / names.EXIT) or {}
    if ended.get("state") != RunState.DONE:
        raise UsageError(
            f"{run_id} has not ended well: {ended.get('state') or 'no ' + names.EXIT}", hint=f"bridgehead wait {run_id}"
        )
    return run_id, results_of(folder)


def find_run(project: Project, text: str) -> str:
    """The id of the run that `text` names: an id or its beginning, a stage (its newest run), also of another laptop's.

    Raises NotFoundError with the nearest one, UsageError when several runs begin so.
    """
    folder = project.run(text)
    if text and any((folder / name).is_file() for name in (names.RESULTS, names.RUN_RECORD)):
        return text
    try:
        return views.run(project, text).run_id
    except NotFoundError:
        there = sorted(path.name for path in project.inbox.iterdir()) if project.inbox.is_dir() else []
    alike = [name for name in there if text and name.startswith(text)]
    if len(alike) > 1:
        raise UsageError(f"{len(alike)} runs begin with {text!r}", hint=f"say which: {', '.join(alike[-5:])}")
    if not alike:
        guess = f"{nearest(text, there)} " if there else ""
        raise NotFoundError(
            f"neither a model nor a run: {text[:80]!r}",
            hint=f"{guess}bridgehead models and bridgehead status list them",
        )
    return alike[0]


def results_of(folder: Path) -> dict[str, Any]:
    """Raises NotFoundError when the run left none that can be read."""
    found = files.read_json(folder / names.RESULTS)
    if not isinstance(found, dict):
        raise NotFoundError(f"{folder.name} left no {names.RESULTS} here", hint=f"bridgehead wait {folder.name}")
    return found


def origin_of(project: Project, run_id: str, results: dict[str, Any]) -> dict[str, Any]:
    """Where it comes from: run, parents, data and code, as far as the records tell."""
    record = _run_record(project, run_id)
    pool = results.get("pool") if isinstance(results.get("pool"), dict) else {}
    return {
        "run_id": run_id,
        "stage": record.stage if record else "",
        "parents": dict(record.inputs) if record else {},
        "config": dict(record.spec.config) if record else {},
        "command": record.spec.command if record else "",
        "code": {"ship_sha256": record.ship_sha256, "payload_sha256": record.payload_sha256} if record else {},
        "data": {"pool_fingerprint": (pool or {}).get("fingerprint", ""), "labelled": results.get("clips_used")},
        "weights_sha256": str(results.get("weights_sha256", "")),
    }


def _run_record(project: Project, run_id: str) -> RunRecord | None:
    try:
        return RunRecord.from_json(files.read_json(project.run(run_id) / names.RUN_RECORD))
    except UsageError:
        return None


# --- the gate -----------------------------------------------------------------------------------------------


def gate_of(project: Project, run_id: str, weights_sha256: str) -> tuple[str, dict[str, Any]] | None:
    """Id and results of the newest gate that judged these very weights; None when none has."""
    found: list[tuple[float, str, dict[str, Any]]] = []
    for path in project.inbox.glob(f"*/{names.RESULTS}") if project.inbox.is_dir() else ():
        results = files.read_json(path)
        if not isinstance(results, dict) or "verdict" not in results or not isinstance(results.get("candidate"), dict):
            continue
        candidate = results["candidate"]
        if candidate.get("run_id") == run_id and candidate.get("weights_sha256") == weights_sha256:
            found.append((_ended(path.parent), path.parent.name, results))
    if not found:
        return None
    _, gate_id, newest = max(found, key=lambda item: item[:2])
    return gate_id, newest


def _ended(folder: Path) -> float:
    record = files.read_json(folder / names.EXIT)
    ended = record.get("ended") if isinstance(record, dict) else None
    return float(ended) if isinstance(ended, int | float) else 0.0


def passed(gate: tuple[str, dict[str, Any]] | None, run_id: str) -> dict[str, Any]:
    """What the registry keeps of a gate that passed. Raises VerificationError for any other verdict, and for leaks."""
    if gate is None:
        raise VerificationError(
            f"no gate has judged {run_id}, and the gate is the registry's only door",
            hint=f"bridgehead run {names.GATE} --wait",
        )
    gate_id, results = gate
    if results["verdict"] != PASS:
        why = "; ".join(str(line) for line in results.get("why", [])[:2])
        raise VerificationError(
            f"{gate_id} says {results['verdict']!r} of {run_id}" + (f": {why}" if why else ""),
            hint="a model that did not pass is not registered",
        )
    sides = {side.get("who"): side for side in (results.get("leak_check") or {}).get("sides", [])}
    for who in ("candidate", "baseline"):
        if sides.get(who, {}).get("clean") is not True:
            raise VerificationError(
                f"{gate_id} shows no clean leakage check of the {who}", hint=f"queue run:{names.GATE} again"
            )
    shown = ("verdict", "why", "effect", "interval", "confidence", "baseline", "evaluated_sha256", "leak_check")
    return {
        "gate_run_id": gate_id,
        **{name: results.get(name) for name in shown},
        "criteria": [_brief(item) for item in results.get("criteria", [])],
    }


def _brief(criterion: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in criterion.items() if name != "by_group"}


# --- the benchmark ------------------------------------------------------------------------------------------


def benchmark(mine: dict[str, Any], champion: dict[str, Any] | None, champion_id: str) -> dict[str, Any]:
    """Slice by slice against the champion, from what both gates left; without one, against the baseline.

    Raises VerificationError when the two were not judged on the same items by the same metric.
    """
    from stages import cells
    from stages.judging import Bootstrap, Criterion, Direction

    asked = _first_criterion(mine)
    criterion = Criterion(str(asked["metric"]), Direction(str(asked.get("direction", "higher"))))
    if champion is None:
        other, against = mine["cells"]["baseline"], "baseline"
    else:
        if champion.get("evaluated_sha256") != mine.get("evaluated_sha256"):
            raise VerificationError(
                "it and the champion were judged on different items: the table would compare nothing",
                hint=f"run the {names.GATE} of both with the same config, or --without-champion WHY",
            )
        other, against = champion["cells"]["candidate"], champion_id
    try:
        rows = cells.regressions(
            mine["cells"]["candidate"], other, criterion, Bootstrap(_CONFIDENCE, _RESAMPLES, seed=0)
        )
    except (UsageError, KeyError, TypeError) as error:
        why = error.message if isinstance(error, UsageError) else "a gate's record lacks its cells"
        raise VerificationError(f"no table against the {'champion' if champion else 'baseline'}: {why}") from None
    worse = [row["slice"] for row in rows if row["word"] == "worse"]
    return {
        "against": against,
        "metric": criterion.metric,
        "confidence": _CONFIDENCE,
        "evaluated_sha256": mine.get("evaluated_sha256"),
        "overall": rows[0]["word"],
        "worse": worse,
        "rows": rows,
    }


def _first_criterion(results: dict[str, Any]) -> dict[str, Any]:
    found = results.get("criteria") or [{}]
    asked = found[0].get("criterion") if isinstance(found[0], dict) else None
    if not isinstance(asked, dict) or "cells" not in results:
        raise VerificationError("the gate's record is of an older kind, without cells", hint="queue run:gate again")
    return asked


# --- the bundle ---------------------------------------------------------------------------------------------


def bundle_of(project: Project, weights_sha256: str) -> Path:
    """The folder of the newest export of these weights. Raises NotFoundError."""
    found = []
    for path in project.inbox.glob(f"*/{names.BUNDLE}/{names.BUNDLE_MANIFEST}") if project.inbox.is_dir() else ():
        results = files.read_json(path.parent.parent / names.RESULTS)
        if isinstance(results, dict) and results.get("weights_sha256") == weights_sha256:
            found.append((_ended(path.parent.parent), path.parent.parent))
    if not found:
        raise NotFoundError(f"no bundle of it is in {names.IN_FOLDER}/", hint=f"bridgehead run {names.EXPORT} --wait")
    return max(found)[1]


def deployable(folder: Path, weights_sha256: str, public_key: Path) -> dict[str, Any]:
    """Parity and signature, checked here and now. Raises VerificationError."""
    from export import bundle

    report = bundle.verify(folder, public_key)
    with bundle.open_bundle(folder) as opened:
        judged = (opened.record(bundle.GATE).get("candidate") or {}).get("weights_sha256")
    if judged != weights_sha256:
        raise VerificationError(f"the bundle in {folder.name} is of other weights than the gate judged")
    return {
        "export_run_id": folder.name,
        "manifest_sha256": report.manifest_sha256,
        "parity_max_abs": report.parity_max_abs,
        "samples": report.samples,
        "signed_by": report.signed_by,
        "signature": report.signature,
    }
