"""A project whose runs have ended, with their records in in/ as the shipped stages write them; no VM and no torch."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from bridgehead import files, names
from bridgehead.names import RunState
from bridgehead.records import ExitRecord, RunRecord, StageSpec
from export import bundle
from run_control.project import Project
from run_control.registry import place
from run_control.registry.journal import Journal
from stages import cells, judging
from stages.judging import Bootstrap, Criterion, Verdict

GROUPS = np.repeat([9, 10], 40)
PARTS = np.repeat(np.arange(8), 10)
LABELS = {"label": [("PEN", "ABD")[part % 2] for part in PARTS.tolist()]}
QUICK = Bootstrap(0.95, 200)
TRAIN = "finetune-0002-aaaaaa"
GATE = "gate-0003-aaaaaa"


def tiny_bundle(folder: Path, weights_sha256: str) -> Path:
    """A bundle that verifies: y = x × W, its sample and all its records; made with onnx alone, no torch."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    (folder / bundle.SAMPLES).mkdir(parents=True)
    weights = np.arange(6, dtype=np.float32).reshape(3, 2)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["clips", "w"], ["logits"])],
        "tiny",
        [helper.make_tensor_value_info("clips", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 2])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, folder / names.MODEL_ONNX)
    clips = np.eye(3, dtype=np.float32)
    np.savez(folder / bundle.SAMPLES / "clips.npz", clips=clips, expected_logits=clips @ weights)
    model_record = {"file": names.MODEL_ONNX, "sha256": files.sha256_file(folder / names.MODEL_ONNX)}
    records: dict[str, Any] = {
        names.BUNDLE_RECORD: {
            "schema": bundle.SCHEMA,
            "name": "tiny",
            "run_id": "e",
            "model": model_record,
            "graph": {},
        },
        bundle.PREPROCESS: {"window": 3},
        bundle.LABELS: {"labels": ["PEN", "ABD"]},
        bundle.PARITY: {"ok": True},
        bundle.GATE: {"verdict": "pass", "candidate": {"weights_sha256": weights_sha256}},
    }
    for name, record in records.items():
        files.write_json(folder / name, record)
    for name in (bundle.ENV_LOCK, bundle.LICENSE, bundle.NOTICE, bundle.MODEL_CARD):
        (folder / name).write_text(f"# {name}\n")
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [f"{files.sha256_file(path)}  {path.relative_to(folder).as_posix()}\n" for path in found]
    (folder / names.BUNDLE_MANIFEST).write_text("".join(lines))
    return folder


class Lab:
    """Writes run folders. `train` and `judge` are what a finetune and a gate would have left."""

    def __init__(self, project: Project) -> None:
        self.project = project
        project.drive.mkdir(parents=True, exist_ok=True)  # the local VMs' durable store

    def journal(self) -> Journal:
        return place.journal(self.project)

    def train(self, run_id: str = TRAIN, *, seed: int = 0, state: RunState = RunState.DONE, **config: Any) -> str:
        weights = hashlib.sha256(f"weights {seed}".encode()).hexdigest()
        folder = self._run(run_id, names.FINETUNE, {"pretrain": "pretrain-0001-aaaaaa"}, config, state)
        model = folder / names.ARTIFACTS / names.CLASSIFIER_WEIGHTS
        model.parent.mkdir()
        model.write_bytes(f"model {seed}".encode() * 10)
        results = {"weights_sha256": weights, "artifact_sha256": files.sha256_file(model), "accuracy": 0.8}
        files.write_json(folder / names.RESULTS, {**results, "pool": {"fingerprint": "p" * 64}, "config": config})
        return run_id

    def judge(
        self,
        run_id: str = TRAIN,
        *,
        gate_id: str = GATE,
        right: float = 0.9,
        baseline: float = 0.5,
        leaks: bool = False,
        evaluated: str = "e" * 64,
        **more: Any,
    ) -> dict[str, Any]:
        """Accuracies that differ a little from recording to recording."""
        wobble = (PARTS % 3) * 0.01
        sides = [{"accuracy": np.full(len(GROUPS), share) + wobble} for share in (right, baseline)]
        verdict, found = judging.judge(*sides, GROUPS, PARTS, [Criterion("accuracy", min_effect=0.02)], QUICK)
        trained = files.read_json(self.project.run(run_id) / names.RESULTS) or {}
        results = {
            "verdict": str(verdict),
            "why": found[0].why,
            "effect": found[0].effect,
            "interval": [found[0].low, found[0].high],
            "confidence": 0.95,
            "candidate_accuracy": found[0].candidate,
            "baseline_accuracy": found[0].baseline,
            "criteria": [item.to_json() for item in found],
            "cells": {
                who: cells.make(side, GROUPS, PARTS, LABELS)
                for who, side in zip(("candidate", "baseline"), sides, strict=True)
            },
            "candidate": {"run_id": run_id, "weights_sha256": trained.get("weights_sha256")},
            "baseline": {"id": "a probe"},
            "leak_check": {"sides": [{"who": who, "clean": not leaks} for who in ("candidate", "baseline")]},
            "evaluated_sha256": evaluated,
            **more,
        }
        state = RunState.DONE if verdict is Verdict.PASS else RunState.FAILED
        folder = self._run(gate_id, names.GATE, {names.FINETUNE: run_id}, {}, state)
        files.write_json(folder / names.RESULTS, results)
        return results

    def export(self, run_id: str = TRAIN, export_id: str = "export-0004-aaaaaa", *, judged: str = "") -> Path:
        """An export's run folder with a bundle; `judged` are other weights than its own."""
        trained = files.read_json(self.project.run(run_id) / names.RESULTS) or {}
        weights = str(trained.get("weights_sha256"))
        folder = self._run(export_id, names.EXPORT, {names.FINETUNE: run_id}, {}, RunState.DONE)
        files.write_json(folder / names.RESULTS, {"weights_sha256": weights})
        tiny_bundle(folder / names.BUNDLE, judged or weights)
        return folder

    def _run(self, run_id: str, stage: str, inputs: dict[str, str], config: dict[str, Any], state: RunState) -> Path:
        folder = self.project.run(run_id)
        folder.mkdir(parents=True)
        number = int(run_id.split("-")[1])
        spec = StageSpec(stage, f"{names.SHIPPED_COMMAND_PREFIX}{stage}", config=config)
        record = RunRecord(run_id, stage, "watch", "c", 1, "vm", float(number), spec, inputs, "s" * 64, "c" * 64)
        files.write_json(folder / names.RUN_RECORD, record.to_json())
        code = 0 if state is RunState.DONE else names.GATE_FAILED_EXIT_CODE
        ended = ExitRecord(run_id, 1, state, code, started=float(number), ended=number + 60.0)
        files.write_json(folder / names.EXIT, ended.to_json())
        return folder
