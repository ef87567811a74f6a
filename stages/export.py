"""Stage export: the gated classifier as a ship bundle: ONNX, parity, evidence, samples, and one archive of it all."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridgehead import files, names, paths
from bridgehead.errors import UsageError, VerificationError
from bridgehead.run import Run
from export import archive, bundle, bundle_writer, parity, to_onnx
from stages import bundle_texts, clips_pool, sampling, training
from stages.clips_pool import ClipPool
from stages.config import read_config, require
from stages.entry import run_stage
from stages.judging import Verdict
from stages.model import classifier_from, load_weights

OUTPUTS = ["logits", "embedding"]


@dataclass(frozen=True)
class ExportConfig:
    """[stages.export.config] of bridgehead.toml."""

    name: str = "clips-encoder"
    parity_clips: int = 256  # of the held-out subjects
    sample_clips: int = 16
    seed: int = 0
    threads: int = 1


def main() -> int:
    return run_stage(export_bundle)


def export_bundle(run: Run) -> int:
    config = read_config(ExportConfig, run.config, names.EXPORT)
    _check(config)
    training.prepare(config.seed, config.threads)
    record = load_weights(run.input(names.FINETUNE) / names.ARTIFACTS / names.CLASSIFIER_WEIGHTS, names.FINETUNE)
    gate = passed_gate(run.input(names.GATE), record["weights_sha256"])
    pool = clips_pool.open_pool(clips_pool.data_folder(run), stride=record["stride"])
    held_out = pool.of_subjects(clips_pool.HELD_OUT_SUBJECTS)
    held_out = held_out[sampling.subset(pool.clip_ids(held_out), config.parity_clips, config.seed)]
    classifier = classifier_from(record, "raw")
    run.message("exporting to ONNX")
    model = run.folder / names.MODEL_ONNX
    info = to_onnx.export_onnx(classifier, (clips_pool.WINDOW, len(clips_pool.CHANNELS)), OUTPUTS, model)
    measured = parity.check_parity(classifier, model, pool.read(held_out), info.output_names)
    clips = pool.read(held_out[: config.sample_clips])
    expected = zip(OUTPUTS, parity.reference(classifier, clips), strict=True)
    samples = {to_onnx.INPUT: clips, **{bundle.EXPECTED_PREFIX + name: values for name, values in expected}}
    content = _content(run, config, record, gate, pool)
    bundle_writer.write_bundle(run.bundle_folder, model, info, measured, content, samples)
    model.unlink()
    packed = run.artifact(config.name + archive.SUFFIX)
    archive_sha256 = archive.write_archive(run.bundle_folder, packed)
    report = bundle.verify(packed)  # what was written, read back the way that the laptop will
    results = {
        "bundle": report.to_json(),
        "parity": measured.to_json(),
        "archive": packed.name,
        "archive_sha256": archive_sha256,
        "gate_run_id": gate["run_id"],
        "weights_sha256": record["weights_sha256"],
    }
    run.results(results)
    run.message(f"export done: {report.files} files, largest difference to torch {measured.max_abs:.1e}")
    return 0


def passed_gate(folder: Path, weights_sha256: str) -> dict[str, Any]:
    """The gate's results. Raises VerificationError unless it passed, and passed these very weights."""
    gate = files.read_json(folder / names.RESULTS)
    if not isinstance(gate, dict) or "verdict" not in gate:
        raise VerificationError("the gate left no verdict", hint=f"queue run:{names.GATE} first")
    if gate["verdict"] != Verdict.PASS:
        raise VerificationError(f"the gate's verdict is {gate['verdict']!r}: nothing is exported")
    if gate["candidate"]["weights_sha256"] != weights_sha256:
        raise VerificationError(
            f"the gate judged other weights, those of {gate['candidate']['run_id']}",
            hint=f"queue run:{names.GATE} again, after {names.FINETUNE}",
        )
    return gate


def _content(
    run: Run, config: ExportConfig, record: dict[str, Any], gate: dict[str, Any], pool: ClipPool
) -> bundle_writer.BundleContent:
    origin = {
        names.PRETRAIN: {"run_id": record["encoder_run_id"], "weights_sha256": record["encoder_sha256"]},
        names.FINETUNE: {"run_id": record["run_id"], "weights_sha256": record["weights_sha256"]},
        names.GATE: {"run_id": gate["run_id"]},
        "pool": clips_pool.describe(pool),
        "project": run.record.project,
        "ship_sha256": run.record.ship_sha256,
        "payload_sha256": run.record.payload_sha256,
    }
    preprocess = {
        "window": clips_pool.WINDOW,
        "stride": pool.stride,
        "rate_hz": clips_pool.RATE_HZ,
        "channels": list(clips_pool.CHANNELS),
        "units": clips_pool.UNITS,
        "mean": pool.mean,
        "std": pool.std,
        "normalisation": "inside the graph: feed raw values",
        "resampling": "none: record at rate_hz or resample to it first",
        "padding": "none: clips shorter than window are refused",
    }
    return bundle_writer.BundleContent(
        name=config.name,
        run_id=run.run_id,
        origin=origin,
        preprocess=preprocess,
        labels=record["labels"],
        gate=gate,
        license=bundle_texts.LICENSE,
        notice=bundle_texts.notice(),
        model_card=bundle_texts.model_card(config.name, gate, origin),
    )


def _check(config: ExportConfig) -> None:
    try:
        paths.check_relative(config.name + archive.SUFFIX)
    except UsageError as error:
        raise UsageError(f"[stages.{names.EXPORT}.config] name: {error.message}", hint=error.hint) from None
    require("/" not in config.name, names.EXPORT, "name must be a single file name")
    require(1 <= config.sample_clips <= config.parity_clips, names.EXPORT, "sample_clips: 1 to parity_clips")


if __name__ == "__main__":
    sys.exit(main())
