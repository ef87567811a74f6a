"""What a download gets: the file, one part of it, or word that nothing changed; never a mixture of two versions."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator

import pytest

from bridge_client import Client, LiveBridge, live_bridge
from bridgehead import names, signing

DATA = bytes(range(256)) * 8192  # 2 MiB
SHA256 = hashlib.sha256(DATA).hexdigest()
ETAG = f'"{SHA256}"'
FILE = "/serve/payload/data/blob.bin"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBridge]:
    root = tmp_path_factory.mktemp("project")
    (root / "data").mkdir()
    (root / "data/blob.bin").write_bytes(DATA)
    (root / "data/empty").write_bytes(b"")
    with live_bridge(root) as bridge:
        yield bridge


def test_a_file_comes_whole_with_its_hash_as_etag(client: Client) -> None:
    answer = client.get(FILE)
    assert (answer.status, answer.body) == (200, DATA)
    assert answer.headers["ETag"] == ETAG
    assert answer.headers["Cache-Control"] == "private, no-store, no-transform"
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Accept-Ranges"] == "bytes"


def test_head_tells_the_same_without_the_body(client: Client) -> None:
    answer = client.ask("HEAD", FILE, b"", {"Range": "bytes=0-9"})
    assert (answer.status, answer.body, answer.headers["Content-Length"]) == (200, b"", str(len(DATA)))


def test_an_empty_file_is_served(client: Client) -> None:
    assert (client.get("/serve/payload/data/empty").status, client.get("/serve/payload/data/empty").body) == (200, b"")


@pytest.mark.parametrize(
    ("wanted", "start", "end"),
    [
        ("bytes=0-9", 0, 9),
        ("bytes=1000000-", 1000000, len(DATA) - 1),
        ("bytes=-5", len(DATA) - 5, len(DATA) - 1),
        ("bytes=5-99999999", 5, len(DATA) - 1),
        ("bytes=-99999999", 0, len(DATA) - 1),
        ("bytes=0-", 0, len(DATA) - 1),
    ],
)
def test_one_range_is_served(client: Client, wanted: str, start: int, end: int) -> None:
    answer = client.get(FILE, Range=wanted)
    assert answer.status == 206
    assert answer.headers["Content-Range"] == f"bytes {start}-{end}/{len(DATA)}"
    assert answer.body == DATA[start : end + 1]


@pytest.mark.parametrize("wanted", ["bytes=0-1,5-9", "bytes=9-5", "lines=0-1", "bytes=-", "bytes=a-b", "bytes=1-2-3"])
def test_any_other_range_means_the_whole_file(client: Client, wanted: str) -> None:
    assert client.get(FILE, Range=wanted).status == 200


@pytest.mark.parametrize("wanted", [f"bytes={len(DATA)}-", "bytes=-0"])
def test_a_range_outside_the_file_is_refused(client: Client, wanted: str) -> None:
    answer = client.get(FILE, Range=wanted)
    assert (answer.status, answer.headers["Content-Range"]) == (416, f"bytes */{len(DATA)}")


@pytest.mark.parametrize(
    ("if_range", "status"),
    [(ETAG, 206), (f"W/{ETAG}", 200), ('"another"', 200), ("Wed, 21 Oct 2026 07:28:00 GMT", 200), ("", 200)],
)
def test_if_range_is_compared_strongly(client: Client, if_range: str, status: int) -> None:
    assert client.get(FILE, Range="bytes=0-9", If_Range=if_range).status == status


@pytest.mark.parametrize(("tags", "status"), [(ETAG, 304), (f'"x", W/{ETAG}', 304), ("*", 304), ('"another"', 200)])
def test_if_none_match_spares_the_download(client: Client, tags: str, status: int) -> None:
    assert client.get(FILE, If_None_Match=tags).status == status


def test_a_changed_file_of_the_same_size_has_another_etag(client: Client, live: LiveBridge) -> None:
    path = live.root / "data/changing"
    path.write_bytes(b"one")
    client.get("/serve/manifest.json")
    first = client.get("/serve/payload/data/changing")
    stamp = path.stat().st_mtime_ns
    path.write_bytes(b"two")
    os.utime(path, ns=(stamp, stamp))
    second = client.get("/serve/payload/data/changing", Range="bytes=0-", If_Range=first.headers["ETag"])
    assert (second.status, second.body) == (200, b"two")


def test_a_download_goes_on_from_the_file_it_began_with(client: Client, live: LiveBridge) -> None:
    path = live.root / "data/replaced"
    old = os.urandom(32 * 2**20)
    path.write_bytes(old)
    client.get("/serve/manifest.json")
    target = "/serve/payload/data/replaced"
    with client.half_sent("GET", target, client.signed("GET", target), b"") as sock:
        got = sock.recv(1000)
        temp = path.with_name("new")
        temp.write_bytes(bytes(1000))
        temp.replace(path)
        head, _, body = got.partition(b"\r\n\r\n")
        assert b"200 OK" in head
        pieces = [body]
        missing = len(old) - len(body)
        while missing:
            pieces.append(sock.recv(min(missing, 1 << 20)))
            assert pieces[-1], "the connection was closed early"
            missing -= len(pieces[-1])
    assert b"".join(pieces) == old


def test_a_file_that_gets_shorter_while_it_is_sent_ends_in_a_cut(client: Client, live: LiveBridge) -> None:
    path = live.root / "data/shrinking"
    path.write_bytes(bytes(64 * 2**20))
    client.get("/serve/manifest.json")
    target = "/serve/payload/data/shrinking"
    with client.half_sent("GET", target, client.signed("GET", target), b"") as sock:
        got = len(sock.recv(1000))
        os.truncate(path, 0)
        try:
            while piece := sock.recv(1 << 20):
                got += len(piece)
        except ConnectionResetError:
            pass
    assert got < 64 * 2**20
    assert client.get(FILE).status == 200


def test_the_boot_archive_is_what_the_pairing_code_says(client: Client, live: LiveBridge) -> None:
    answer = client.get("/serve/boot.zip")
    assert hashlib.sha256(answer.body).hexdigest() == live.bridge.pairing("https://example.com").boot_sha256
    assert client.get("/serve/boot.zip", Range="bytes=10-19").body == answer.body[10:20]


def test_the_manifest_is_signed_for_the_very_request(client: Client) -> None:
    headers = client.signed("GET", "/serve/manifest.json", nonce="this-very-request")
    document = client.send("GET", "/serve/manifest.json", b"", headers).json
    body = signing.open_document(client.key, "manifest", document)
    assert body["reply_to"] == "this-very-request"
    assert {entry["path"]: entry["sha256"] for entry in body["files"]}["data/blob.bin"] == SHA256
    assert (body["v"], body["project"], body["requirements"]) == (names.PROTOCOL, "demo", ["numpy"])
    assert len(body["ship_sha256"]) == 64


def test_there_is_no_listing_of_a_folder(client: Client) -> None:
    for target in ("/serve/payload/data", "/serve/payload/data/", "/serve/payload/", "/serve/", "/"):
        assert client.get(target).status in (400, 404)


def test_a_new_file_is_served_after_the_next_manifest(client: Client, live: LiveBridge) -> None:
    (live.root / "data/fresh").write_bytes(b"fresh")
    assert client.get("/serve/payload/data/fresh").status == 404
    client.get("/serve/manifest.json")
    assert client.get("/serve/payload/data/fresh").body == b"fresh"


def test_a_slow_reader_holds_nobody_up(client: Client, live: LiveBridge) -> None:
    with client.half_sent("GET", FILE, client.signed("GET", FILE), b""):
        assert client.get("/queue.txt").status == 200
