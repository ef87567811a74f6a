"""A registered model for other tools: a folder as the Hugging Face Hub lays one out, or a version in MLflow's registry.

Both take the registry's own objects, so they work when the run's folder is long gone. Neither talks to the network by
itself; MLflow does when its URI says so.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from bridgehead import names
from bridgehead.errors import UsageError, VerificationError
from run_control.registry.catalog import ORDER, SHORT, Model, State
from run_control.registry.journal import Journal

HF, MLFLOW = "hf", "mlflow"
KINDS = (HF, MLFLOW)
_CARD = "README.md"
_EXPERIMENT = "bridgehead"
_MODEL_TAG = "bridgehead.model"


def export(journal: Journal, model: Model, kind: str, where: str) -> dict[str, Any]:
    """Raises UsageError for a model that is not deployable, or when an extra is missing."""
    if ORDER.index(model.state) < ORDER.index(State.DEPLOYABLE):
        raise UsageError(
            f"it is {model.state}; only what is {State.DEPLOYABLE} leaves the registry",
            hint=f"bridgehead promote {model.digest[:SHORT]} --to {State.DEPLOYABLE} --key FILE.pub",
        )
    if kind == HF:
        return _to_folder(journal, model, Path(where))
    if kind == MLFLOW:
        return _to_mlflow(journal, model, where)
    raise UsageError(f"no export of kind {kind!r}", hint=" or ".join(KINDS))


def _bundle(journal: Journal, model: Model, folder: Path) -> None:
    for path, digest in model.evidence[State.DEPLOYABLE]["files"].items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        journal.fetch(digest, target)


def _to_folder(journal: Journal, model: Model, folder: Path) -> dict[str, Any]:
    """config.json, preprocessor_config.json, onnx/model.onnx, README.md with its metadata block; the rest in bundle/.

    Source of the layout: huggingface.co/docs/hub/model-cards, and the onnx/ folder that transformers.js reads.
    """
    from export import bundle as shipped

    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is there already and not empty", hint="name a new folder")
    with tempfile.TemporaryDirectory(prefix="bridgehead-export-") as temp:
        made, bundle = Path(temp) / "made", Path(temp) / "made" / names.BUNDLE
        bundle.mkdir(parents=True)
        _bundle(journal, model, bundle)
        (made / "onnx").mkdir()
        shutil.copyfile(bundle / names.MODEL_ONNX, made / "onnx" / names.MODEL_ONNX)
        record, labels = _json(bundle / names.BUNDLE_RECORD), _json(bundle / shipped.LABELS)["labels"]
        config = {
            "model_type": "custom",
            "architectures": [record["name"]],
            "id2label": {str(number): label for number, label in enumerate(labels)},
            "label2id": {label: number for number, label in enumerate(labels)},
            "bridgehead": {"model": model.digest, "run_id": model.run_id, "graph": record["graph"]},
        }
        (made / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        shutil.copyfile(bundle / shipped.PREPROCESS, made / "preprocessor_config.json")
        card = (bundle / shipped.MODEL_CARD).read_text(encoding="utf-8")
        (made / _CARD).write_text(_front_matter(model) + card, encoding="utf-8")
        shutil.copyfile(bundle / shipped.LICENSE, made / shipped.LICENSE)
        written = sorted(path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file())
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copytree(made, folder, dirs_exist_ok=True)
    return {"kind": HF, "where": str(folder), "files": written}


def _front_matter(model: Model) -> str:
    gate = model.evidence[State.CANDIDATE]
    lines = ["---", "library_name: onnx", "license: mit", "tags:", "- bridgehead", "model-index:"]
    lines += [f"- name: {json.dumps(model.name)}", "  results:"]
    for item in gate.get("criteria", []):
        lines += [
            "  - task: {type: other}",
            "    dataset: {type: held-out, name: held-out}",
            "    metrics:",
            f"    - {{type: {json.dumps(str(item.get('metric')))}, value: {json.dumps(item.get('candidate'))}}}",
        ]
    return "\n".join([*lines, "---", "", ""])


def _to_mlflow(journal: Journal, model: Model, uri: str) -> dict[str, Any]:
    """A version of the registered model of its name, with the bundle; one that is there already is used again."""
    _refuse_without_folder(uri)
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        import mlflow
    except ImportError:
        raise UsageError("this needs the package mlflow", hint="pip install 'bridgehead[mlflow]'") from None
    try:
        client = mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)
        version = _known_version(client, model) or _new_version(client, journal, model, uri)
        for alias in model.aliases:
            client.set_registered_model_alias(model.name, alias, version)
    except mlflow.exceptions.MlflowException as error:
        raise VerificationError(f"mlflow refused: {str(error).splitlines()[0][:300]}", hint=f"look at {uri}") from None
    return {"kind": MLFLOW, "where": uri, "name": model.name, "version": version}


def _refuse_without_folder(uri: str) -> None:
    """MLflow would try for minutes to make its database there."""
    folder = _folder_of(uri)
    if folder is not None and not folder.is_dir():
        raise UsageError(f"there is no folder {folder} for the database", hint="make it, or name another one")


def _folder_of(uri: str) -> Path | None:
    """Where the database of a sqlite URI lies; None for every other one."""
    kind, _, path = uri.partition(":///")
    return Path(path).absolute().parent if kind == "sqlite" and path else None


def _known_version(client: Any, model: Model) -> str:
    """The version of this very model; "" when there is none."""
    for version in client.search_model_versions(f"name='{model.name}'"):
        if version.tags.get(_MODEL_TAG) == model.digest:
            return str(version.version)
    return ""


def _new_version(client: Any, journal: Journal, model: Model, uri: str) -> str:
    import mlflow

    with tempfile.TemporaryDirectory(prefix="bridgehead-export-") as temp:
        _bundle(journal, model, Path(temp))
        run = client.create_run(_experiment(client, uri), run_name=model.run_id)
        client.log_artifacts(run.info.run_id, temp, names.BUNDLE)
    for item in model.evidence[State.CANDIDATE].get("criteria", []):
        if isinstance(item.get("candidate"), float):
            client.log_metric(run.info.run_id, str(item["metric"]), item["candidate"])
    client.set_terminated(run.info.run_id)
    tags = {_MODEL_TAG: model.digest, "bridgehead.run": model.run_id, "bridgehead.state": str(model.state)}
    try:
        client.create_registered_model(model.name)
    except mlflow.exceptions.MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    source = f"{run.info.artifact_uri}/{names.BUNDLE}"
    return str(client.create_model_version(model.name, source, run.info.run_id, tags=tags).version)


def _experiment(client: Any, uri: str) -> str:
    """Its files lie beside a database on this machine, and not wherever the command happens to run."""
    found = client.get_experiment_by_name(_EXPERIMENT)
    folder = _folder_of(uri)
    files_at = (folder / "mlflow-artifacts").as_uri() if folder is not None else None
    return str(found.experiment_id if found else client.create_experiment(_EXPERIMENT, files_at))


def _json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found
