"""Where the bridge is now: signed, numbered, and never taken from anybody else."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from bridgehead import announcement, signing
from bridgehead.announcement import Announcement
from bridgehead.errors import PairingError
from bridgehead.pairing import Pairing, decode

KEY, OTHER = bytes(range(32)), bytes(32)
TOLD = Announcement("demo", "https://new.example:8443/x", 5, 1796011344.5)
CODE = Pairing("https://old.example", "kid-1", KEY, "ab" * 32, seq=4)


def kept(told: Announcement, key: bytes = KEY) -> dict[str, Any]:
    return {"v": 1, "document": json.loads(json.dumps(told.signed(key)))}


def test_it_reads_back_from_its_document() -> None:
    assert announcement.opened([OTHER, KEY], json.loads(json.dumps(TOLD.signed(KEY)))) == TOLD
    assert TOLD.host == "new.example:8443"


def test_a_newer_one_moves_the_pairing_and_leaves_the_rest_of_it() -> None:
    moved = announcement.applied(CODE, kept(TOLD))
    assert moved == dataclasses.replace(CODE, url=TOLD.url, seq=5)


@pytest.mark.parametrize("seq", [1, 3, 4])
def test_one_that_is_no_newer_than_the_code_counts_for_nothing(seq: int) -> None:
    assert announcement.applied(CODE, kept(dataclasses.replace(TOLD, seq=seq))) == CODE


def test_a_code_of_before_is_older_than_any() -> None:
    before = dataclasses.replace(CODE, seq=0)
    assert announcement.applied(before, kept(dataclasses.replace(TOLD, seq=1))).url == TOLD.url


def test_one_that_was_signed_before_the_key_was_rotated_still_counts() -> None:
    rotated = dataclasses.replace(CODE, key=OTHER, key_id="kid-2", former=(KEY,))
    assert announcement.applied(rotated, kept(TOLD)).url == TOLD.url


@pytest.mark.parametrize("record", [None, [], {}, {"document": None}, {"document": TOLD.signed(OTHER)}])
def test_what_is_none_of_this_laptops_leaves_the_code_as_it_is(record: object) -> None:
    assert announcement.applied(CODE, record) == CODE


def test_another_kind_of_document_is_no_announcement() -> None:
    with pytest.raises(PairingError):
        announcement.opened([KEY], signing.sign_document(KEY, "hints", TOLD.body()))


@pytest.mark.parametrize(
    "change",
    [
        {"url": "javascript:alert(1)"},
        {"url": "https://user:pass@host"},
        {"url": "https://host/?key=1"},
        {"url": "https://host:99999"},
        {"url": "https://[::1"},
        {"url": "https://"},
        {"url": "https://" + "a" * 600},
        {"url": 7},
        {"seq": 0},
        {"seq": -1},
        {"seq": True},
        {"seq": 2**53},
        {"seq": "5"},
        {"seq": 1e300},
        {"project": None},
        {"v": 2},
    ],
)
def test_one_that_is_signed_and_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(PairingError):
        announcement.opened([KEY], signing.sign_document(KEY, announcement.KIND, {**TOLD.body(), **change}))


def test_one_that_is_nested_without_end_is_refused() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(PairingError):
        announcement.opened([KEY], {"kind": announcement.KIND, "body": deep, "sig": "0"})


def test_the_next_number_grows_and_is_at_least_the_time() -> None:
    assert announcement.next_seq(0, 1000.9) == 1000
    assert announcement.next_seq(1000, 1000.9) == 1001, "two within a second"
    assert announcement.next_seq(5000, 1000.0) == 5001, "a clock that was put back"


def test_the_code_bears_the_number_of_its_address() -> None:
    assert decode(CODE.encode()).seq == 4
    assert "seq" not in json.loads(_raw(dataclasses.replace(CODE, seq=0)))


def _raw(pairing: Pairing) -> bytes:
    import base64

    text = pairing.encode().removeprefix("bh1.")
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
