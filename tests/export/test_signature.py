"""Signatures: only the key's own holder can make one, and one byte more or less anywhere breaks it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import sys
from pathlib import Path

import pytest

from bridgehead import files, names
from bridgehead.errors import NotFoundError, UsageError, VerificationError
from export import archive, bundle, bundle_writer, signature


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    private = tmp_path_factory.mktemp("keys") / "release"
    return private, signature.make_key(private)


@pytest.fixture
def signed(good: Path, keys: tuple[Path, Path]) -> Path:
    signature.sign(good / names.BUNDLE_MANIFEST, good / names.BUNDLE_SIGNATURE, keys[0])
    return good


def test_a_signed_bundle_verifies_with_its_key_and_says_so_without(signed: Path, keys: tuple[Path, Path]) -> None:
    checked, unchecked = bundle.verify(signed, keys[1]), bundle.verify(signed)
    assert (checked.signature, unchecked.signature) == ("valid", "not checked")
    assert checked.signed_by == unchecked.signed_by != ""


def test_an_unsigned_bundle_is_refused_when_a_key_is_given_and_fine_without(
    good: Path, keys: tuple[Path, Path]
) -> None:
    assert bundle.verify(good).signature == "none"
    with pytest.raises(VerificationError, match="is not signed"):
        bundle.verify(good, keys[1])


def test_another_key_is_named(signed: Path, tmp_path: Path) -> None:
    other = signature.make_key(tmp_path / "other")
    with pytest.raises(VerificationError, match=r"signed with key [0-9a-f]{16}, and this is key"):
        bundle.verify(signed, other)


def test_a_model_that_was_swapped_with_its_manifest_is_caught(signed: Path, keys: tuple[Path, Path]) -> None:
    """The hashes all fit: without a signature nothing would tell."""
    (signed / bundle.NOTICE).write_text("other words\n")
    signature_before = (signed / names.BUNDLE_SIGNATURE).read_bytes()
    (signed / names.BUNDLE_SIGNATURE).unlink()
    bundle_writer.write_manifest(signed)
    (signed / names.BUNDLE_SIGNATURE).write_bytes(signature_before)
    assert bundle.verify(signed).ok
    with pytest.raises(VerificationError, match="changed after it was signed"):
        bundle.verify(signed, keys[1])


@pytest.mark.parametrize(
    "record",
    [{}, [], {"algorithm": "rot13"}, {"algorithm": "ed25519"}, {"algorithm": "ed25519", "signature": "%%%"}],
)
def test_a_signature_file_that_is_none(signed: Path, keys: tuple[Path, Path], record: object) -> None:
    if isinstance(record, dict) and record.get("algorithm") == "ed25519":
        record = {**record, "key_id": signature.key_id_of(signed / names.BUNDLE_SIGNATURE)}
    (signed / names.BUNDLE_SIGNATURE).write_text(json.dumps(record))
    with pytest.raises(VerificationError):
        bundle.verify(signed, keys[1])


def test_beside_an_archive(signed: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    """The archive came from the VM unsigned; the laptop signs what is in it."""
    unsigned = tmp_path / "unsigned"
    shutil.copytree(signed, unsigned, ignore=shutil.ignore_patterns(names.BUNDLE_SIGNATURE))
    packed = tmp_path / f"small{archive.SUFFIX}"
    archive.write_archive(unsigned, packed)
    with pytest.raises(VerificationError, match="not signed"):
        bundle.verify(packed, keys[1])
    beside = packed.with_name(packed.name + signature.SUFFIX)
    signature.sign(signed / names.BUNDLE_MANIFEST, beside, keys[0])
    assert bundle.verify(packed, keys[1]).signature == "valid"


def test_a_private_key_is_private_and_is_never_replaced(keys: tuple[Path, Path]) -> None:
    assert stat.S_IMODE(keys[0].stat().st_mode) == 0o600
    before = files.sha256_file(keys[0])
    with pytest.raises(UsageError, match="is there already"):
        signature.make_key(keys[0])
    assert files.sha256_file(keys[0]) == before


def test_a_key_that_is_none(signed: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "text").write_text("my key")
    with pytest.raises(UsageError, match="no key that can be read"):
        bundle.verify(signed, tmp_path / "text")
    with pytest.raises(NotFoundError):
        bundle.verify(signed, tmp_path / "nowhere")
    with pytest.raises(UsageError, match="no private Ed25519 key|no key that can be read"):
        signature.sign(signed / names.BUNDLE_MANIFEST, tmp_path / "s", keys[1])
    with pytest.raises(UsageError, match="no public Ed25519 key|no key that can be read"):
        bundle.verify(signed, keys[0])


def test_without_the_package_it_says_what_to_install(
    signed: Path, keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    assert bundle.verify(signed).signature == "not checked"
    with pytest.raises(UsageError, match="cryptography") as caught:
        bundle.verify(signed, keys[1])
    assert "bridgehead[sign]" in caught.value.hint


@pytest.mark.parametrize("case", ["cut", "cut to bytes", "of another bundle", "empty", "a hostile name", "half a file"])
def test_a_signature_that_was_cut_or_is_of_another_bundle(
    signed: Path, keys: tuple[Path, Path], tmp_path: Path, case: str
) -> None:
    path = signed / names.BUNDLE_SIGNATURE
    record = json.loads(path.read_text())
    other = tmp_path / "other"
    other.write_text("of another bundle\n")
    signature.sign(other, tmp_path / "theirs", keys[0])
    changed = {
        "cut": {"signature": record["signature"][:40]},
        "cut to bytes": {"signature": record["signature"][:41]},
        "of another bundle": json.loads((tmp_path / "theirs").read_text()),
        "empty": {"signature": ""},
        "a hostile name": {"key_id": "\x1b[2J" + "x" * 10_000},
        "half a file": {},
    }[case]
    path.write_text(json.dumps({**record, **changed})[: 60 if case == "half a file" else None])
    with pytest.raises(VerificationError) as caught:
        bundle.verify(signed, keys[1])
    assert caught.value.hint and caught.value.message.isprintable() and len(caught.value.message) < 200


@pytest.mark.parametrize("case", ["a changed file", "an added file", "a link", "a link of a folder", "a file less"])
def test_what_was_done_to_a_signed_bundle_is_named(
    signed: Path, keys: tuple[Path, Path], tmp_path: Path, case: str
) -> None:
    notice = signed / bundle.NOTICE
    if case == "a changed file":
        notice.write_text(notice.read_text() + "x")
    elif case == "an added file":
        (signed / "more.py").write_text("x")
    elif case == "a link of a folder":
        (signed / "more").symlink_to(tmp_path, target_is_directory=True)
    else:
        notice.rename(tmp_path / "notice")
        if case == "a link":
            notice.symlink_to(tmp_path / "notice")
    with pytest.raises(VerificationError, match="NOTICE|more"):
        bundle.verify(signed, keys[1])


@pytest.mark.skipif(os.name != "posix", reason="modes")
def test_a_private_key_that_others_can_read_signs_nothing(good: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    loose = tmp_path / "loose"
    loose.write_bytes(keys[0].read_bytes())
    for mode in (0o644, 0o640, 0o604):
        loose.chmod(mode)
        with pytest.raises(UsageError, match="others can read") as caught:
            signature.sign(good / names.BUNDLE_MANIFEST, tmp_path / "s", loose)
        assert f"chmod 600 {loose}" in caught.value.hint and not (tmp_path / "s").exists()


def test_a_key_of_another_kind_and_a_folder_in_its_place(signed: Path, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as serial
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    public = X25519PrivateKey.generate().public_key()
    (tmp_path / "x").write_bytes(public.public_bytes(serial.Encoding.PEM, serial.PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(UsageError, match="no public Ed25519 key"):
        bundle.verify(signed, tmp_path / "x")
    with pytest.raises(OSError, match="directory"):
        bundle.verify(signed, tmp_path)


def test_a_full_disk_leaves_no_half_of_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for what in ("bridgehead.files.write_atomic", "os.fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(what, full)
            with pytest.raises(OSError, match="No space"):
                signature.make_key(tmp_path / "release")
        assert list(tmp_path.iterdir()) == []
    assert signature.make_key(tmp_path / "release").exists()
