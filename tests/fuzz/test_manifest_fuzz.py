"""Manifests: of a checkpoint, and of the payload. Whatever is in them is refused in words, or it is what lies there."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from fuzz_support import any_json, damaged, fuzz
from hypothesis import example, given
from hypothesis import strategies as st

from bridgehead import checkpoints, names, signing
from bridgehead.errors import BridgeheadError, NotFoundError, VerificationError
from vm_daemons import payload
from vm_daemons.home import VmHome
from vm_daemons.payload_shelf import Shelf
from vm_daemons.payload_tree import Tree
from vm_support import KEY, paired_home

DATA = b"weights" * 20
ENTRY = {"path": "state/a.bin", "size": len(DATA), "sha256": hashlib.sha256(DATA).hexdigest()}
CHECKPOINT = {"v": names.RECORD_VERSION, "step": 7, "created": 1.0, "files": [ENTRY], "meta": {"code": "x"}}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / checkpoints.folder_name(7)
    (folder / "state").mkdir(parents=True)
    (folder / "state/a.bin").write_bytes(DATA)
    (tmp_path / "outside").write_bytes(DATA)
    return folder


@given(manifest=any_json() | damaged(CHECKPOINT), proven=st.booleans())
@example(manifest={**CHECKPOINT, "files": [{**ENTRY, "path": "../outside"}]}, proven=True)
@example(manifest={**CHECKPOINT, "files": [{**ENTRY, "size": float(len(DATA))}]}, proven=True)
@example(manifest={**CHECKPOINT, "v": True}, proven=True)
@fuzz(80)
def test_no_manifest_passes_for_a_checkpoint_but_one_that_is_what_lies_there(
    checkpoint: Path, manifest: Any, proven: bool
) -> None:
    """`proven`: its own hash is right, as if somebody had written it on purpose."""
    if isinstance(manifest, dict) and proven:
        manifest = {**manifest, "sha256": checkpoints.manifest_digest(manifest)}
    (checkpoint / names.CHECKPOINT_MANIFEST).write_text(json.dumps(manifest))
    try:
        found = checkpoints.verify(checkpoint)
    except VerificationError:
        return
    assert found.step == 7 and found.size_bytes == sum(entry["size"] for entry in manifest["files"])
    assert {entry["path"] for entry in found.manifest["files"]} == {ENTRY["path"]}


@given(st.binary(max_size=100))
@fuzz(40)
def test_no_bytes_pass_for_a_manifest(checkpoint: Path, data: bytes) -> None:
    (checkpoint / names.CHECKPOINT_MANIFEST).write_bytes(data)
    with pytest.raises(VerificationError):
        checkpoints.verify(checkpoint)


# --- the payload's ----------------------------------------------------------------------------------------------

FILES = {"train.py": b"print(1)\n", "lib/model.py": b"x = 1\n"}
LISTED = [
    {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "mode": 0o644}
    for path, data in FILES.items()
]
BODY = {
    "v": names.PROTOCOL, "reply_to": "n", "ship_sha256": "0" * 64, "payload_sha256": "0" * 64, "project": "demo",
    "requirements": [], "store": {}, "vm": {}, "files": LISTED,
}  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> VmHome:
    return paired_home(tmp_path_factory.mktemp("vm"))


def bring(_: Tree, shelf: Shelf, wanted: list[dict[str, Any]]) -> int:
    """As a download would: what it has under the hash that is named, onto the shelf."""
    for entry in wanted:
        data = next((data for data in FILES.values() if hashlib.sha256(data).hexdigest() == entry["sha256"]), None)
        if data is None or len(data) != entry["size"]:
            raise NotFoundError("no such file")
        shelf.add(entry["sha256"], data)
    return 0


@given(damaged(BODY) | any_json())
@example({**BODY, "files": [{**LISTED[0], "path": "lib"}, LISTED[1]]})
@example({**BODY, "files": [LISTED[0], {**LISTED[0], "mode": 0o755}]})
@example({**BODY, "files": [{**LISTED[0], "path": "../state/vm.json"}]})
@fuzz(100)
def test_no_signed_manifest_breaks_the_sync_or_puts_a_file_anywhere_else(home: VmHome, body: Any) -> None:
    outside = {path for path in home.root.rglob("*") if not path.is_relative_to(home.payload)}
    document = signing.sign_document(KEY, "manifest", body if isinstance(body, dict) else {"files": body})
    try:
        told = payload.install(home, document, bring)
    except BridgeheadError:
        pass
    else:
        assert told["files"] == len(body["files"])
        for entry in body["files"]:
            assert hashlib.sha256((home.payload / entry["path"]).read_bytes()).hexdigest() == entry["sha256"]
    new = {path for path in home.root.rglob("*") if not path.is_relative_to(home.payload)} - outside
    assert {path.name for path in new if path.parent != home.state / "content"} <= {
        names.PAYLOAD_MANIFEST,
        "payload.json",
        "payload.lock",
        "content",
    }
    with contextlib.suppress(BridgeheadError):
        payload.install(home, signing.sign_document(KEY, "manifest", BODY), bring)
    assert (home.payload / "train.py").read_bytes() == FILES["train.py"]  # and the next sound one puts all right
