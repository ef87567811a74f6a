"""Uploads in parts side by side as a state machine: any order, repeated, overtaken, a death or a full disk anywhere.

What holds at each moment: the file on the laptop is the former one or the whole new one, an upload is complete only
when the file is there and equal, and each part that the store calls there holds the bytes that were sent.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable

import pytest
from append_rig import Killed, Machine, disk_full
from fuzz_support import fuzz
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from bridge import part_store
from bridge.known_content import KnownContent
from bridge.part_store import PartsMismatch, PartsProgress, PartStore, PartWriter, Whole
from bridge.small_db import SmallDb
from bridgehead import processes
from bridgehead.errors import NotFoundError, UsageError, VerificationError

KEY = "key-1"
PART = 10
SIZES = st.sampled_from([1, PART, 3 * PART, 5 * PART + 3])  # few, so that versions of one size follow one another
WHOLE = st.tuples(SIZES, st.binary(max_size=1)).map(lambda how: hashlib.shake_128(how[1]).digest(how[0]))
NUMBER = st.integers(0, 5)  # of a part; taken modulo how many there are
STEPS = st.integers(0, 14)


class PartsMachine(Machine):
    modules = (part_store,)
    path = "run/model"

    def __init__(self) -> None:
        super().__init__()
        self.let_database_fail(SmallDb, "write")
        self.boot = 0
        self.patch.setattr(processes, "boot_id", lambda: f"boot-{self.boot}")
        self.truth, self.former = b"", b""
        self.acked: set[int] = set()  # the parts of which the sender was told that they are there
        self.store = self.opened()

    def opened(self) -> PartStore:
        self.known = KnownContent(self.folder / "known", self.folder / "in")
        return PartStore(self.folder / "parts", self.folder / "in", self.known)

    def closed(self) -> None:
        for writer in [writer for writers in self.store._writers.values() for writer in writers.values()]:
            self.abandoned.append(writer._fd)
        self.store.close()
        self.known.close()

    def killed(self) -> None:
        self.closed()
        self.store = self.opened()

    # --- what the sender does -----------------------------------------------------------------------------

    def whole(self) -> Whole:
        pieces = [self.truth[at : at + PART] for at in range(0, len(self.truth), PART)]
        return Whole(self.name, len(self.truth), PART, b"".join(hashlib.sha256(piece).digest() for piece in pieces))

    def asked(self) -> PartsProgress:
        return self.store.open(self.path, KEY, self.whole())

    def found(self) -> PartsProgress:
        state = self.store.find(self.path, self.name)
        assert state is not None
        return state

    def piece(self, number: int) -> bytes:
        return self.truth[number * PART : (number + 1) * PART]

    def begun(self, number: int) -> PartWriter:
        return self.store.begin(self.path, self.name, number * PART, hashlib.sha256(self.piece(number)).digest())

    def send(self, number: int, *, sound: bool = True) -> PartsProgress:
        """One part, as uploads.py does it."""
        writer = self.begun(number)
        try:
            data = self.piece(number) if sound else bytes(len(self.piece(number)))
            writer.write(data[:3])
            writer.write(data[3:])
            if not sound:
                raise VerificationError("what arrived was not what was signed")
            return writer.commit()
        except Killed:
            raise
        except BaseException:
            writer.drop()
            raise

    def told(self, state: PartsProgress | None) -> None:
        if state is not None:
            self.acked = set(range(self.whole().count)) - set(state.missing)

    def a_missing(self, number: int) -> int | None:
        missing = self.found().missing
        return missing[number % len(missing)] if missing else None

    @initialize(data=WHOLE)
    def begin(self, data: bytes) -> None:
        self.another_version(data)

    @rule(data=WHOLE)
    def another_version(self, data: bytes) -> None:
        self.former, self.truth = self.on_laptop(), data
        self.generation += 1
        self.told(self.asked())

    @rule()
    def the_same_of_a_later_attempt(self) -> None:
        self.generation += 1
        state = self.asked()
        assert self.acked.isdisjoint(state.missing), "what was there of the same content stays"
        self.told(state)

    @rule(number=NUMBER)
    def a_part_arrives(self, number: int) -> None:
        if (missing := self.a_missing(number)) is not None:
            self.told(self.send(missing))

    @rule(number=NUMBER)
    def a_part_arrives_and_its_answer_is_lost(self, number: int) -> None:
        if (missing := self.a_missing(number)) is not None:
            self.send(missing)

    @rule(number=NUMBER, calls=STEPS, failure=st.sampled_from([Killed, disk_full]))
    def a_part_meets_a_death_or_a_full_disk(
        self, number: int, calls: int, failure: Callable[[], BaseException]
    ) -> None:
        if (missing := self.a_missing(number)) is not None:
            self.told(self.attempt(calls, failure, lambda: self.send(missing)))

    @rule(calls=STEPS, failure=st.sampled_from([Killed, disk_full]))
    def it_is_opened_again_and_meets_a_death_or_a_full_disk(
        self, calls: int, failure: Callable[[], BaseException]
    ) -> None:
        self.told(self.attempt(calls, failure, self.asked))

    @rule(number=NUMBER)
    def a_part_is_damaged_on_its_way(self, number: int) -> None:
        if (missing := self.a_missing(number)) is not None:
            with pytest.raises(VerificationError):
                self.send(missing, sound=False)

    @rule(calls=STEPS, failure=st.sampled_from([Killed, disk_full]))
    def the_rest_arrives_and_the_last_part_meets_it(self, calls: int, failure: Callable[[], BaseException]) -> None:
        *before, last = self.found().missing or (None,)
        for number in before:
            self.told(self.send(number))
        if last is not None:
            self.told(self.attempt(calls, failure, lambda: self.send(last)))

    @rule(number=NUMBER)
    def a_part_that_is_too_short_does_not_count(self, number: int) -> None:
        if (missing := self.a_missing(number)) is not None:
            writer = self.begun(missing)
            writer.write(self.piece(missing)[:-1])
            with pytest.raises(UsageError):
                writer.commit()
            writer.drop()

    @rule(one=NUMBER, other=NUMBER)
    @precondition(lambda self: len(self.found().missing) > 1)
    def two_parts_arrive_side_by_side(self, one: int, other: int) -> None:
        """When the second is the same part again it overtakes the first, whose connection is dead."""
        first, second = self.a_missing(one), self.a_missing(other)
        assert first is not None and second is not None
        early = self.begun(first)
        early.write(self.piece(first))
        late = self.begun(second)
        late.write(self.piece(second)[:4])
        with pytest.raises(PartsMismatch) if first == second else contextlib.nullcontext():
            self.told(early.commit())
        early.drop()
        late.write(self.piece(second)[4:])
        self.told(late.commit())

    @rule(number=NUMBER)
    def a_part_that_is_there_is_not_taken_again(self, number: int) -> None:
        number %= self.whole().count
        now = self.found()
        if number not in now.missing:
            with pytest.raises(PartsMismatch) as caught:
                self.send(number)
            assert caught.value.progress == now

    @rule(off=st.integers(1, PART - 1), far=st.integers(0, 3))
    def a_part_that_nobody_announced_is_refused(self, off: int, far: int) -> None:
        digest = hashlib.sha256(b"other").digest()
        with pytest.raises(UsageError):
            self.store.begin(self.path, self.name, off, digest)
        with pytest.raises(UsageError):
            self.store.begin(self.path, self.name, (self.whole().count + far) * PART, digest)
        with pytest.raises(NotFoundError):
            self.store.begin(self.path, f"{self.name}-other", 0, digest)
        for number in self.found().missing[:1]:
            with pytest.raises(VerificationError):
                self.store.begin(self.path, self.name, number * PART, digest)

    @rule()
    def the_bridge_is_killed_and_started(self) -> None:
        self.killed()

    @rule(at=st.integers(0, 5 * PART), cut=st.booleans())
    @precondition(lambda self: not self.found().complete and self.temps())
    def the_power_fails(self, at: int, cut: bool) -> None:
        """The disk had not got all of the temp file: its end is missing, or a block of it is zeros."""
        (temp,) = self.temps()
        self.boot += 1
        self.killed()
        data = temp.read_bytes()
        temp.write_bytes(data[:at] if cut else data[:at] + bytes(len(data[at : at + 8])) + data[at + 8 :])
        self.acked.clear()

    # --- what holds ---------------------------------------------------------------------------------------------

    @invariant()
    def the_file_is_the_former_or_the_whole_new_one(self) -> None:
        assert self.on_laptop() in (self.former, self.truth)

    @invariant()
    def complete_means_that_the_file_is_there_and_equal(self) -> None:
        if self.generation and self.found().complete:
            assert self.on_laptop() == self.truth

    @invariant()
    def a_part_that_is_there_holds_what_was_sent(self) -> None:
        if self.generation and not self.found().complete and self.temps():
            assert self.acked.isdisjoint(self.found().missing)
            there = set(range(self.whole().count)) - set(self.found().missing)
            held = self.temps()[0].read_bytes()
            assert all(held[number * PART : (number + 1) * PART] == self.piece(number) for number in there)

    def teardown(self) -> None:
        try:
            if self.generation:
                for number in self.asked().missing:
                    self.told(self.send(number))
                assert self.asked().complete and self.on_laptop() == self.truth and not self.temps()
        finally:
            self.closed()
            super().teardown()


TestParts = PartsMachine.TestCase
TestParts.settings = fuzz(60, stateful_step_count=30)
