"""A bundle as one file: a plain tar, the same bytes for the same files, and a reader that takes nothing else.

Standard library only. The reader knows regular files in ustar headers. Links, devices, folders, extensions,
compression, absolute paths, `..`, names twice, and sizes beyond the archive's own are refused, so nothing is left to
be clever about.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from bridgehead import files, paths
from bridgehead.errors import UsageError, VerificationError

SUFFIX = ".tar"
MAX_FILES = 1000
MAX_BYTES = 4 * 2**30
_BLOCK = 512
_CHUNK_BYTES = 1 << 20
_REGULAR = (b"0", b"\0")
_KINDS = {b"1": "a hard link", b"2": "a link", b"5": "a folder", b"3": "a device", b"4": "a device", b"6": "a pipe"}


@dataclass(frozen=True)
class Member:
    path: str
    size: int


def write_archive(folder: Path, target: Path) -> str:
    """Pack every file below `folder`, sorted, without times, owners or modes; return the archive's SHA-256."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    with (
        files.atomic_writer(target) as handle,
        tarfile.open(fileobj=handle, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for path in found:
            info = tarfile.TarInfo(paths.check_relative(path.relative_to(folder).as_posix()))
            info.size = path.stat().st_size
            info.mode = 0o644
            with path.open("rb") as source:
                tar.addfile(info, source)
    return files.sha256_file(target)


def extract_archive(archive: Path, folder: Path) -> list[Member]:
    """Unpack into an empty folder. Raises VerificationError for anything that write_archive does not write."""
    total = archive.stat().st_size
    members: list[Member] = []
    seen: set[str] = set()
    with archive.open("rb") as handle:
        for member in _members(handle, total):
            if member.path.lower() in seen:
                raise VerificationError(f"the archive names {member.path} twice")
            seen.add(member.path.lower())
            members.append(member)
            if len(members) > MAX_FILES:
                raise VerificationError(f"the archive holds more than {MAX_FILES} files")
            target = paths.inside(folder, member.path)
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                _copy(handle, target, member)
            except (FileExistsError, NotADirectoryError):
                raise VerificationError(f"the archive uses {member.path} as a file and as a folder") from None
    if not members:
        raise VerificationError(f"{archive.name} is an empty archive")
    return members


def _members(handle: BinaryIO, total: int) -> Iterator[Member]:
    """Headers one by one; the caller has read each member's bytes before the next is asked for."""
    if total > MAX_BYTES:
        raise VerificationError(f"the archive is over {MAX_BYTES} bytes")
    while True:
        header = handle.read(_BLOCK)
        if len(header) < _BLOCK:
            raise VerificationError("the archive is cut, or no tar file")
        if header == bytes(_BLOCK):
            while piece := handle.read(_CHUNK_BYTES):
                if piece.strip(b"\0"):
                    raise VerificationError("the archive goes on after its end")
            return
        member = _parse(header)
        if handle.tell() + member.size > total:
            raise VerificationError(f"the archive is cut inside {member.path}")
        start = handle.tell()
        yield member
        handle.seek(start + -(-member.size // _BLOCK) * _BLOCK)


def _parse(header: bytes) -> Member:
    checked = header[:148] + b" " * 8 + header[156:]
    if _octal(header[148:156]) != sum(checked) or header[257:263] != b"ustar\0":
        raise VerificationError("no bundle archive: a header is damaged or of another format")
    name, prefix = (part.split(b"\0", 1)[0].decode("ascii", "replace") for part in (header[:100], header[345:500]))
    path = f"{prefix}/{name}" if prefix else name
    kind = header[156:157]
    if kind not in _REGULAR:
        raise VerificationError(f"the archive holds {_KINDS.get(kind, 'something that is no plain file')}: {path[:80]}")
    try:
        paths.check_relative(path)
    except UsageError as error:
        raise VerificationError(f"the archive names a file outside its folder: {error.message}") from None
    return Member(path, _octal(header[124:136]))


def _octal(field: bytes) -> int:
    text = field.strip(b" \0")
    if not text or text.strip(b"01234567"):
        raise VerificationError("no bundle archive: a number in a header can't be read")
    return int(text, 8)


def _copy(handle: BinaryIO, target: Path, member: Member) -> None:
    left = member.size
    with target.open("xb") as out:
        while left:
            piece = handle.read(min(left, _CHUNK_BYTES))
            if not piece:
                raise VerificationError(f"the archive is cut inside {member.path}")
            out.write(piece)
            left -= len(piece)
