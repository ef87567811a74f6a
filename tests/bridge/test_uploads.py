"""What arrives is whole and as it was sent, or not there at all; what was cut goes on where it stopped."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge import bodies
from bridge_client import VM, Client, LiveBridge, Uploader, live_bridge
from bridgehead import names
from support import wait_until

BLOB = os.urandom(3 * 2**20)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBridge]:
    with live_bridge(tmp_path_factory.mktemp("project")) as bridge:
        yield bridge


@pytest.fixture
def run_id(live: LiveBridge) -> str:
    return live.given_run()


def offset(answer: object) -> int:
    return int(answer.headers[names.HEADER_OFFSET])  # type: ignore[attr-defined]


def folder_of(live: LiveBridge, run_id: str) -> Path:
    return live.arrivals / run_id


def file_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


# --- whole files ------------------------------------------------------------------------------------


def test_a_put_file_arrives_and_is_replaced(client: Client, live: LiveBridge, run_id: str) -> None:
    uploader = Uploader(client, run_id, "artifacts/encoder.pt")
    assert uploader.put(BLOB).status == 201
    assert (folder_of(live, run_id) / "artifacts/encoder.pt").read_bytes() == BLOB
    assert uploader.put(b"").status == 204
    assert (folder_of(live, run_id) / "artifacts/encoder.pt").read_bytes() == b""


def test_a_put_that_is_cut_leaves_the_old_file_and_nothing_else(client: Client, live: LiveBridge, run_id: str) -> None:
    uploader = Uploader(client, run_id, "results.json")
    uploader.put(b"old")
    headers = client.signed("PUT", uploader.target, BLOB) | {"Content-Length": str(len(BLOB))}
    with client.half_sent("PUT", uploader.target, headers, BLOB[: 2 * 2**20]):
        wait_until(lambda: len(file_names(folder_of(live, run_id))) == 2, what="the temp file")
    wait_until(lambda: file_names(folder_of(live, run_id)) == ["results.json"], what="the temp file to go")
    assert (folder_of(live, run_id) / "results.json").read_bytes() == b"old"


def test_a_put_with_another_body_than_signed_leaves_the_old_file(client: Client, live: LiveBridge, run_id: str) -> None:
    uploader = Uploader(client, run_id, "results.json")
    uploader.put(b"old")
    answer = client.send("PUT", uploader.target, b"evil", client.signed("PUT", uploader.target, b"good"))
    assert (answer.status, answer.code) == (400, "verification")
    assert file_names(folder_of(live, run_id)) == ["results.json"]
    assert (folder_of(live, run_id) / "results.json").read_bytes() == b"old"


def test_a_put_over_the_limit_is_refused_before_its_body(client: Client, run_id: str) -> None:
    target = Uploader(client, run_id, "big").target
    headers = client.signed("PUT", target) | {"Content-Length": str(names.PUT_MAX_BYTES + 1)}
    assert client.head_only("PUT", target, headers).status == 413


def test_a_chunked_put_is_taken_and_limited(client: Client, live: LiveBridge, run_id: str) -> None:
    target = Uploader(client, run_id, "chunked").target
    headers = client.signed("PUT", target, b"hello") | {"Transfer-Encoding": "chunked"}
    with client.half_sent("PUT", target, headers, b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n") as sock:
        assert sock.recv(100).startswith(b"HTTP/1.1 201")
    assert (folder_of(live, run_id) / "chunked").read_bytes() == b"hello"


def test_a_compressed_body_is_refused(client: Client, run_id: str) -> None:
    target = Uploader(client, run_id, "bomb").target
    headers = client.signed("PUT", target, b"x") | {"Content-Encoding": "gzip"}
    assert client.send("PUT", target, b"x", headers).status == 415


def test_permission_to_send_is_given_once_the_head_is_right(client: Client, run_id: str) -> None:
    target = Uploader(client, run_id, "asked").target
    headers = client.signed("PUT", target, b"hello") | {"Content-Length": "5", "Expect": "100-continue"}
    with client.half_sent("PUT", target, headers, b"") as sock:
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"hello")
        assert sock.recv(100).startswith(b"HTTP/1.1 201")


@pytest.mark.parametrize("announced_bytes", [9, len(BLOB)], ids=["through aiohttp", "from the socket"])
def test_a_body_that_stalls_is_dropped(
    client: Client, live: LiveBridge, run_id: str, monkeypatch: pytest.MonkeyPatch, announced_bytes: int
) -> None:
    monkeypatch.setattr(bodies, "STALL_S", 0.2)
    target = Uploader(client, run_id, "stalled").target
    headers = client.signed("PUT", target) | {"Content-Length": str(announced_bytes)}
    with client.half_sent("PUT", target, headers, b"half") as sock:
        assert sock.recv(100).startswith(b"HTTP/1.1 408")
    assert file_names(folder_of(live, run_id)) == []


def test_a_full_disk_is_told_before_the_body_is_read(
    client: Client, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2**20))
    target = Uploader(client, run_id, "none").target
    answer = client.head_only("PUT", target, client.signed("PUT", target) | {"Content-Length": str(2**20)})
    assert (answer.status, answer.code) == (507, "transfer")


# --- growing files ------------------------------------------------------------------------------------


def test_a_log_grows_part_by_part(client: Client, live: LiveBridge, run_id: str) -> None:
    log = Uploader(client, run_id, "log")
    opened = log.open("1")
    assert (opened.status, offset(opened)) == (201, 0)
    assert f"max-append-size={names.PART_MAX_BYTES}" in opened.headers[names.HEADER_LIMIT]
    assert offset(log.patch("1", 0, b"one\n")) == 4
    assert (folder_of(live, run_id) / "log").read_bytes() == b"one\n"
    last = log.patch("1", 4, b"two\n", last=True)
    assert (last.status, offset(last), last.headers[names.HEADER_COMPLETE]) == (204, 8, "?1")
    assert (folder_of(live, run_id) / "log").read_bytes() == b"one\ntwo\n"
    assert log.head("1").headers[names.HEADER_COMPLETE] == "?1"


def test_a_wrong_offset_is_answered_with_the_real_one(client: Client, live: LiveBridge, run_id: str) -> None:
    log = Uploader(client, run_id, "log")
    log.open("1")
    log.patch("1", 0, b"12345")
    for wrong in (0, 4, 6, 10**14):
        answer = log.patch("1", wrong, b"x")
        assert (answer.status, offset(answer)) == (409, 5)
    assert (folder_of(live, run_id) / "log").read_bytes() == b"12345"


def test_opening_again_tells_the_offset(client: Client, run_id: str) -> None:
    log = Uploader(client, run_id, "log")
    log.open("1")
    log.patch("1", 0, b"12345")
    assert offset(log.open("1")) == 5
    assert (log.head("1").status, offset(log.head("1"))) == (204, 5)


def test_generations_follow_one_another_in_one_file(client: Client, live: LiveBridge, run_id: str) -> None:
    log = Uploader(client, run_id, "log")
    log.open("1:vm-a")
    log.patch("1:vm-a", 0, b"first life\n")
    assert offset(log.open("2:vm-b")) == 0
    assert offset(log.patch("2:vm-b", 0, b"second")) == 6
    for answer in (log.patch("1:vm-a", 11, b"late"), log.open("1:vm-a")):
        assert (answer.status, answer.code) == (409, "superseded")
    assert (folder_of(live, run_id) / "log").read_bytes() == b"first life\nsecond"


def test_a_removed_log_is_sent_again_from_its_generation_on(client: Client, live: LiveBridge, run_id: str) -> None:
    log = Uploader(client, run_id, "log")
    log.open("1")
    log.patch("1", 0, b"first life\n")
    log.open("2")
    log.patch("2", 0, b"second")
    (folder_of(live, run_id) / "log").unlink()
    answer = log.patch("2", 6, b" life\n")
    assert (answer.status, offset(answer)) == (409, 0)
    assert offset(log.patch("2", 0, b"second life\n")) == 12
    assert (folder_of(live, run_id) / "log").read_bytes() == b"second life\n"


def test_a_part_that_is_cut_leaves_nothing(client: Client, live: LiveBridge, run_id: str) -> None:
    log = Uploader(client, run_id, "log")
    log.open("1")
    log.patch("1", 0, b"kept\n")
    headers = log.part_headers("1", 5)
    headers = client.signed("PATCH", log.target, BLOB, headers) | {"Content-Length": str(len(BLOB))}
    with client.half_sent("PATCH", log.target, headers, BLOB[: 2**20]) as sock:
        sock.shutdown(socket.SHUT_WR)
        sock.recv(1000)
    assert (folder_of(live, run_id) / "log").read_bytes() == b"kept\n"
    assert offset(log.patch("1", 5, b"goes on\n")) == 13


def test_a_part_that_hangs_does_not_hold_up_the_next(client: Client, live: LiveBridge, run_id: str) -> None:
    log = Uploader(client, run_id, "log")
    log.open("1")
    headers = client.signed("PATCH", log.target, BLOB, log.part_headers("1", 0)) | {"Content-Length": str(len(BLOB))}
    with client.half_sent("PATCH", log.target, headers, BLOB[:1000]):
        assert offset(log.patch("1", 0, b"ahead\n")) == 6


def test_a_damaged_part_leaves_nothing(client: Client, live: LiveBridge, run_id: str) -> None:
    log = Uploader(client, run_id, "log")
    log.open("1")
    headers = client.signed("PATCH", log.target, b"good", log.part_headers("1", 0))
    assert client.send("PATCH", log.target, b"evil", headers).status == 400
    assert offset(log.head("1")) == 0


def test_two_parts_for_one_place_are_taken_once(client: Client, live: LiveBridge, run_id: str) -> None:
    log = Uploader(client, run_id, "log")
    log.open("1")
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda mark=mark: answers.append(log.patch("1", 0, mark * 200_000).status))
        for mark in (b"a", b"b", b"c", b"d")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert sorted(answers) == [204, 409, 409, 409]
    content = (folder_of(live, run_id) / "log").read_bytes()
    assert (len(content), len(set(content))) == (200_000, 1)


def test_a_part_over_the_limit_is_refused_before_its_body(client: Client, run_id: str) -> None:
    log = Uploader(client, run_id, "log")
    log.open("1")
    headers = client.signed("PATCH", log.target, b"", log.part_headers("1", 0))
    answer = client.head_only("PATCH", log.target, headers | {"Content-Length": str(names.PART_MAX_BYTES + 1)})
    assert answer.status == 413


# --- sized uploads ---------------------------------------------------------------------------------------


def test_a_sized_upload_appears_when_it_is_whole(client: Client, live: LiveBridge, run_id: str) -> None:
    big = Uploader(client, run_id, "bundle/model.onnx")
    half = len(BLOB) // 2
    assert big.open("1", length=len(BLOB), digest=hashlib.sha256(BLOB).digest()).status == 201
    assert offset(big.patch("1", 0, BLOB[:half])) == half
    assert not (folder_of(live, run_id) / "bundle/model.onnx").exists()
    assert offset(big.open("1", length=len(BLOB), digest=hashlib.sha256(BLOB).digest())) == half
    assert big.patch("1", half, BLOB[half:], last=True).status == 204
    assert (folder_of(live, run_id) / "bundle/model.onnx").read_bytes() == BLOB
    assert file_names(folder_of(live, run_id)) == ["model.onnx"]


def test_a_lost_last_answer_can_be_asked_for_again(client: Client, run_id: str) -> None:
    big = Uploader(client, run_id, "model")
    digest = hashlib.sha256(b"whole").digest()
    big.open("1", length=5, digest=digest)
    big.patch("1", 0, b"whole", last=True)
    again = big.patch("1", 0, b"whole", last=True)
    assert (again.status, offset(again), again.headers[names.HEADER_COMPLETE]) == (409, 5, "?1")
    opened = big.open("1", length=5, digest=digest)
    assert (offset(opened), opened.headers[names.HEADER_COMPLETE]) == (5, "?1")


def test_a_whole_with_a_wrong_hash_is_thrown_away(client: Client, live: LiveBridge, run_id: str) -> None:
    big = Uploader(client, run_id, "model")
    big.put(b"old")
    big.open("1", length=5, digest=hashlib.sha256(b"other").digest())
    answer = big.patch("1", 0, b"whole", last=True)
    assert (answer.status, answer.code) == (400, "verification")
    assert offset(big.head("1")) == 0
    assert (folder_of(live, run_id) / "model").read_bytes() == b"old"
    assert file_names(folder_of(live, run_id)) == ["model"]


@pytest.mark.parametrize(("body", "last"), [(b"too long", False), (b"shrt", True)])
def test_a_part_that_does_not_fit_the_length_is_refused(client: Client, run_id: str, body: bytes, last: bool) -> None:
    big = Uploader(client, run_id, "model")
    big.open("1", length=5)
    assert big.patch("1", 0, body, last=last).status == 400
    assert offset(big.head("1")) == 0


def test_another_file_of_the_same_name_starts_anew(client: Client, live: LiveBridge, run_id: str) -> None:
    big = Uploader(client, run_id, "model")
    big.open("1", length=5, digest=hashlib.sha256(b"first").digest())
    big.patch("1", 0, b"fir")
    assert offset(big.open("1", length=6, digest=hashlib.sha256(b"second").digest())) == 0
    big.patch("1", 0, b"second", last=True)
    assert file_names(folder_of(live, run_id)) == ["model"]


def test_an_empty_sized_upload_arrives(client: Client, live: LiveBridge, run_id: str) -> None:
    big = Uploader(client, run_id, "empty")
    big.open("1", length=0)
    assert big.patch("1", 0, b"", last=True).status == 204
    assert (folder_of(live, run_id) / "empty").read_bytes() == b""


def test_an_upload_larger_than_the_disk_is_refused(client: Client, run_id: str) -> None:
    assert Uploader(client, run_id, "model").open("1", length=10**14).status == 507


def test_a_forgotten_upload_leaves_nothing(client: Client, live: LiveBridge, run_id: str) -> None:
    big = Uploader(client, run_id, "model")
    big.open("1", length=10)
    big.patch("1", 0, b"12345")
    assert big.delete().status == 204
    assert file_names(folder_of(live, run_id)) == []
    assert (big.head("1").status, big.delete().status) == (404, 404)


# --- who may write -----------------------------------------------------------------------------------------


def test_only_the_vm_and_attempt_that_have_the_run_may_write(client: Client, run_id: str) -> None:
    for vm, attempt in ((VM, 2), ("vm-other", 1)):
        answer = Uploader(client, run_id, "log", vm=vm, attempt=attempt).put(b"late")
        assert (answer.status, answer.code) == (409, "superseded")


def test_a_run_that_nobody_knows_takes_nothing(client: Client, live: LiveBridge) -> None:
    answer = Uploader(client, "pretrain-0099-aaaaaa", "log").put(b"x")
    assert (answer.status, answer.code) == (404, "not_found")
    assert not folder_of(live, "pretrain-0099-aaaaaa").exists()


def test_a_part_without_an_opened_upload_is_not_taken(client: Client, run_id: str) -> None:
    assert Uploader(client, run_id, "log").patch("1", 0, b"x").status == 404


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (names.HEADER_OFFSET, "-1"),
        (names.HEADER_OFFSET, "0x1"),
        (names.HEADER_OFFSET, "9" * 30),
        (names.HEADER_COMPLETE, "1"),
        (names.HEADER_GENERATION, "../1"),
        (names.HEADER_GENERATION, ""),
        ("Content-Type", "text/plain"),
    ],
)
def test_headers_that_make_no_sense_are_refused(client: Client, run_id: str, name: str, value: str) -> None:
    log = Uploader(client, run_id, "log")
    log.open("1")
    answer = client.ask("PATCH", log.target, b"x", log.part_headers("1", 0) | {name: value})
    assert (answer.status, answer.code) == (400, "usage")


def test_what_is_larger_than_the_disk_is_told_with_both_sizes(client: Client, run_id: str) -> None:
    answer = Uploader(client, run_id, "artifacts/huge").open("g", length=10**15 - 1)
    message = answer.json["error"]["message"]
    assert answer.status == 507 and "room for" in message and "931322.6 GiB" in message
    too_long = Uploader(client, run_id, "artifacts/huge").open("g", length=10**15)
    assert too_long.status == 400 and "at most 15 digits" in too_long.json["error"]["message"]
