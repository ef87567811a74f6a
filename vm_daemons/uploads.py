"""How a run's growing files reach the laptop: as what was added to them. (Whole files: artefacts.py.)

The laptop's offset is the truth. A generation is one life of a growing file; the number of its bytes on the laptop
tells how far the file has been shipped. A new attempt, another inode or a file that got shorter begins a new one.
"""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bridgehead import files, names
from bridgehead.errors import NotFoundError, SupersededError, TransferError
from vm_daemons import log_cap
from vm_daemons.client import BridgeClient, OffsetConflict, Upload

_log = logging.getLogger(__name__)

LOG_PART_BYTES = 4 * 2**20  # small, so that the other files get their turn
GENERATIONS = names.GENERATIONS


@dataclass(frozen=True)
class _Life:
    """One generation: its name, the inode it reads, and the byte of the file at which it begins.

    `acked` is what the laptop was known to have when this was written down; a later attempt in the same file begins
    there. The first `inherited` bytes of the file were written on a VM that died, whose generation this was; what the
    laptop lacks of them is sent under that name.
    """

    generation: str
    attempt: int
    inode: int
    base: int
    acked: int = field(default=0, compare=False)
    inherited: int = 0


class GrowingUpload:
    """Ships what is appended to one file. Bytes, never lines: a progress bar or binary output is as good as text."""

    def __init__(self, client: BridgeClient, run_id: str, attempt: int, path: Path, name: str) -> None:
        self._client = client
        self._run_id = run_id
        self._attempt = attempt
        self._path = path
        self._name = name
        self._life: _Life | None = None
        self._offset = 0  # of this generation, as the laptop last told
        self._part_bytes = LOG_PART_BYTES

    def pending(self) -> bool:
        """Whether there are bytes that the laptop has not got. Two stat calls at most."""
        stat = self._stat()
        if stat is None or (stat.st_size == 0 and self._life is None):
            return False
        life = self._life
        if life is None or life.inode != stat.st_ino:
            return True
        return stat.st_size != life.base + self._offset

    def ship(self) -> bool:
        """Send at most one part; True when more is waiting. Raises what BridgeClient raises."""
        if not self.pending():
            return False
        self._ensure_life()
        life = self._life
        if life is None:  # removed since
            return False
        data = self._read(life)
        if not data:
            return data is None  # a new generation next time
        try:
            self._offset = self._client.append(
                self._run_id, self._name, self._attempt, life.generation, self._offset, data
            )
        except OffsetConflict as conflict:
            self._offset = conflict.offset
        except (TransferError, NotFoundError):
            self._life = None  # the part may have arrived or not, or nothing is known of it: ask before the next one
            raise
        self._remember(replace(life, acked=self._offset))
        return self.pending()

    def relieve(self, cap_bytes: int) -> str:
        """Keep the file's use of this disk below the cap (log_cap); the line that says what went, or "".

        For any thread: it goes by what was written down, and whoever ships sees the holes by themselves.
        """
        life, stat = self._remembered(), self._stat()
        if stat is None:
            return ""
        arrived_to = life.base + life.acked if life is not None and life.inode == stat.st_ino else 0
        relief = log_cap.relieve(self._path, arrived_to, cap_bytes)
        return relief.line(cap_bytes) if relief is not None else ""

    def _read(self, life: _Life) -> bytes | None:
        """What comes next; None when another life has begun: the file was replaced, or what came next was dropped."""
        at = life.base + self._offset
        with self._path.open("rb", buffering=0) as handle:
            if os.fstat(handle.fileno()).st_ino != life.inode:
                return None
            handle.seek(at)
            data = handle.read(self._part_bytes)
            # Looked for after the read: what is a hole only now was read before it was one.
            hole_at, data_at = log_cap.first_hole(handle.fileno(), at, at + len(data))
        if hole_at > at or not data:
            return data[: hole_at - at]
        self._remember(replace(life, generation=f"{life.generation}-{time.time_ns():x}", base=data_at, acked=0))
        self._life = None
        return None

    def _ensure_life(self) -> None:
        """Find or begin the generation that the file is in now, and ask the laptop how much of it it has."""
        stat = self._stat()
        if stat is None:
            return
        life = self._life or self._remembered()
        changed = life is None or life.inode != stat.st_ino or life.attempt != self._attempt
        if changed or life is None:
            life = self._begin(life, stat, truncated=False)
        elif stat.st_size < life.base + self._offset:
            life = self._begin(life, stat, truncated=True)
        if self._life != life:
            life, upload = self._open(life, stat)
            if stat.st_size < life.base + upload.offset:  # it shrank while nobody looked
                life = self._begin(life, stat, truncated=True)
                upload = self._client.open_upload(self._run_id, self._name, self._attempt, life.generation)
            self._offset = upload.offset
            self._part_bytes = min(LOG_PART_BYTES, upload.limits.max_append or LOG_PART_BYTES)
            self._life = life

    def _open(self, life: _Life, stat: os.stat_result) -> tuple[_Life, Upload]:
        """Where the generation stands on the laptop; past what was inherited a generation of our own begins."""
        ask = self._client.open_upload
        if life.inherited and not self._is_overtaken(life):
            upload = ask(self._run_id, self._name, self._attempt, life.generation)
            if life.base + upload.offset < life.inherited:
                return life, upload
        if life.inherited:
            life = _Life(self._generation(stat), self._attempt, stat.st_ino, life.inherited)
        upload = ask(self._run_id, self._name, self._attempt, life.generation)
        self._remember(life)
        return life, upload

    def _is_overtaken(self, life: _Life) -> bool:
        """Whether the laptop has a later generation than the inherited one: then it has all that it can get of that.

        "Superseded" can also mean that the laptop has not heard yet that the run is ours now. Only an owner is told
        that it knows nothing of a generation, so that is asked in between; else this raises TransferError.
        """
        for _ in range(2):
            try:
                self._client.open_upload(self._run_id, self._name, self._attempt, life.generation)
                return False
            except SupersededError:
                self._client.offset(self._run_id, self._name, self._attempt, f"{life.generation}-owner")
        return True

    def _generation(self, stat: os.stat_result) -> str:
        return _generation(self._client.vm_id, self._attempt, stat)

    def _begin(self, old: _Life | None, stat: os.stat_result, *, truncated: bool) -> _Life:
        base = 0
        if old is not None and old.inode == stat.st_ino and not truncated:
            base = min(stat.st_size, old.base + old.acked)  # a new attempt goes on in the same file
        generation = self._generation(stat)
        if truncated:
            generation += f"-{time.time_ns():x}"
        life = _Life(generation, self._attempt, stat.st_ino, base)
        self._remember(life)
        return life

    def _remembered(self) -> _Life | None:
        try:
            return _Life(**_read_lives(self._path.parent)[self._name])
        except (KeyError, TypeError):
            return None

    def _remember(self, life: _Life) -> None:
        # No fsync, since each part comes by here: it matters on this VM alone, and only for as long as that is up.
        path = self._path.parent / GENERATIONS
        temp = path.with_name(f"{files.TEMP_PREFIX}{GENERATIONS}")
        temp.write_bytes(files.canonical_json({**_read_lives(path.parent), self._name: vars(life)}))
        os.replace(temp, path)

    def _stat(self) -> os.stat_result | None:
        return files.plain_stat(self._path)


def inherit(run_dir: Path, name: str, path: Path, lives: bytes, attempt: int) -> None:
    """Note that `path`, about to become the run's file `name`, holds what a dead VM wrote.

    `lives` is that VM's own note. Without one nobody knows what of it the laptop has, and nothing of it is sent again.
    """
    stat = path.stat()
    try:
        told = json.loads(lives)[name]
        life = _Life(str(told["generation"]), attempt, stat.st_ino, int(told["base"]), inherited=stat.st_size)
    except (ValueError, KeyError, TypeError, RecursionError):
        _log.info("%s: how much of the former %s the laptop has is not known", run_dir.name, name)
        life = _Life("", 0, stat.st_ino, stat.st_size)  # of attempt 0: the next one begins where this file ends
    files.write_json(run_dir / GENERATIONS, {**_read_lives(run_dir), name: vars(life)})


def lives_to_leave(run_dir: Path, vm_id: str, attempt: int) -> bytes:
    """What goes into the store before the growing files do, for the VM that comes after this one.

    A file of which nothing has been sent yet has no life noted; it is given the one that it will have. Without that the
    next VM could not tell that the laptop has none of its bytes, and would keep them to itself.
    """
    lives = _read_lives(run_dir)
    for name in names.GROWING_FILES:
        found = files.plain_stat(run_dir / name)
        if found is not None and name not in lives:
            lives[name] = vars(_Life(_generation(vm_id, attempt, found), attempt, found.st_ino, 0))
    return files.canonical_json(lives)


def all_arrived(run_dir: Path) -> bool:
    """Whether the laptop has every byte of the growing files, as far as this VM has been told."""
    lives = _read_lives(run_dir)
    for name in names.GROWING_FILES:
        found, life = files.plain_stat(run_dir / name), lives.get(name)
        sent = life.get("base", 0) + life.get("acked", 0) if isinstance(life, dict) else 0
        if found is not None and sent < found.st_size:
            return False
    return True


def _generation(vm_id: str, attempt: int, stat: os.stat_result) -> str:
    return f"{vm_id}-{attempt}-{stat.st_ino}"


def _read_lives(folder: Path) -> dict[str, Any]:
    lives = files.read_json(folder / GENERATIONS)
    return lives if isinstance(lives, dict) else {}
