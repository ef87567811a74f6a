"""Parts come in any order, twice, side by side and after a power cut: the file appears once all of it is proven."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.known_content import KnownContent
from bridge.part_store import PartsMismatch, PartsProgress, PartStore, Whole
from bridgehead import processes
from bridgehead.errors import NotFoundError, UsageError, VerificationError

PATH = "run/model"
PART = 1000
CONTENT = os.urandom(3500)
KEY = "key-one"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path


@pytest.fixture
def store(root: Path) -> Iterator[PartStore]:
    with opened(root) as store:
        yield store


@contextlib.contextmanager
def opened(root: Path) -> Iterator[PartStore]:
    with contextlib.closing(KnownContent(root / "content", root / "in")) as known:
        with contextlib.closing(PartStore(root / "parts", root / "in", known)) as store:
            yield store


def part(number: int, content: bytes = CONTENT) -> bytes:
    return content[number * PART : (number + 1) * PART]


def whole(content: bytes = CONTENT, generation: str = "1") -> Whole:
    digests = b"".join(hashlib.sha256(part(n, content)).digest() for n in range(-(-len(content) // PART)))
    return Whole(generation, len(content), PART, digests)


def add(store: PartStore, number: int, content: bytes = CONTENT, path: str = PATH) -> PartsProgress:
    data = part(number, content)
    writer = store.begin(path, "1", number * PART, hashlib.sha256(data).digest())
    try:
        writer.write(data)
        return writer.commit()
    finally:
        writer.drop()


def names_in(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "in/run").iterdir())


def test_parts_in_any_order_make_the_file_with_the_last_one(store: PartStore, root: Path) -> None:
    assert store.open(PATH, KEY, whole()).missing == (0, 1, 2, 3)
    assert add(store, 2) == PartsProgress(0, (0, 1, 3), PART)
    add(store, 0)
    assert add(store, 3) == PartsProgress(PART, (1,), len(CONTENT) - PART)
    assert not (root / "in" / PATH).exists()
    assert add(store, 1).complete
    assert (root / "in" / PATH).read_bytes() == CONTENT
    assert names_in(root) == ["model"]


def test_opening_again_tells_what_is_missing(store: PartStore, root: Path) -> None:
    store.open(PATH, KEY, whole())
    add(store, 1)
    assert store.open(PATH, KEY, whole()).missing == (0, 2, 3)
    with opened(root) as after:  # the bridge was killed and started again
        assert after.open(PATH, KEY, whole()).missing == (0, 2, 3)


def test_side_by_side_parts_do_not_disturb_one_another(store: PartStore, root: Path) -> None:
    store.open(PATH, KEY, whole())
    writers = [store.begin(PATH, "1", n * PART, hashlib.sha256(part(n)).digest()) for n in range(4)]
    for at in range(0, PART, 250):
        for number, writer in enumerate(writers):
            if piece := part(number)[at : at + 250]:
                writer.write(piece)
    assert [writer.commit().complete for writer in writers] == [False, False, False, True]
    assert (root / "in" / PATH).read_bytes() == CONTENT


def test_a_part_that_was_cut_or_dropped_is_still_missing(store: PartStore) -> None:
    store.open(PATH, KEY, whole())
    writer = store.begin(PATH, "1", 0, hashlib.sha256(part(0)).digest())
    writer.write(part(0)[:10])
    writer.drop()
    with pytest.raises(PartsMismatch):
        writer.write(b"late")
    assert store.open(PATH, KEY, whole()).missing == (0, 1, 2, 3)


def test_the_newest_writer_of_a_part_overtakes_the_one_before(store: PartStore, root: Path) -> None:
    store.open(PATH, KEY, whole())
    digest = hashlib.sha256(part(0)).digest()
    slow = store.begin(PATH, "1", 0, digest)
    slow.write(b"damaged on its way")
    fast = store.begin(PATH, "1", 0, digest)
    for late in (lambda: slow.write(b"late"), slow.commit):
        with pytest.raises(PartsMismatch):
            late()
    fast.write(part(0))
    assert fast.commit().missing == (1, 2, 3)
    slow.drop()
    for number in (1, 2, 3):
        add(store, number)
    assert (root / "in" / PATH).read_bytes() == CONTENT


def test_a_part_that_is_there_is_not_taken_again(store: PartStore) -> None:
    store.open(PATH, KEY, whole())
    add(store, 0)
    with pytest.raises(PartsMismatch) as refused:
        add(store, 0)
    assert refused.value.progress.missing == (1, 2, 3)


def test_a_part_of_another_digest_than_announced_is_refused_before_it_is_read(store: PartStore) -> None:
    store.open(PATH, KEY, whole())
    with pytest.raises(VerificationError):
        store.begin(PATH, "1", 0, hashlib.sha256(b"another").digest())


@pytest.mark.parametrize("length", [PART - 1, PART + 1])
def test_a_part_of_another_length_does_not_count(store: PartStore, length: int) -> None:
    store.open(PATH, KEY, whole())
    writer = store.begin(PATH, "1", 0, hashlib.sha256(part(0)).digest())
    with pytest.raises(UsageError):
        writer.write(bytes(length))
        writer.commit()
    writer.drop()
    assert store.open(PATH, KEY, whole()).offset == 0


@pytest.mark.parametrize("offset", [1, 4 * PART, 10**14])
def test_where_no_part_begins_nothing_is_taken(store: PartStore, offset: int) -> None:
    store.open(PATH, KEY, whole())
    with pytest.raises(UsageError):
        store.begin(PATH, "1", offset, bytes(32))


@pytest.mark.parametrize(
    "announced",
    [
        Whole("1", 0, PART, b""),
        Whole("1", 10, 0, bytes(32)),
        Whole("1", 10, 2**26, bytes(32)),
        Whole("1", 10, 5, bytes(32)),
        Whole("1", 10**15, 1, bytes(32)),
    ],
)
def test_an_announcement_that_makes_no_sense_is_refused(store: PartStore, announced: Whole) -> None:
    with pytest.raises(UsageError):
        store.open(PATH, KEY, announced) if announced.part_size else announced.check()


def test_after_a_power_cut_parts_are_hashed_before_they_count(
    store: PartStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.open(PATH, KEY, whole())
    add(store, 0)
    add(store, 1)
    (temp,) = (root / "in/run").glob(".tmp-*")
    with temp.open("r+b") as handle:  # what the disk had not got comes back as zeros
        handle.seek(PART)
        handle.write(bytes(PART))
    monkeypatch.setattr(processes, "boot_id", lambda: "another boot")
    with opened(root) as after:
        assert after.open(PATH, KEY, whole()).missing == (1, 2, 3)
        for number in (1, 2, 3):
            add(after, number)
    assert (root / "in" / PATH).read_bytes() == CONTENT


def test_a_temp_file_that_somebody_removed_begins_anew(store: PartStore, root: Path) -> None:
    store.open(PATH, KEY, whole())
    add(store, 0)
    (temp,) = (root / "in/run").glob(".tmp-*")
    temp.unlink()
    with pytest.raises(FileNotFoundError):
        add(store, 1)
    assert store.open(PATH, KEY, whole()).missing == (0, 1, 2, 3)


def test_another_content_begins_anew_and_leaves_nothing_behind(store: PartStore, root: Path) -> None:
    store.open(PATH, KEY, whole())
    add(store, 0)
    other = os.urandom(1500)
    store.open(PATH, KEY, whole(other))
    assert len(names_in(root)) == 1
    add(store, 0, other)
    assert add(store, 1, other).complete
    assert (root / "in" / PATH).read_bytes() == other


def test_a_forgotten_upload_is_gone(store: PartStore, root: Path) -> None:
    store.open(PATH, KEY, whole())
    add(store, 0)
    assert store.forget(PATH) and not store.forget(PATH)
    assert names_in(root) == []
    with pytest.raises(NotFoundError):
        add(store, 1)


def test_what_the_laptop_has_under_another_name_is_not_sent_again(store: PartStore, root: Path) -> None:
    store.open(PATH, KEY, whole())
    for number in range(4):
        add(store, number)
    assert store.open("run/copy", KEY, whole()).complete
    assert (root / "in/run/copy").read_bytes() == CONTENT
    assert (root / "in/run/copy").stat().st_ino != (
        root / "in" / PATH
    ).stat().st_ino  # an edit of one is no edit of both


def test_of_a_changed_file_only_the_changed_parts_are_sent(store: PartStore, root: Path) -> None:
    store.open(PATH, KEY, whole())
    for number in range(4):
        add(store, number)
    changed = part(0) + os.urandom(PART) + CONTENT[2 * PART :]
    assert store.open(PATH, KEY, whole(changed)).missing == (1,)
    assert add(store, 1, changed).complete
    assert (root / "in" / PATH).read_bytes() == changed


def test_what_another_key_sent_is_not_told(store: PartStore) -> None:
    store.open(PATH, KEY, whole())
    for number in range(4):
        add(store, number)
    assert store.open("run2/model", "key-two", whole()).missing == (0, 1, 2, 3)


def test_a_copy_that_was_edited_since_is_no_source(store: PartStore, root: Path) -> None:
    store.open(PATH, KEY, whole())
    for number in range(4):
        add(store, number)
    (root / "in" / PATH).write_bytes(bytes(len(CONTENT)))
    assert store.open("run/copy", KEY, whole()).missing == (0, 1, 2, 3)


def test_a_later_attempt_with_the_same_content_sends_nothing(store: PartStore) -> None:
    store.open(PATH, KEY, whole())
    for number in range(4):
        add(store, number)
    assert store.open(PATH, KEY, whole(generation="2")).complete
    assert store.find(PATH, "2") == PartsProgress(len(CONTENT), (), len(CONTENT), complete=True)


def test_a_damaged_database_costs_no_more_than_sending_again(root: Path) -> None:
    (root / "parts").write_bytes(b"no database" * 1000)
    with opened(root) as store:
        store.open(PATH, KEY, whole())
        assert [add(store, number).complete for number in range(4)][-1]
