"""The fingerprint of a folder of data; the laptop and a VM have to find the same one."""

from __future__ import annotations

import hashlib
from pathlib import Path

from bridgehead import files, names
from bridgehead.errors import NotFoundError


def fingerprint(folder: Path) -> str:
    """Hex SHA-256 over path, size and SHA-256 of every regular file below `folder`, in the order of the paths.

    A pool that holds a pool.json with a `fingerprint` is asked for that: hashes of its sorted clip ids and its shards.
    Links are not followed. Reads every byte. Raises NotFoundError when no file is there, and OSError.
    """
    record = files.read_json(folder / names.POOL_RECORD)
    if isinstance(record, dict) and isinstance(record.get("fingerprint"), str):
        return str(record["fingerprint"])
    if not folder.is_dir():
        raise NotFoundError(f"there is no folder {folder}")
    entries = [
        [path.relative_to(folder).as_posix(), path.stat().st_size, files.sha256_file(path)]
        for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).as_posix())
        if path.is_file() and not path.is_symlink()
    ]
    if not entries:
        raise NotFoundError(f"the folder {folder} holds no file")
    return hashlib.sha256(files.canonical_json(entries)).hexdigest()
