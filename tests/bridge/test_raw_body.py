"""Bodies that bypass aiohttp: nobody who sleeps, leaves or tries again holds up anything, and what counts is whole."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.client
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge import bodies, raw_body, upload_store
from bridge_client import Client, LiveBridge, Uploader, live_bridge
from bridgehead import names
from support import wait_until

BLOB = os.urandom(3 * 2**20 + 12345)
BIG = bytes(range(256)) * 2**18  # 64 MiB, more than two sockets hold
FILE = "/serve/payload/data/big.bin"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBridge]:
    root = tmp_path_factory.mktemp("project")
    (root / "data").mkdir()
    (root / "data/big.bin").write_bytes(BIG)
    with live_bridge(root) as bridge:
        yield bridge


@pytest.fixture
def big(client: Client, live: LiveBridge) -> Uploader:
    uploader = Uploader(client, live.given_run(), "artifacts/model")
    uploader.open("1", length=2 * len(BLOB))
    return uploader


def folder_of(live: LiveBridge, uploader: Uploader) -> Path:
    return live.arrivals / uploader.target.split("/")[2] / "artifacts"


def temp_size(live: LiveBridge, uploader: Uploader) -> int:
    return sum(path.stat().st_size for path in folder_of(live, uploader).iterdir())


def offset(answer: object) -> int:
    return int(answer.headers[names.HEADER_OFFSET])  # type: ignore[attr-defined]


def part_head(client: Client, uploader: Uploader, at: int) -> dict[str, str]:
    headers = client.signed("PATCH", uploader.target, BLOB, uploader.part_headers("1", at))
    return headers | {"Content-Length": str(len(BLOB))}


def all_free() -> bool:
    return not raw_body._under_way


# --- parts --------------------------------------------------------------------------------------------


def test_a_big_part_arrives_as_it_was_sent(client: Client, live: LiveBridge, big: Uploader) -> None:
    assert offset(big.patch("1", 0, BLOB)) == len(BLOB)
    assert big.patch("1", len(BLOB), BLOB, last=True).status == 204
    assert (folder_of(live, big) / "model").read_bytes() == BLOB * 2


def test_a_big_part_is_written_while_it_arrives_and_goes_when_it_is_cut(
    client: Client, live: LiveBridge, big: Uploader
) -> None:
    big.patch("1", 0, BLOB)
    with client.half_sent("PATCH", big.target, part_head(client, big, len(BLOB)), BLOB[: 2 * 2**20]):
        wait_until(lambda: temp_size(live, big) > len(BLOB), what="the first bytes")
        assert offset(big.head("1")) == len(BLOB)
    wait_until(lambda: temp_size(live, big) == len(BLOB), what="the cut")
    assert big.patch("1", len(BLOB), BLOB, last=True).status == 204


def test_a_damaged_big_part_leaves_the_verified_offset(client: Client, live: LiveBridge, big: Uploader) -> None:
    big.patch("1", 0, BLOB)
    damaged = BLOB[:-1] + bytes([BLOB[-1] ^ 1])
    answer = client.send("PATCH", big.target, damaged, part_head(client, big, len(BLOB)))
    assert (answer.status, answer.code) == (400, "verification")
    assert (offset(big.head("1")), temp_size(live, big)) == (len(BLOB), len(BLOB))


def test_a_part_that_hangs_is_overtaken_by_the_next_try(client: Client, live: LiveBridge, big: Uploader) -> None:
    with client.half_sent("PATCH", big.target, part_head(client, big, 0), BLOB[: 2 * 2**20]) as sock:
        wait_until(lambda: temp_size(live, big) > 0, what="the first bytes")
        assert offset(big.patch("1", 0, BLOB)) == len(BLOB)
        sock.sendall(BLOB[2 * 2**20 :])
        answer = http.client.HTTPResponse(sock, method="PATCH")
        answer.begin()
        assert (answer.status, offset(answer)) == (409, len(BLOB))
    assert big.patch("1", len(BLOB), BLOB, last=True).status == 204
    assert (folder_of(live, big) / "model").read_bytes() == BLOB * 2


def test_two_big_parts_for_one_place_are_taken_once(client: Client, live: LiveBridge, big: Uploader) -> None:
    statuses: list[int] = []
    threads = [threading.Thread(target=lambda: statuses.append(big.patch("1", 0, BLOB).status)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert sorted(statuses) == [204, 409, 409, 409]
    assert big.patch("1", len(BLOB), BLOB, last=True).status == 204
    assert (folder_of(live, big) / "model").read_bytes() == BLOB * 2


def test_uploads_of_different_files_go_on_at_once(client: Client, live: LiveBridge) -> None:
    run_id = live.given_run()
    uploaders = [Uploader(client, run_id, f"artifacts/model{number}") for number in range(3)]
    with contextlib.ExitStack() as stack:
        for uploader in uploaders:
            uploader.open("1", length=len(BLOB))
        for uploader in uploaders[:2]:
            head = part_head(client, uploader, 0)
            stack.enter_context(client.half_sent("PATCH", uploader.target, head, BLOB[: 2**20]))
        assert uploaders[2].patch("1", 0, BLOB, last=True).status == 204


def test_a_disk_that_fills_up_is_told_to_a_sender_that_sends_all_first(
    client: Client, live: LiveBridge, big: Uploader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    big.patch("1", 0, BLOB)
    with monkeypatch.context() as patched:
        patched.setattr(upload_store, "write_all", full)
        answer = big.patch("1", len(BLOB), BLOB)
    assert (answer.status, answer.code) == (507, "transfer")
    assert (offset(big.head("1")), temp_size(live, big)) == (len(BLOB), len(BLOB))


# --- files on their way out ---------------------------------------------------------------------------


def test_a_connection_is_good_for_the_next_request_after_a_big_file(client: Client, live: LiveBridge) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=20)
    with contextlib.closing(connection):
        for wanted in ("bytes=0-", "bytes=12345-23456789", "bytes=-5"):
            connection.request("GET", FILE, headers=client.signed("GET", FILE) | {"Range": wanted})
            if connection.sock is not None:
                ours = connection.sock.getsockname()
            answer = connection.getresponse()
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            expected = BIG[int(first) : int(last or len(BIG)) + 1] if first else BIG[-int(last) :]
            assert answer.read() == expected
            assert connection.sock is not None and connection.sock.getsockname() == ours


def test_two_downloads_at_once_are_whole(client: Client) -> None:
    bodies_got: list[str] = []
    threads = [
        threading.Thread(target=lambda: bodies_got.append(hashlib.sha256(client.get(FILE).body).hexdigest()))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert bodies_got == [hashlib.sha256(BIG).hexdigest()] * 2


def test_a_client_that_leaves_in_the_middle_frees_the_thread(client: Client) -> None:
    with client.half_sent("GET", FILE, client.signed("GET", FILE), b"") as sock:
        assert sock.recv(1000)
        wait_until(lambda: not all_free(), what="the thread to be taken")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(all_free, what="the thread to be free")
    assert client.get(FILE, Range="bytes=0-9").status == 206


def test_a_client_that_reads_no_more_is_cut_off(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "STALL_S", 0.2)
    with client.half_sent("GET", FILE, client.signed("GET", FILE), b"") as sock:
        got = len(sock.recv(1000))
        wait_until(lambda: not all_free(), what="the thread to be taken")
        wait_until(all_free, what="the thread to be free")
        with contextlib.suppress(ConnectionResetError):
            while piece := sock.recv(1 << 20):
                got += len(piece)
    assert got < len(BIG)


def test_a_client_that_sends_no_more_still_gets_the_whole_file(client: Client) -> None:
    with client.half_sent("GET", FILE, client.signed("GET", FILE), b"") as sock:
        head = sock.recv(1000)
        sock.shutdown(socket.SHUT_WR)
        got = len(head.partition(b"\r\n\r\n")[2])
        while piece := sock.recv(1 << 20):
            got += len(piece)
    assert got == len(BIG)


def test_many_slow_readers_hold_up_nobody_else(client: Client) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(2 * raw_body.BODIES_MAX):
            sock = stack.enter_context(client.half_sent("GET", FILE, client.signed("GET", FILE), b""))
            assert sock.recv(1000)
        assert hashlib.sha256(client.get(FILE).body).digest() == hashlib.sha256(BIG).digest()
    wait_until(all_free, what="the threads to be free")


def test_a_bridge_that_stops_calls_its_downloads_off(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/big.bin").write_bytes(BIG)
    with contextlib.ExitStack() as stack:
        with live_bridge(tmp_path) as bridge:
            client = bridge.client()
            sock = stack.enter_context(client.half_sent("GET", FILE, client.signed("GET", FILE), b""))
            assert sock.recv(1000)
            wait_until(lambda: not all_free(), what="the thread to be taken")
        wait_until(all_free, what="the thread to be free")
