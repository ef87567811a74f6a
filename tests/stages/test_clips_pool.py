"""The pool: what is in it, how it is made, and what it refuses."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from bridgehead.errors import NotFoundError, VerificationError
from stage_support import STRIDE, Workshop
from stages import clips_pool, pool_memory


def test_a_clip_is_the_window_of_the_recording_that_its_id_names(workshop: Workshop) -> None:
    pool = workshop.pool
    path, sha256 = clips_pool._locate_source()
    source = clips_pool._read_source(path, sha256)
    for position in (0, 1234, len(pool) - 1):
        recording, start = divmod(int(pool.index["clip_id"][position]), 1_000_000)
        wanted = source["X"][recording][start : start + clips_pool.WINDOW].astype(np.float32)
        assert np.array_equal(pool.read(np.array([position]))[0], wanted)
        assert pool.index["label"][position] == source["y"][recording]
        assert pool.index["subject"][position] == source["subject"][recording]


def test_reading_keeps_the_order_asked_for_across_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workshop: Workshop
) -> None:
    monkeypatch.setattr(clips_pool, "_SHARD_CLIPS", 1000)
    pool = clips_pool.open_pool(tmp_path, stride=STRIDE)
    positions = np.array([4600, 3, 1999, 2000, 3])
    assert len(pool.shards) == 5
    assert np.array_equal(pool.read(positions), workshop.pool.read(positions))


def test_the_fingerprint_is_the_same_for_the_same_pool_and_no_other(tmp_path: Path, workshop: Workshop) -> None:
    assert clips_pool.open_pool(tmp_path, stride=STRIDE).fingerprint == workshop.pool.fingerprint
    assert clips_pool.open_pool(tmp_path, stride=2 * STRIDE).fingerprint != workshop.pool.fingerprint


def test_normalisation_uses_training_subjects_alone(workshop: Workshop) -> None:
    path, sha256 = clips_pool._locate_source()
    source = clips_pool._read_source(path, sha256)
    train = [x for x, who in zip(source["X"], source["subject"], strict=True) if who in clips_pool.TRAIN_SUBJECTS]
    assert np.allclose(workshop.pool.mean, np.concatenate(train).mean(axis=0), atol=1e-6)


def test_stages_that_start_together_make_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    make = clips_pool._make
    monkeypatch.setattr(clips_pool, "_make", lambda *args: (made.append(args[0]), make(*args)))
    threads = [
        threading.Thread(target=clips_pool.open_pool, args=(tmp_path,), kwargs={"stride": STRIDE}) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(made) == 1


def test_a_maker_that_died_leaves_nothing_like_a_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(clips_pool, "_finish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            clips_pool.open_pool(tmp_path, stride=STRIDE)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    assert len(clips_pool.open_pool(tmp_path, stride=STRIDE)) == 4677


def test_a_pickle_that_the_wheel_did_not_bring_is_never_opened(tmp_path: Path) -> None:
    path, sha256 = clips_pool._locate_source()
    changed = tmp_path / "watch.npy"
    changed.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(VerificationError, match="not the file that its wheel brought"):
        clips_pool._read_source(changed, sha256)


def test_without_seglearn_the_error_says_what_to_require(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clips_pool, "_PACKAGE", "no-such-package")
    with pytest.raises(NotFoundError) as caught:
        clips_pool.open_pool(tmp_path)
    assert "requirements" in caught.value.hint


def test_a_cut_shard_is_refused(tmp_path: Path, workshop: Workshop) -> None:
    folder = tmp_path / "pool"
    shutil.copytree(workshop.pool.folder, folder)
    shard = clips_pool.shard_paths(folder)[0]
    shard.write_bytes(shard.read_bytes()[:-600])
    with pytest.raises(VerificationError, match="shard-00.npy"):
        clips_pool.open_made_pool(folder)


def test_an_unknown_subject_is_refused(workshop: Workshop) -> None:
    with pytest.raises(NotFoundError, match="11"):
        workshop.pool.of_subjects([1, 11])


def test_a_mapped_pool_costs_no_memory_that_could_not_be_dropped(workshop: Workshop) -> None:
    measured = pool_memory.measure(workshop.pool.folder)
    grown = {
        way: measured[way]["touched"]["anonymous_bytes"] - measured[way]["before"]["anonymous_bytes"]
        for way in pool_memory.WAYS
    }
    assert measured["mapped"]["sum"] == measured["read"]["sum"]
    assert grown["read"] > 0.9 * measured["pool_bytes"]
    assert grown["mapped"] < 0.2 * measured["pool_bytes"]
