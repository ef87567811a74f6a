"""Verifying a bundle: a good one passes, and each way of being bad is told."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bridgehead import files, names
from bridgehead.errors import NotFoundError, VerificationError
from export import archive, bundle, bundle_writer

ROOT = Path(__file__).parents[2]


def test_a_good_bundle_verifies(good: Path) -> None:
    report = bundle.verify(good)
    assert report.ok and (report.name, report.samples, report.gate) == ("small", 4, "pass")
    assert report.parity_max_abs < 1e-5 and report.files == 11
    assert json.loads(json.dumps(report.to_json()))["ok"] is True


def test_it_is_found_in_a_run_folder_and_in_an_archive(good: Path, tmp_path: Path) -> None:
    archive.write_archive(good, tmp_path / "small.tar")
    told = [bundle.verify(path).manifest_sha256 for path in (good, good.parent, tmp_path / "small.tar")]
    assert len(set(told)) == 1


def test_it_needs_neither_torch_nor_onnx(good: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\n"
        "for name in ('torch', 'onnx', 'onnxscript'): sys.modules[name] = None\n"
        "from export import bundle\nprint(bundle.verify(Path(sys.argv[1])).ok)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(good)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "True", done.stderr


def test_the_manifest_is_one_that_sha256sum_checks(good: Path) -> None:
    command = ["sha256sum", "--check", "--strict", names.BUNDLE_MANIFEST]
    done = subprocess.run(command, cwd=good, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def _flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    path.write_bytes(raw)


def _zero_block(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[1000:1100] = bytes(100)
    path.write_bytes(raw)


def _link(folder: Path) -> None:
    (folder / bundle.NOTICE).unlink()
    (folder / bundle.NOTICE).symlink_to(folder / bundle.LICENSE)


SPOILERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped byte": (lambda folder: _flip(folder / names.MODEL_ONNX), "model.onnx has another hash"),
    "a zeroed block": (lambda folder: _zero_block(folder / names.MODEL_ONNX), "model.onnx has another hash"),
    "a cut file": (
        lambda folder: (folder / bundle.GATE).write_bytes((folder / bundle.GATE).read_bytes()[:-5]),
        "gate.json has another hash",
    ),
    "an empty file": (lambda folder: (folder / bundle.LICENSE).write_bytes(b""), "LICENSE has another hash"),
    "a missing file": (lambda folder: (folder / bundle.PREPROCESS).unlink(), "preprocess.json is missing"),
    "an extra file": (lambda folder: (folder / "extra.so").write_bytes(b"x"), "extra.so is not in the manifest"),
    "a hidden extra file": (
        lambda folder: (folder / bundle.SAMPLES / ".x").write_bytes(b"x"), "samples/.x is not in the manifest"
    ),
    "a link": (_link, "NOTICE is no plain file"),
    "no manifest": (lambda folder: (folder / names.BUNDLE_MANIFEST).unlink(), "this is no bundle"),
    "a cut manifest": (
        lambda folder: (folder / names.BUNDLE_MANIFEST).write_text("0123  LICENSE\n"), "line 1, can't be read"
    ),
    "a manifest that leaves its folder": (
        lambda folder: (folder / names.BUNDLE_MANIFEST).write_text("0" * 64 + "  ../x\n"), "line 1"
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", SPOILERS)
def test_a_spoilt_bundle_is_refused_and_says_why(good: Path, how: str) -> None:
    spoil, said = SPOILERS[how]
    spoil(good)
    with pytest.raises(VerificationError, match=said):
        bundle.verify(good)


def _rewrite(folder: Path, name: str, **values: Any) -> None:
    record = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps({**record, **values}))


def _change_sample(folder: Path, **values: np.ndarray) -> None:
    path = next((folder / bundle.SAMPLES).iterdir())
    with np.load(path) as loaded:
        arrays = dict(loaded)
    np.savez(path, **{**arrays, **values})


def _huge_shape(folder: Path, count: str) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({count},), }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    packed = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with zipfile.ZipFile(next((folder / bundle.SAMPLES).iterdir()), "w") as archive_of_arrays:
        archive_of_arrays.writestr("clips.npy", packed)


def _no_model(folder: Path) -> None:
    (folder / names.MODEL_ONNX).write_bytes(b"hello")
    _rewrite(folder, names.BUNDLE_RECORD, model={"sha256": files.sha256_file(folder / names.MODEL_ONNX)})


# Whoever can rewrite the manifest too gets past the hashes: then it is the content that has to hold.
INSIDE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a model of another run": (lambda folder: _flip(folder / names.MODEL_ONNX), "not the model that bundle.json names"),
    "no model at all": (lambda folder: _no_model(folder), "can't load model.onnx"),
    "other outputs": (
        lambda folder: _change_sample(folder, expected_logits=np.zeros((4, 4), np.float32)), "differs from the expected"
    ),
    "outputs of another shape": (
        lambda folder: _change_sample(folder, expected_logits=np.zeros((4, 5), np.float32)), "has shape"
    ),
    "inputs that do not fit": (
        lambda folder: _change_sample(folder, clips=np.zeros((4, 21), np.float32)), "does not run on"
    ),
    "samples that are a pickle": (
        lambda folder: _change_sample(folder, clips=np.array([{}], dtype=object)), "can't be read"
    ),
    "outputs that are words": (
        lambda folder: _change_sample(folder, expected_logits=np.array(["x"] * 4)), "no array of real numbers"
    ),
    "outputs that are complex": (
        lambda folder: _change_sample(folder, expected_logits=np.zeros((4, 4), np.complex64)), "no array of real"
    ),
    "a shape larger than any memory": (lambda folder: _huge_shape(folder, "9" * 14), "can't be read"),
    "a shape of thirty digits": (lambda folder: _huge_shape(folder, "9" * 30), "can't be read"),
    "a model that is no record": (
        lambda folder: _rewrite(folder, names.BUNDLE_RECORD, model=[1]), "not the model that bundle.json names"
    ),
    "a record nested too deep": (
        lambda folder: (folder / bundle.GATE).write_text("[" * 100_000), "not a JSON object"
    ),
    "no samples": (lambda folder: next((folder / bundle.SAMPLES).iterdir()).unlink(), "no sample clips"),
    "a gate that did not pass": (lambda folder: _rewrite(folder, bundle.GATE, verdict="undecided"), "must not ship"),
    "parity that failed": (lambda folder: _rewrite(folder, bundle.PARITY, ok=False), "must not ship"),
    "another schema": (lambda folder: _rewrite(folder, names.BUNDLE_RECORD, schema=99), "schema 99"),
    "a record that is no JSON": (lambda folder: (folder / bundle.GATE).write_text("pass"), "not a JSON object"),
}  # fmt: skip


@pytest.mark.parametrize("how", INSIDE)
def test_a_bundle_with_a_fresh_manifest_must_still_hold_what_it_says(good: Path, how: str) -> None:
    spoil, said = INSIDE[how]
    spoil(good)
    bundle_writer.write_manifest(good)
    with pytest.raises(VerificationError, match=said):
        bundle.verify(good)


def test_samples_that_unpack_to_too_much_are_not_unpacked(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "_SAMPLES_MAX_BYTES", 100)
    with pytest.raises(VerificationError, match="unpacks to more"):
        bundle.verify(good)


def test_many_problems_are_counted_not_listed(good: Path) -> None:
    for number in range(10):
        (good / f"x{number}").write_bytes(b"")
    with pytest.raises(VerificationError, match=r"and 7 more"):
        bundle.verify(good)


@pytest.mark.parametrize("what", ["nothing", "empty"])
def test_where_there_is_no_bundle_it_says_so(tmp_path: Path, what: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises((NotFoundError, VerificationError), match="no bundle|this is no bundle"):
        bundle.verify(tmp_path / what)


def test_a_temp_folder_of_an_archive_is_gone_afterwards(good: Path, tmp_path: Path) -> None:
    archive.write_archive(good, tmp_path / "small.tar")
    with bundle.open_bundle(tmp_path / "small.tar") as opened:
        folder = opened.folder
        assert (folder / names.BUNDLE_MANIFEST).is_file()
    assert not folder.exists()


def test_the_environment_is_locked_without_a_path() -> None:
    text = bundle_writer.environment_lock()
    assert "torch==" in text and "/" not in text.replace("\n", " ")
