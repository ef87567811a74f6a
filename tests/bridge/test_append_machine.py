"""The append protocol as a state machine: a sender, the store of the laptop, and a death or a full disk at any step.

What holds at each moment, whatever happened: the file on the laptop is a prefix of what the VM wrote, verified bytes
never go back, an upload is complete only when all of it is there and equal, and the offset that the store tells is the
number of good bytes that it has. At the end of each example a quiet line brings the rest, and all of it is there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable

import pytest
from append_rig import Killed, OffsetMachine, disk_full
from fuzz_support import fuzz
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from bridge.upload_store import OffsetMismatch, Progress
from bridgehead.errors import NotFoundError, SupersededError, UsageError, VerificationError

SOME = st.binary(min_size=1, max_size=40)
WHOLE = st.binary(min_size=60, max_size=200)
SIZE = st.sampled_from([0, 1, 20, 40, 200])  # of a part
OFF = st.sampled_from([0.0, 0.5, 0.9, 1.0, 2.0, 50.0])  # where a wrong part begins, as a share of where it should
SHARE = st.sampled_from([0.0, 0.3, 0.7, 1.0])  # of what is still to be sent
STEPS = st.integers(0, 12)  # which of the coming system calls it is that fails


class GrowingMachine(OffsetMachine):
    """A log: parts are appended, generations follow one another in one file."""

    path = "run/log"

    def __init__(self) -> None:
        super().__init__()
        self.truth = b""  # what the VM wrote in this generation
        self.past = b""  # what lay on the laptop when it began

    @initialize()
    def begin(self) -> None:
        self.new_generation()

    @rule()
    def new_generation(self) -> None:
        """Another attempt, or a file that was cut or rotated on the VM: what was not sent of the old one is gone."""
        self.past = self.on_laptop()
        former, self.generation = self.name, self.generation + 1
        self.truth, self.acked, self.complete = b"", 0, False
        assert self.store.open(self.path, self.name, None, None) == Progress(0, complete=False)
        if self.generation > 1:
            for ask in (self.store.open, lambda path, name, *_: self.store.progress(path, name)):
                with pytest.raises(SupersededError):
                    ask(self.path, former, None, None)

    @rule(data=SOME, share=SHARE, last=st.booleans())
    @precondition(lambda self: not self.complete)
    def a_part_arrives(self, data: bytes, share: float, last: bool) -> None:
        self.truth += data
        self.told(self.part(share, last=last))

    @rule(data=SOME, share=SHARE, last=st.booleans(), calls=STEPS, failure=st.sampled_from([Killed, disk_full]))
    @precondition(lambda self: not self.complete)
    def a_part_meets_a_death_or_a_full_disk(
        self, data: bytes, share: float, last: bool, calls: int, failure: Callable[[], BaseException]
    ) -> None:
        self.truth += data
        self.told(self.attempt(calls, failure, lambda: self.part(share, last=last)))

    @rule(share=SHARE)
    @precondition(lambda self: not self.complete)
    def a_part_arrives_and_its_answer_is_lost(self, share: float) -> None:
        self.part(share, last=False)

    @rule(share=SHARE)
    @precondition(lambda self: not self.complete)
    def a_part_is_damaged_on_its_way(self, share: float) -> None:
        with pytest.raises(VerificationError):
            offset = self.asked().offset
            self.send(offset, bytes(len(self.rest(offset, share)) + 1), last=False, sound=False)

    @rule(off=OFF, data=SOME, last=st.booleans())
    def a_part_that_is_not_next_is_refused_with_the_truth(self, off: float, data: bytes, last: bool) -> None:
        """A duplicate, one that was overtaken on its way, or one of a sender that has lost count."""
        now = self.asked()
        offset = max(0, round(now.offset * off + off - 1))
        if offset != now.offset or now.complete:
            with pytest.raises(OffsetMismatch) as caught:
                self.send(offset, data, last=last)
            assert caught.value.progress == now

    @rule()
    def the_bridge_is_killed_and_started(self) -> None:
        self.killed()

    @rule(keep=SHARE)
    def somebody_cuts_the_file_on_the_laptop(self, keep: float) -> None:
        """Then it is not there any more: what the VM still has of this generation comes again."""
        content = self.on_laptop()
        content = content[: int(len(content) * keep)]
        self.target.parent.mkdir(exist_ok=True)
        self.target.write_bytes(content)
        self.past = content[: len(self.past)]
        self.acked = min(self.acked, max(0, len(content) - len(self.past)))

    # --- what holds ---------------------------------------------------------------------------------------

    @invariant()
    def the_file_is_a_prefix_of_what_was_written(self) -> None:
        found = self.on_laptop()
        assert (self.past + self.truth).startswith(found)
        assert len(found) >= len(self.past) + self.acked

    @invariant()
    def the_offset_is_the_truth(self) -> None:
        if self.generation:
            assert self.asked().offset == len(self.on_laptop()) - len(self.past)

    def asked(self) -> Progress:
        return self.store.open(self.path, self.name, None, None)

    def rest(self, offset: int, share: float) -> bytes:
        left = self.truth[offset:]
        return left[: round(len(left) * share)]

    def part(self, share: float, *, last: bool) -> Progress:
        offset = self.asked().offset
        data = self.rest(offset, share)
        last = last and offset + len(data) == len(self.truth)
        return self.send(offset, data, last=last)

    def teardown(self) -> None:
        try:
            if self.generation and not self.asked().complete:  # whatever happened before, a quiet line ends it well
                self.told(self.part(1.0, last=True))
                assert self.on_laptop() == self.past + self.truth and self.complete
        finally:
            super().teardown()


class SizedMachine(OffsetMachine):
    """A big artefact: a temp file that grows by verified parts, and a rename once the whole checks out."""

    path = "run/model"

    def __init__(self) -> None:
        super().__init__()
        self.truth = b""
        self.former = b""  # what the last complete upload left
        self.damaged = False  # the temp file, in a way that only the hash of the whole can find

    @initialize(data=WHOLE)
    def begin(self, data: bytes) -> None:
        self.another_version(data)

    @rule(data=WHOLE)
    def another_version(self, data: bytes) -> None:
        self.former = self.on_laptop()
        self.generation += 1
        self.truth, self.acked, self.complete, self.damaged = data, 0, False, False
        self.told(self.asked())

    @rule(size=SIZE)
    @precondition(lambda self: not self.asked().complete)
    def a_part_arrives(self, size: int) -> None:
        self.told(self.part(size))

    @rule(size=SIZE, calls=STEPS, failure=st.sampled_from([Killed, disk_full]))
    @precondition(lambda self: not self.asked().complete)
    def a_part_meets_a_death_or_a_full_disk(self, size: int, calls: int, failure: Callable[[], BaseException]) -> None:
        self.told(self.attempt(calls, failure, lambda: self.part(size)))
        if self.on_laptop() == self.truth:  # between the rename and the note of it: it is sent a second time
            self.acked = self.asked().offset

    @rule(size=SIZE)
    @precondition(lambda self: not self.asked().complete)
    def a_part_arrives_and_its_answer_is_lost(self, size: int) -> None:
        self.part(size)

    @rule(size=SIZE)
    @precondition(lambda self: not self.asked().complete)
    def a_part_is_damaged_on_its_way(self, size: int) -> None:
        offset = self.asked().offset
        with pytest.raises((VerificationError, UsageError)):
            self.send(offset, bytes(size + 1), last=False, sound=False)

    @rule(size=SIZE, more=SIZE)
    @precondition(lambda self: not self.asked().complete)
    def a_part_is_overtaken_by_its_own_repetition(self, size: int, more: int) -> None:
        """The connection of the first is dead and nobody has noticed; whatever it still brings does not count."""
        offset = self.asked().offset
        first = self.store.begin(self.path, self.name, offset, last=False)
        self.give(first, self.truth[offset : offset + size])
        self.told(self.part(more))
        with contextlib.suppress(UsageError), pytest.raises((OffsetMismatch, NotFoundError)):
            self.give(first, b"late")
            first.commit()
        first.drop()

    @rule(off=OFF, data=SOME, last=st.booleans())
    def a_part_that_is_not_next_is_refused_with_the_truth(self, off: float, data: bytes, last: bool) -> None:
        now = self.asked()
        offset = max(0, round(now.offset * off + off - 1))
        if offset != now.offset or now.complete:
            with pytest.raises(OffsetMismatch) as caught:
                self.send(offset, data, last=last)
            assert caught.value.progress == now

    @rule(share=st.sampled_from([0.0, 0.5, 0.9]))
    @precondition(lambda self: self.truth and not self.asked().complete)
    def the_last_part_of_a_source_that_got_shorter_is_refused(self, share: float) -> None:
        offset = self.asked().offset
        left = self.truth[offset:]
        if left:
            with pytest.raises(UsageError):
                self.send(offset, left[: int(len(left) * share)], last=True)

    @rule()
    def the_bridge_is_killed_and_started(self) -> None:
        self.killed()

    @rule(keep=SHARE)
    @precondition(lambda self: not self.asked().complete)
    def a_power_cut_takes_bytes_back(self, keep: float) -> None:
        """Of the temp file, which is synced only before its rename."""
        (temp,) = self.temps()
        size = int(temp.stat().st_size * keep)
        self.killed()
        os.truncate(temp, size)
        self.acked = min(self.acked, size)

    @rule(at=st.integers(0, 100))
    @precondition(lambda self: not self.asked().complete and self.acked)
    def a_power_cut_leaves_zeros(self, at: int) -> None:
        """No part shows it; the hash of the whole does, and then all of it is sent again."""
        (temp,) = self.temps()
        data = temp.read_bytes()
        at %= self.acked
        self.killed()
        temp.write_bytes(data[:at] + bytes(len(data) - at))
        self.damaged |= temp.read_bytes() != data

    # --- what holds ---------------------------------------------------------------------------------------

    @invariant()
    def the_file_is_the_former_or_the_whole_new_one(self) -> None:
        assert self.on_laptop() in (self.former, self.truth)

    @invariant()
    def complete_means_equal_and_the_offset_is_the_number_of_good_bytes(self) -> None:
        if not self.generation:
            return
        now = self.store.progress(self.path, self.name)
        assert now.offset >= self.acked
        if now.complete:
            assert self.on_laptop() == self.truth
            return
        for temp in self.temps():
            assert self.damaged or temp.read_bytes()[: now.offset] == self.truth[: now.offset]

    def asked(self) -> Progress:
        return self.store.open(self.path, self.name, len(self.truth), hashlib.sha256(self.truth).digest())

    def part(self, size: int) -> Progress:
        offset = self.asked().offset
        data = self.truth[offset : offset + size]
        try:
            return self.send(offset, data, last=offset + len(data) == len(self.truth))
        except VerificationError:
            assert self.damaged, "all that was sent was good"
            self.acked, self.damaged = 0, False
            return self.asked()

    def teardown(self) -> None:
        try:
            if self.generation and not self.asked().complete:
                while not self.complete:
                    self.told(self.part(len(self.truth)))
                assert self.on_laptop() == self.truth and self.complete
                assert not self.temps()
        finally:
            super().teardown()


TestGrowing = GrowingMachine.TestCase
TestSized = SizedMachine.TestCase
TestGrowing.settings = TestSized.settings = fuzz(40, stateful_step_count=30)
