"""The pool of clips: made once per VM from the installed seglearn package, then only memory-mapped.

    <home>/data/clips-<recipe16>/{shard-00.npy …, index.npy, pool.json}

115,159 windows of 100 samples × 6 channels (wrist accelerometer and gyroscope, 50 Hz) at stride 2: 276 MB as float32.
The source file is a pickle, so it is read only after its SHA-256 matches the one in the wheel's RECORD, and seglearn
itself is never imported. Subjects 1-7 are for training, 8 for validation, 9 and 10 belong to the gate alone.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import importlib.metadata
import io
import os
import secrets
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bridgehead import files, names
from bridgehead.errors import NotFoundError, VerificationError
from bridgehead.run import Run

WINDOW = 100
RATE_HZ = 50
CHANNELS = ("ax", "ay", "az", "wx", "wy", "wz")
UNITS = "as the data set has them; it does not say, but a watch of that make gives g and rad/s"
LABELS = ("PEN", "ABD", "FEL", "IR", "ER", "TRAP", "ROW")
TRAIN_SUBJECTS = (1, 2, 3, 4, 5, 6, 7)
VALIDATION_SUBJECTS = (8,)
HELD_OUT_SUBJECTS = names.HELD_OUT_SUBJECTS
DEFAULT_STRIDE = 2

_PACKAGE = "seglearn"
_SOURCE = "seglearn/data/watch_dataset.npy"
_INDEX = "index.npy"
_FORMAT = 1
_SHARD_CLIPS = 32768
_INDEX_DTYPE = np.dtype(
    [("clip_id", "<i8"), ("subject", "<i4"), ("label", "<i4"), ("recording", "<i4"), ("shard", "<i4"), ("row", "<i4")]
)

Clips = NDArray[np.float32]
Positions = NDArray[np.int64]


@dataclass(frozen=True)
class ClipPool:
    """An open pool. Positions count clips in index order; `read` copies the asked ones out of the mapped shards."""

    folder: Path
    fingerprint: str
    stride: int
    mean: list[float]  # per channel, over the training subjects alone
    std: list[float]
    index: NDArray[Any]
    shards: list[NDArray[np.float32]]

    def __len__(self) -> int:
        return len(self.index)

    def of_subjects(self, subjects: Iterable[int]) -> Positions:
        """Positions of all clips of these subjects. Raises NotFoundError for a subject that the pool lacks."""
        wanted = list(subjects)
        missing = sorted(set(wanted) - set(np.unique(self.index["subject"]).tolist()))
        if missing or not wanted:
            raise NotFoundError(f"the pool holds no clips of subjects {missing or wanted}")
        return np.flatnonzero(np.isin(self.index["subject"], wanted)).astype(np.int64)

    def clip_ids(self, positions: Positions) -> NDArray[np.int64]:
        return np.asarray(self.index["clip_id"][positions], dtype=np.int64)

    def labels(self, positions: Positions) -> NDArray[np.int64]:
        return np.asarray(self.index["label"][positions], dtype=np.int64)

    def subjects(self, positions: Positions) -> NDArray[np.int64]:
        return np.asarray(self.index["subject"][positions], dtype=np.int64)

    def recordings(self, positions: Positions) -> NDArray[np.int64]:
        return np.asarray(self.index["recording"][positions], dtype=np.int64)

    def read(self, positions: Positions) -> Clips:
        """clips × 100 × 6, raw units, float32."""
        entries = self.index[positions]
        clips = np.empty((len(positions), WINDOW, len(CHANNELS)), dtype=np.float32)
        for number, shard in enumerate(self.shards):
            here = entries["shard"] == number
            if here.any():
                clips[here] = shard[entries["row"][here]]
        return clips


def data_folder(run: Run) -> Path:
    """Where this VM keeps its pools: beside the runs, or in the home that the daemons named."""
    home = os.environ.get(names.ENV_HOME)
    return (Path(home) if home else run.folder.parent) / "data"


def open_pool(data: Path, *, stride: int = DEFAULT_STRIDE) -> ClipPool:
    """Open the pool, making it first when this VM has none; stages that start together make it once.

    Raises NotFoundError when seglearn is not installed and VerificationError when its data file was changed.
    """
    data.mkdir(parents=True, exist_ok=True)
    source, expected_sha256 = _locate_source()
    recipe = {"format": _FORMAT, "source": expected_sha256, "window": WINDOW, "stride": stride}
    name = f"clips-{hashlib.sha256(files.canonical_json(recipe)).hexdigest()[:16]}"
    with (data / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel lets go when its holder dies
        if not (data / name / names.POOL_RECORD).exists():
            _make(data / name, _read_source(source, expected_sha256), stride)
    return open_made_pool(data / name)


def open_made_pool(folder: Path) -> ClipPool:
    """Open a pool folder that is there. Raises VerificationError when a file of it is missing or cut."""
    record = files.read_json(folder / names.POOL_RECORD)
    if not isinstance(record, dict):
        missing = f"{folder.name} holds no {names.POOL_RECORD}"
        raise VerificationError(missing, hint="remove the folder; it is made again")
    for entry in record["files"]:
        path = folder / entry["path"]
        if not path.is_file() or path.stat().st_size != entry["size"]:
            raise VerificationError(f"{entry['path']} of the clips pool is missing or cut", hint=f"remove {folder}")
    return ClipPool(
        folder=folder,
        fingerprint=record["fingerprint"],
        stride=record["stride"],
        mean=record["mean"],
        std=record["std"],
        index=np.load(folder / _INDEX, allow_pickle=False),
        shards=[np.load(path, mmap_mode="r", allow_pickle=False) for path in shard_paths(folder)],
    )


def shard_paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("shard-*.npy"))


# --- making it ------------------------------------------------------------------------------------


def _locate_source() -> tuple[Path, str]:
    """Path of the data file, and the hex SHA-256 that the wheel's RECORD gives for it."""
    try:
        listed = importlib.metadata.distribution(_PACKAGE).files or []
    except importlib.metadata.PackageNotFoundError:
        raise NotFoundError(
            f"{_PACKAGE} is not installed on this VM", hint=f'add "{_PACKAGE}==1.2.5" to the requirements'
        ) from None
    for entry in listed:
        if entry.as_posix() == _SOURCE and entry.hash is not None and entry.hash.mode == "sha256":
            digest = base64.urlsafe_b64decode(entry.hash.value + "=" * (-len(entry.hash.value) % 4))
            return Path(str(entry.locate())), digest.hex()
    raise NotFoundError(f"{_PACKAGE} is installed without {_SOURCE}", hint=f"install {_PACKAGE}==1.2.5 again")


def _read_source(path: Path, expected_sha256: str) -> dict[str, Any]:
    """Unpickle the very bytes that were hashed."""
    raw = path.read_bytes()
    if hashlib.sha256(raw).hexdigest() != expected_sha256:
        raise VerificationError(f"{_SOURCE} is not the file that its wheel brought", hint=f"reinstall {_PACKAGE}")
    source: dict[str, Any] = np.load(io.BytesIO(raw), allow_pickle=True).item()
    if tuple(source["X_labels"]) != CHANNELS or tuple(source["y_labels"]) != LABELS:
        raise VerificationError(f"{_SOURCE} has other channels or labels than expected")
    return source


def _make(folder: Path, source: dict[str, Any], stride: int) -> None:
    temp = folder.with_name(f"{files.TEMP_PREFIX}{secrets.token_hex(8)}")
    temp.mkdir()
    try:
        index = _write_shards(temp, source, stride)
        np.save(temp / _INDEX, index, allow_pickle=False)
        _finish(temp, source, index, stride)
        shutil.rmtree(folder, ignore_errors=True)  # only ever a folder without its record
        os.replace(temp, folder)
    finally:
        shutil.rmtree(temp, ignore_errors=True)
    files.fsync_folder(folder.parent)


def _write_shards(folder: Path, source: dict[str, Any], stride: int) -> NDArray[Any]:
    """Write the windows and return their index. A clip's id says where it comes from, whatever the stride."""
    entries: list[tuple[int, int, int, int]] = []
    windows: list[NDArray[np.float32]] = []
    for recording, samples in enumerate(source["X"]):
        views = np.lib.stride_tricks.sliding_window_view(samples.astype(np.float32), WINDOW, axis=0)[::stride]
        windows.append(views.transpose(0, 2, 1))
        subject, label = int(source["subject"][recording]), int(source["y"][recording])
        starts = range(0, len(views) * stride, stride)
        entries += [(recording * 1_000_000 + start, subject, label, recording) for start in starts]
    index = np.zeros(len(entries), dtype=_INDEX_DTYPE)
    for column, name in enumerate(("clip_id", "subject", "label", "recording")):
        index[name] = [entry[column] for entry in entries]
    positions = np.arange(len(index))
    index["shard"], index["row"] = positions // _SHARD_CLIPS, positions % _SHARD_CLIPS
    _fill_shards(folder, windows, len(index))
    return index


def _fill_shards(folder: Path, windows: list[NDArray[np.float32]], total: int) -> None:
    """Copy the windows, recording by recording, into mapped shards: never more than one recording in memory."""
    shape = (WINDOW, len(CHANNELS))
    shards = [
        np.lib.format.open_memmap(
            folder / f"shard-{first // _SHARD_CLIPS:02d}.npy",
            mode="w+",
            dtype=np.dtype("<f4"),
            shape=(min(_SHARD_CLIPS, total - first), *shape),
        )
        for first in range(0, total, _SHARD_CLIPS)
    ]
    done = 0
    for block in windows:
        while len(block):
            shard, row = shards[done // _SHARD_CLIPS], done % _SHARD_CLIPS
            piece = block[: len(shard) - row]
            shard[row : row + len(piece)] = piece
            done, block = done + len(piece), block[len(piece) :]
    for shard in shards:
        shard.flush()


def _finish(folder: Path, source: dict[str, Any], index: NDArray[Any], stride: int) -> None:
    """Hash and fsync everything, then write pool.json: the folder has no record before it is whole."""
    entries: list[dict[str, Any]] = []
    for path in [*shard_paths(folder), folder / _INDEX]:
        with path.open("rb") as handle:
            os.fsync(handle.fileno())
        entries.append({"path": path.name, "size": path.stat().st_size, "sha256": files.sha256_file(path)})
    digest = hashlib.sha256(np.sort(index["clip_id"]).astype("<i8").tobytes())
    for entry in entries[:-1]:
        digest.update(bytes.fromhex(entry["sha256"]))
    train = [x for x, subject in zip(source["X"], source["subject"], strict=True) if int(subject) in TRAIN_SUBJECTS]
    samples = np.concatenate(train).astype(np.float64)
    record = {
        "v": names.RECORD_VERSION,
        "fingerprint": digest.hexdigest(),
        "clips": len(index),
        "window": WINDOW,
        "stride": stride,
        "mean": samples.mean(axis=0).astype(np.float32).tolist(),
        "std": samples.std(axis=0).astype(np.float32).tolist(),
        "files": entries,
    }
    files.write_json(folder / names.POOL_RECORD, record)


def describe(pool: ClipPool) -> dict[str, Any]:
    """What a results record says about the pool."""
    return {"fingerprint": pool.fingerprint, "clips": len(pool), "window": WINDOW, "stride": pool.stride}
