"""What was verified stays verified for the next kernel, as long as it is the same bundle."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from project_support import Seeded

from bridgehead import names
from bridgehead.errors import VerificationError
from control_panel import checks
from control_panel.actions import Actions
from control_panel.checks import Checks, seal
from control_panel.feed import Feed
from control_panel.model import PanelModel
from control_panel.shapes import Artifact, HashState
from run_control import commands

REPORT = {"files": 2, "samples": 3, "gate": "pass"}
AT = 1_000_000.0


@pytest.fixture
def bundle(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> Path:
    [run_id] = seeded.take("run:pretrain")
    folder = seeded.project.run(run_id) / names.BUNDLE
    (folder / "samples").mkdir(parents=True)
    (folder / names.BUNDLE_MANIFEST).write_text('{"v": 1}')
    (folder / names.MODEL_ONNX).write_bytes(b"model")
    (folder / "samples" / "one.npy").write_bytes(b"1234")
    monkeypatch.setattr(commands, "verify_bundle", lambda path: REPORT)
    return folder


def _verify(seeded: Seeded, bundle: Path) -> dict[str, Any]:
    command = {"id": "verify-it", "verb": "verify", "args": {"run": bundle.parent.name, "path": names.BUNDLE}}
    return Actions(seeded.project, clock=lambda: AT).act(command)


def _told(seeded: Seeded) -> tuple[str, float, str]:
    """State, when it was checked and the note, as a kernel that was just started shows them."""
    model = PanelModel()
    feed = Feed(seeded.project, model)
    feed.look()
    feed.close()
    [item] = [item for item in model.snapshot()["artifacts"] if item["kind"] == "bundle"]
    return str(item["hash_state"]), item["checked_at"], item["note"]


def test_the_next_kernel_knows_what_was_verified_and_when(seeded: Seeded, bundle: Path) -> None:
    assert _told(seeded) == ("unchecked", 0.0, "")
    assert _verify(seeded, bundle)["state"] == "done"
    assert _told(seeded) == ("verified", AT, "verified: 2 files, 3 samples, gate pass")


def test_what_was_found_wrong_is_remembered_too(seeded: Seeded, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bad(path: Path) -> dict[str, Any]:
        raise VerificationError("model.onnx is not what the manifest says")

    monkeypatch.setattr(commands, "verify_bundle", bad)
    assert _verify(seeded, bundle)["state"] == "failed"
    state, at, note = _told(seeded)
    assert (state, at) == ("bad", AT) and "model.onnx" in note


def _same_size(bundle: Path) -> None:
    (bundle / names.MODEL_ONNX).write_bytes(b"MODEL")


def _other_digest_with_the_old_times(bundle: Path) -> None:
    path = bundle / names.BUNDLE_MANIFEST
    times = path.stat()
    path.write_text('{"v": 2}')
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _longer_with_the_old_times(bundle: Path) -> None:
    path = bundle / names.MODEL_ONNX
    times = path.stat()
    path.write_bytes(b"a longer model")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _gone(bundle: Path) -> None:
    (bundle / "samples" / "one.npy").unlink()


@pytest.mark.parametrize("change", [_same_size, _other_digest_with_the_old_times, _longer_with_the_old_times, _gone])
def test_a_bundle_that_changed_since_is_unchecked_again(
    seeded: Seeded, bundle: Path, change: Callable[[Path], None]
) -> None:
    _verify(seeded, bundle)
    change(bundle)
    assert _told(seeded) == ("unchecked", 0.0, "")


def test_what_changes_while_it_is_checked_is_not_called_verified(
    seeded: Seeded, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def arrives_meanwhile(path: Path) -> dict[str, Any]:
        _same_size(path)
        return REPORT

    monkeypatch.setattr(commands, "verify_bundle", arrives_meanwhile)
    assert _verify(seeded, bundle)["state"] == "done"
    assert _told(seeded)[0] == "unchecked"


def test_a_panel_that_is_open_hears_of_another_kernels_check(seeded: Seeded, bundle: Path) -> None:
    item = Artifact(bundle.parent.name, names.BUNDLE, 1, HashState.UNCHECKED, "bundle")
    open_panel = Checks(seeded.project.private)
    folders = {item.run: bundle}
    assert open_panel.shown([item], folders) == [item]
    _verify(seeded, bundle)
    [told] = open_panel.shown([item], folders)
    assert (told.hash_state, told.checked_at) == (HashState.VERIFIED, AT)


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"checks": 5}', '{"checks": {"RUN/bundle": {"state": "verified"}}}', '{"checks": {"RUN/bundle": 5}}'],
)
def test_a_damaged_record_is_passed_over_and_written_anew(seeded: Seeded, bundle: Path, text: str) -> None:
    path = seeded.project.private / checks.NAME
    path.write_text(text.replace("RUN", bundle.parent.name))
    assert _told(seeded)[0] == "unchecked"
    _verify(seeded, bundle)
    assert _told(seeded)[0] == "verified" and path.stat().st_mode & 0o077 == 0


def test_a_disk_that_takes_no_record_leaves_the_check_to_this_session(
    seeded: Seeded, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object, **_more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checks.files, "write_json", full)
    mine = Checks(seeded.project.private)
    mine.note(bundle.parent.name, names.BUNDLE, HashState.VERIFIED, "fine", AT, seal(bundle))
    item = Artifact(bundle.parent.name, names.BUNDLE, 1, HashState.UNCHECKED, "bundle")
    assert mine.shown([item], {item.run: bundle})[0].hash_state is HashState.VERIFIED
    assert Checks(seeded.project.private).shown([item], {item.run: bundle}) == [item]


def test_the_record_has_bounds(seeded: Seeded, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "KEPT_MAX", 3)
    made = Checks(seeded.project.private)
    for number in range(5):
        made.note(f"run-{number}", names.BUNDLE, HashState.VERIFIED, "", AT + number, seal(bundle))
    kept = json.loads((seeded.project.private / checks.NAME).read_text())["checks"]
    assert sorted(kept) == [f"run-{number}/bundle" for number in (2, 3, 4)]
