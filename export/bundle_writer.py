"""Writes the bundle folder: the model, what it needs to be used rightly, and the evidence that it may be shipped."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import secrets
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bridgehead import files, names
from export import bundle
from export.parity import Parity
from export.to_onnx import OnnxInfo

MIN_ONNXRUNTIME = "1.22"
_SAMPLES_FILE = "clips.npz"


@dataclass(frozen=True)
class BundleContent:
    """All that goes in beside the model."""

    name: str
    run_id: str
    origin: Mapping[str, Any]  # runs, weights, pool and code that it comes from
    preprocess: Mapping[str, Any]
    labels: Sequence[str]
    gate: Mapping[str, Any]
    license: str
    notice: str
    model_card: str


def write_bundle(
    folder: Path,
    model: Path,
    info: OnnxInfo,
    parity: Parity,
    content: BundleContent,
    samples: Mapping[str, NDArray[np.float32]],
) -> None:
    """Write everything into a temp folder, the manifest last, and put that in the place of `folder`."""
    target, folder = folder, folder.with_name(f"{files.TEMP_PREFIX}{secrets.token_hex(8)}")
    (folder / bundle.SAMPLES).mkdir(parents=True)
    shutil.copyfile(model, folder / names.MODEL_ONNX)
    np.savez(folder / bundle.SAMPLES / _SAMPLES_FILE, allow_pickle=False, **samples)
    files.write_json(folder / names.BUNDLE_RECORD, _record(info, content, folder / names.MODEL_ONNX))
    files.write_json(folder / bundle.PREPROCESS, dict(content.preprocess))
    files.write_json(folder / bundle.LABELS, {"labels": list(content.labels)})
    tolerance = {"verify_atol": bundle.ATOL, "verify_rtol": bundle.RTOL}
    files.write_json(folder / bundle.PARITY, {**parity.to_json(), **tolerance})
    files.write_json(folder / bundle.GATE, dict(content.gate))
    for name, text in (
        (bundle.ENV_LOCK, environment_lock()),
        (bundle.LICENSE, content.license),
        (bundle.NOTICE, content.notice),
        (bundle.MODEL_CARD, content.model_card),
    ):
        files.write_atomic(folder / name, text.encode())
    write_manifest(folder)
    shutil.rmtree(target, ignore_errors=True)
    os.replace(folder, target)


def write_manifest(folder: Path) -> None:
    """One line a file, as sha256sum writes and checks it."""
    manifest = folder / names.BUNDLE_MANIFEST
    listed = sorted(path for path in folder.rglob("*") if path.is_file() and path != manifest)
    lines = [f"{files.sha256_file(path)}  {path.relative_to(folder).as_posix()}\n" for path in listed]
    files.write_atomic(manifest, "".join(lines).encode())


def environment_lock() -> str:
    """Versions of all installed packages, and the platform. No path and no user of the building machine."""
    found = {(item.metadata["Name"] or "").lower(): item.version for item in importlib.metadata.distributions()}
    lines = [
        f"# python {platform.python_version()} on {platform.system()} {platform.machine()}",
        f"# numpy CPU features: {_cpu_features()}",
        *(f"{name}=={version}" for name, version in sorted(found.items()) if name),
    ]
    return "\n".join(lines) + "\n"


def _cpu_features() -> str:
    umath: Any = sys.modules.get("numpy._core._multiarray_umath")
    found = getattr(umath, "__cpu_features__", {})
    return " ".join(sorted(name for name, present in found.items() if present)) or "unknown"


def _record(info: OnnxInfo, content: BundleContent, model: Path) -> dict[str, Any]:
    return {
        "schema": bundle.SCHEMA,
        "name": content.name,
        "run_id": content.run_id,
        "model": {"file": names.MODEL_ONNX, "size": model.stat().st_size, "sha256": files.sha256_file(model)},
        "graph": {**asdict(info), "dtype": "float32", "dynamic_axes": {info.input_name: {"0": info.input_shape[0]}}},
        "min_onnxruntime": MIN_ONNXRUNTIME,
        "origin": dict(content.origin),
    }
