"""The archive: the same bytes each time, and a reader that takes nothing but what the writer writes."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from bridgehead.errors import VerificationError
from export import archive


def entry(name: str, data: bytes = b"x", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def tar_of(
    path: Path, *entries: tuple[tarfile.TarInfo, bytes], mode: str = "w", form: int = tarfile.USTAR_FORMAT
) -> Path:
    with tarfile.open(path, mode, format=form) as tar:  # type: ignore[call-overload]
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data) if info.isreg() else None)
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def test_a_round_trip_keeps_every_byte(tmp_path: Path, out: Path) -> None:
    source = tmp_path / "source"
    (source / "samples").mkdir(parents=True)
    contents = {"a.json": b"{}", "samples/x.npz": os.urandom(5000), "empty": b"", "block": bytes(1024)}
    for name, data in contents.items():
        (source / name).write_bytes(data)
    archive.write_archive(source, tmp_path / "a.tar")
    members = archive.extract_archive(tmp_path / "a.tar", out)
    assert {member.path: (out / member.path).read_bytes() for member in members} == contents


def test_the_same_files_give_the_same_archive_whatever_their_times(tmp_path: Path) -> None:
    hashes = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for file in ("b", "a") if name == "one" else ("a", "b"):
            (tmp_path / name / file).write_bytes(file.encode())
        os.utime(tmp_path / name / "a", (1, 1) if name == "one" else (2, 2))
        (tmp_path / name / "b").chmod(0o755 if name == "one" else 0o600)
        hashes.add(archive.write_archive(tmp_path / name, tmp_path / f"{name}.tar"))
    assert len(hashes) == 1


HOSTILE = {
    "a symbolic link": (entry("x", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "a link"),
    "a hard link": (entry("x", b"", type=tarfile.LNKTYPE, linkname="y"), "a hard link"),
    "a folder": (entry("x", b"", type=tarfile.DIRTYPE), "a folder"),
    "a device": (entry("x", b"", type=tarfile.CHRTYPE), "a device"),
    "a pipe": (entry("x", b"", type=tarfile.FIFOTYPE), "a pipe"),
    "a sparse file": (entry("x", b"", type=tarfile.GNUTYPE_SPARSE), "no plain file"),
    "an absolute path": (entry("/etc/cron.d/x"), "outside its folder"),
    "a way up": (entry("a/../../x"), "outside its folder"),
    "a backslash": (entry("..\\x"), "outside its folder"),
    "a hidden file": (entry(".bashrc"), "outside its folder"),
    "a Windows device": (entry("con"), "outside its folder"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_member_is_refused(tmp_path: Path, out: Path, what: str) -> None:
    member, said = HOSTILE[what]
    hostile = tar_of(tmp_path / "h.tar", entry("good"), member)
    with pytest.raises(VerificationError, match=said):
        archive.extract_archive(hostile, out)
    assert [path.name for path in out.iterdir()] == ["good"]


@pytest.mark.parametrize("second", ["A", "a", "a/b"])
def test_two_members_of_one_name_are_refused(tmp_path: Path, out: Path, second: str) -> None:
    with pytest.raises(VerificationError, match="twice|as a file and as a folder"):
        archive.extract_archive(tar_of(tmp_path / "h.tar", entry("a"), entry(second)), out)


@pytest.mark.parametrize("mode", ["w:gz", "w:xz"])
def test_compression_is_refused_so_there_is_nothing_to_blow_up(tmp_path: Path, out: Path, mode: str) -> None:
    with pytest.raises(VerificationError):
        archive.extract_archive(tar_of(tmp_path / "h.tar", entry("zeros", bytes(10**6)), mode=mode), out)


def test_a_size_beyond_the_archives_own_is_refused_before_it_is_written(tmp_path: Path, out: Path) -> None:
    header = tarfile.TarInfo("big")
    header.size = 8**11 - 1
    (tmp_path / "h.tar").write_bytes(header.tobuf(tarfile.USTAR_FORMAT) + bytes(1024))
    with pytest.raises(VerificationError, match="cut inside big"):
        archive.extract_archive(tmp_path / "h.tar", out)
    assert not list(out.iterdir())


def test_a_negative_size_is_refused(tmp_path: Path, out: Path) -> None:
    """Base-256 numbers can be negative, which once made tarfile loop for ever."""
    header = tarfile.TarInfo("x")
    raw = bytearray(header.tobuf(tarfile.USTAR_FORMAT))
    raw[124:136] = b"\xff" * 12
    raw[148:156] = b"%06o\0 " % (sum(raw[:148]) + 8 * 32 + sum(raw[156:512]))
    (tmp_path / "h.tar").write_bytes(bytes(raw) + bytes(1024))
    with pytest.raises(VerificationError, match="can't be read"):
        archive.extract_archive(tmp_path / "h.tar", out)


def test_pax_extensions_are_refused(tmp_path: Path, out: Path) -> None:
    hostile = tar_of(tmp_path / "h.tar", entry("x", pax_headers={"path": "../x"}), form=tarfile.PAX_FORMAT)
    with pytest.raises(VerificationError, match="no plain file|another format"):
        archive.extract_archive(hostile, out)


def test_too_many_members_are_refused(tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_FILES", 3)
    with pytest.raises(VerificationError, match="more than 3 files"):
        archive.extract_archive(tar_of(tmp_path / "h.tar", *(entry(f"f{number}") for number in range(5))), out)


@pytest.mark.parametrize("cut_at", [0, 100, 512, 700, 1024, 1500])
def test_a_cut_archive_is_refused(tmp_path: Path, out: Path, cut_at: int) -> None:
    whole = tar_of(tmp_path / "h.tar", entry("a", b"x" * 400), entry("b", b"y" * 400))
    whole.write_bytes(whole.read_bytes()[:cut_at])
    with pytest.raises(VerificationError):
        archive.extract_archive(whole, out)


def test_a_damaged_header_is_refused(tmp_path: Path, out: Path) -> None:
    whole = tar_of(tmp_path / "h.tar", entry("a"))
    raw = bytearray(whole.read_bytes())
    raw[0] ^= 1
    whole.write_bytes(raw)
    with pytest.raises(VerificationError, match="damaged"):
        archive.extract_archive(whole, out)


def test_data_after_the_end_is_refused(tmp_path: Path, out: Path) -> None:
    whole = tar_of(tmp_path / "h.tar", entry("a"))
    whole.write_bytes(whole.read_bytes() + b"more")
    with pytest.raises(VerificationError, match="goes on after its end"):
        archive.extract_archive(whole, out)
