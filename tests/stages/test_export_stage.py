"""The export stage end to end: what arrives can be verified, and holds all that it should."""

from __future__ import annotations

import getpass
import json
import socket

from bridgehead import names
from export import bundle
from stage_support import ROOT, Workshop, results


def test_the_bundle_and_its_archive_both_verify(pipeline: Workshop) -> None:
    folder = pipeline.inputs[names.EXPORT]
    outcome = results(folder)
    report = bundle.verify(folder)
    assert report.ok and report.samples == 5 and report.gate == "pass" and report.name == "tiny"
    assert bundle.verify(folder / names.ARTIFACTS / outcome["archive"]).to_json() == report.to_json()


def test_it_names_every_run_and_weight_that_it_comes_from(pipeline: Workshop) -> None:
    folder = pipeline.inputs[names.EXPORT] / names.BUNDLE
    origin = json.loads((folder / names.BUNDLE_RECORD).read_text())["origin"]
    for stage in (names.PRETRAIN, names.FINETUNE, names.GATE):
        assert origin[stage]["run_id"] == results(pipeline.inputs[stage])["run_id"]
    assert origin[names.PRETRAIN]["weights_sha256"] == results(pipeline.inputs[names.PRETRAIN])["weights_sha256"]
    assert origin["pool"]["fingerprint"] == pipeline.pool.fingerprint


def test_the_gates_evidence_travels_along(pipeline: Workshop) -> None:
    folder = pipeline.inputs[names.EXPORT] / names.BUNDLE
    assert json.loads((folder / bundle.GATE).read_text()) == results(pipeline.inputs[names.GATE])


def test_the_data_licence_is_in_the_notice(pipeline: Workshop) -> None:
    text = (pipeline.inputs[names.EXPORT] / names.BUNDLE / bundle.NOTICE).read_text()
    assert "Burns" in text and "Redistribution and use" in text


def test_no_file_tells_where_or_by_whom_it_was_built(pipeline: Workshop) -> None:
    folder = pipeline.inputs[names.EXPORT] / names.BUNDLE
    traces = [str(ROOT), str(pipeline.home), "/tmp/", "/home/", "/root/", "site-packages", socket.gethostname()]
    user = getpass.getuser()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        found = [trace for trace in [*traces, f"/{user}/"] if trace.encode() in path.read_bytes()]
        assert not found, f"{path.name} holds {found}"


def test_nothing_but_the_bundle_and_the_archive_is_left_behind(pipeline: Workshop) -> None:
    folder = pipeline.inputs[names.EXPORT]
    left = {path.name for path in folder.iterdir()}
    assert left == {names.RUN_RECORD, names.PROGRESS, names.RESULTS, names.ARTIFACTS, names.BUNDLE}
