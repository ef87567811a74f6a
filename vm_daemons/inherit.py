"""What a run gets from its former attempts by way of the store: their logs, their end if they had ended, a checkpoint.

A log goes on where it was cut: what a dead VM had put into the store and the laptop never got is sent from here, under
the dead VM's own upload, so that no byte is missing and none comes twice.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

from bridgehead import checkpoints, files, names
from bridgehead.errors import NotFoundError, VerificationError
from bridgehead.records import Command, ExitRecord
from vm_daemons import uploads
from vm_daemons.home import VmHome
from vm_daemons.storage import log_sums, store_choice
from vm_daemons.storage.store import Store

ADOPTED = "adopted"  # in the VM's home: outputs on their way into a run folder
_LIVES_MAX_BYTES = 1 << 20


def logs(home: VmHome, store: Store, command: Command) -> None:
    """Bring log and progress.jsonl of the former attempts into a run folder that has none yet.

    Before the lease is taken, since that sets them aside. Raises StoreError and OSError.
    """
    run_dir = home.run(command.run_id)
    folder = f"{store_choice.project_of(home)}/{names.STORE_RUNS}/{command.run_id}"
    told = store.objects().read(f"{folder}/{uploads.GENERATIONS}", _LIVES_MAX_BYTES)
    sums, damaged = log_sums.read(store.objects(), folder), []
    for name in names.GROWING_FILES:
        if (run_dir / name).exists():
            continue
        temp = run_dir / f"{files.TEMP_PREFIX}{name}"
        try:
            store.objects().get(f"{folder}/{_newest(store, folder, name)}", temp)
            left_out = _cut_what_is_damaged(temp, sums.get(name, []))
            if left_out:
                damaged.append(f"--- the store's copy of the former {name} is damaged: {left_out} bytes are left out")
            if temp.stat().st_size:
                uploads.inherit(run_dir, name, temp, told or b"", command.attempt)
                os.replace(temp, run_dir / name)
        except NotFoundError:
            continue
        finally:
            temp.unlink(missing_ok=True)
    for text in damaged:
        files.append_line(run_dir / names.LOG, text, durable=False)


def _cut_what_is_damaged(path: Path, listed: list[list[Any]]) -> int:
    """How many bytes at the end were not believed; what was put before there were sums is believed as it is.

    What lies behind the newest copy whose sum is known was put just before its VM died, and has no sum yet.
    """
    size = path.stat().st_size
    if not listed:
        return 0
    good = log_sums.good_bytes(path, listed)
    newest = max((int(entry[0]) for entry in listed if int(entry[0]) <= size), default=0)
    if good == newest and not _has_zeroes(path, good):
        return 0
    os.truncate(path, good)
    return size - good


def _has_zeroes(path: Path, start: int) -> bool:
    with path.open("rb") as reader:
        reader.seek(start)
        return b"\0" in reader.read()


def end(home: VmHome, store: Store, command: Command) -> ExitRecord | None:
    """When an earlier attempt has ended and all it made is in the store: bring that here instead of running it again.

    The exit record comes last. Raises VerificationError (something of it is damaged), StoreError and OSError.
    """
    ended = store.exit_record(command.run_id)
    if ended is None:
        return None
    run_dir = home.run(command.run_id)
    fetched = store.fetch_run(command.run_id, home.root / ADOPTED / command.run_id)
    for source in sorted(path for path in fetched.rglob("*") if path.is_file()):
        relative = source.relative_to(fetched)
        if relative.as_posix() not in (names.RUN_RECORD, names.EXIT):
            (run_dir / relative).parent.mkdir(parents=True, exist_ok=True)
            os.replace(source, run_dir / relative)
    shutil.rmtree(fetched, ignore_errors=True)
    record = dataclasses.replace(ended, attempt=command.attempt)
    files.write_json(run_dir / names.EXIT, record.to_json())
    return ended


def checkpoint_of(home: VmHome, store: Store, other: str, run_dir: Path) -> int:
    """Bring the newest checkpoint of another run that verifies; its step. Raises NotFoundError when there is none."""
    found = _newest_local(home.run(other) / names.CHECKPOINTS)
    root = run_dir / names.CHECKPOINTS
    if found is not None:
        with checkpoints.staging(root) as staged:
            shutil.copytree(found.folder, staged, dirs_exist_ok=True)
            os.replace(staged, root / found.folder.name)
        files.fsync_folder(root)
    if store.available:
        store.restore(other, run_dir)
    here, _ = checkpoints.newest(root)
    if here is None:
        raise NotFoundError(f"no checkpoint of {other} is on this VM or in the store", hint="queue it without resume=")
    return here.step


def _newest(store: Store, folder: str, name: str) -> str:
    """The file itself, or the one that was set aside last when the attempt after it had nothing to put there yet."""
    aside = [int(tail) for entry in store.objects().list(folder) if (tail := _number(entry, name))]
    found = store.objects().find(f"{folder}/{name}")
    return name if found or not aside else f"{name}.{max(aside)}"


def _number(entry: str, name: str) -> str:
    tail = entry.removeprefix(f"{name}.") if entry.startswith(f"{name}.") else ""
    return tail if tail.isdecimal() and len(tail) < 10 else ""


def _newest_local(root: Path) -> checkpoints.Checkpoint | None:
    """Read only: the other run may still be going, and what it finds bad is its own business."""
    folders = [(step, path) for path in root.glob("step-*") if (step := checkpoints.step_of(path)) is not None]
    for _, folder in sorted(folders, reverse=True):
        try:
            return checkpoints.verify(folder)
        except VerificationError:
            continue
    return None
