"""How the payload comes down a line that is cut, that lies, or that knows no ranges."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import json
import os
import re
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bridgehead import blocks, packs, signing
from bridgehead.errors import TransferError, VerificationError
from bridgehead.packs import Part
from vm_daemons import payload, payload_ranges
from vm_daemons.client import BridgeClient
from vm_daemons.home import VmHome
from vm_daemons.payload_line import TRIES
from vm_support import KEY, paired_home, reply, scripted_server

Request = http.server.BaseHTTPRequestHandler
BIG = os.urandom(blocks.FROM_BYTES + 4 * blocks.LEAST_BYTES + 77)
SMALL = {f"data/{number}.txt": f"file {number}\n".encode() * 40 for number in range(20)}


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass
class Laptop:
    """Answers as the bridge does, but for what a test puts in between."""

    files: dict[str, bytes]
    pack: Callable[[Request, list[Part], bytes], None] | None = None
    content: Callable[[Request, bytes, int, int], None] | None = None
    manifests: int = 0
    asked: list[Any] = field(default_factory=list)  # parts of packs, and (start, end) of ranges
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, request: Request) -> None:
        nonce = re.search(r'nonce="([^"]+)"', request.headers["Signature-Input"])
        assert nonce is not None
        what = request.path.split("/")[2]
        if what == "manifest.json":
            self._manifest(request, nonce[1])
        elif what == "pack":
            self._pack(request)
        else:
            self._by_hash(request, nonce[1], *request.path.split("/")[2:])

    def _manifest(self, request: Request, nonce: str) -> None:
        self.manifests += 1
        listed = [
            {"path": path, "size": len(data), "sha256": _sha(data), "mode": 0o644} for path, data in self.files.items()
        ]
        body = {"reply_to": nonce, "project": "demo", "ship_sha256": "", "payload_sha256": "p", "requirements": []}
        self._signed(request, "manifest", {**body, "store": {}, "vm": {}, "files": listed})

    def _signed(self, request: Request, kind: str, body: dict[str, Any]) -> None:
        reply(request, 200, json.dumps(signing.sign_document(KEY, kind, body)).encode())

    def _pack(self, request: Request) -> None:
        document = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        request.headers.replace_header("Content-Length", "0")
        parts, _ = packs.read_request(document)
        with self.lock:
            self.asked.append(parts)
        body = packs.PLAIN + b"".join(map(self._frame, parts))
        if self.pack is not None:
            self.pack(request, parts, body)
        else:
            reply(request, 200, body)

    def _frame(self, part: Part) -> bytes:
        data = self._holder(part.sha256)
        if data is None:
            return packs.frame_head(packs.GONE)
        return packs.frame_head(part.length) + data[part.start : part.start + part.length]

    def _holder(self, sha256: str) -> bytes | None:
        return next((data for data in self.files.values() if _sha(data) == sha256), None)

    def _by_hash(self, request: Request, nonce: str, what: str, sha256: str) -> None:
        data = self._holder(sha256)
        if data is None:
            reply(request, 404, b"{}")
        elif what == "blocks":
            digests = [hashlib.sha256(data[start : start + size]).digest() for start, size in blocks.spans(len(data))]
            listed = base64.b64encode(b"".join(digests)).decode()
            self._signed(request, "blocks", {"reply_to": nonce, "sha256": sha256, "size": len(data), "blocks": listed})
        else:
            start, last = map(int, request.headers["Range"].removeprefix("bytes=").split("-"))
            with self.lock:
                self.asked.append((start, last + 1))
            if self.content is not None:
                self.content(request, data, start, last + 1)
            else:
                part(request, data, start, last + 1)


def part(request: Request, data: bytes, start: int, end: int, **headers: str) -> None:
    told = {"Content_Range": f"bytes {start}-{end - 1}/{len(data)}", "ETag": f'"{_sha(data)}"', **headers}
    reply(request, 206, data[start:end], **told)


def cut(request: Request, status: int, body: bytes, kept: int, **headers: str) -> None:
    reply(request, status, body[:kept], Content_Length=str(len(body)), **headers)
    request.close_connection = True


@contextlib.contextmanager
def synced(laptop: Laptop, root: Path) -> Iterator[tuple[BridgeClient, VmHome]]:
    with scripted_server(laptop) as url:
        home = paired_home(root / "vm", url=url)
        yield BridgeClient(home), home


def _holds(home: VmHome, files: dict[str, bytes]) -> bool:
    found = {path.relative_to(home.payload).as_posix(): path for path in home.payload.rglob("*") if path.is_file()}
    return {relative: path.read_bytes() for relative, path in found.items()} == files


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vm_daemons.payload_packs.Backoff.next_s", lambda _: 0.001)


# --- packs -------------------------------------------------------------------------------------------


def test_small_files_come_in_one_answer_and_an_empty_one_in_none(tmp_path: Path) -> None:
    laptop = Laptop({**SMALL, "data/empty": b""})
    with synced(laptop, tmp_path) as (client, home):
        told = payload.sync(client, home)
        assert _holds(home, laptop.files)
    assert [len(parts) for parts in laptop.asked] == [len(SMALL)]
    assert told["fetched"] == len(SMALL) + 1


def test_of_a_cut_pack_what_came_whole_is_not_fetched_again(tmp_path: Path) -> None:
    laptop = Laptop({f"data/{number}": os.urandom(50_000) for number in range(40)})

    def cut_once(request: Request, parts: list[Part], body: bytes) -> None:
        if len(laptop.asked) == 1:
            cut(request, 200, body, len(body) // 2)
        else:
            reply(request, 200, body)

    laptop.pack = cut_once
    with synced(laptop, tmp_path) as (client, home):
        payload.sync(client, home)
        assert _holds(home, laptop.files)
    first, second = laptop.asked
    assert 0 < len(second) < len(first) and second == first[-len(second) :]


def test_a_line_that_brings_nothing_ends_in_words_and_the_old_files_stay(tmp_path: Path) -> None:
    laptop = Laptop({"data/a": b"old"})
    with synced(laptop, tmp_path) as (client, home):
        payload.sync(client, home)
        laptop.files = {"data/a": b"new", "data/b": b"more"}
        laptop.asked.clear()
        laptop.pack = lambda request, parts, body: cut(request, 200, body, 0)
        with pytest.raises(TransferError, match="pack"):
            payload.sync(client, home)
        assert _holds(home, {"data/a": b"old"})
    assert len(laptop.asked) == TRIES


def test_a_page_of_the_tunnel_instead_of_a_pack_is_tried_again(tmp_path: Path) -> None:
    laptop = Laptop(SMALL)
    laptop.pack = lambda request, parts, body: reply(
        request, 200, b"<html>welcome</html>" if len(laptop.asked) == 1 else body
    )
    with synced(laptop, tmp_path) as (client, home):
        payload.sync(client, home)
        assert _holds(home, SMALL)


HOSTILE: dict[str, Callable[[list[Part], bytes], bytes]] = {
    "a part too many": lambda parts, body: body + packs.frame_head(3) + b"abc",
    "a longer part": lambda parts, body: body[:1] + packs.frame_head(parts[0].length + 1) + body[5:] + b"x",
    "a bomb": lambda parts, body: packs.DEFLATED + zlib.compress(bytes(50 * 2**20), 1),
    "more than an honest answer has": lambda parts, body: body + bytes(10 * 2**20),
}


@pytest.mark.parametrize("made", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_pack_is_refused_and_changes_nothing(
    tmp_path: Path, made: Callable[[list[Part], bytes], bytes]
) -> None:
    laptop = Laptop(SMALL, pack=lambda request, parts, body: reply(request, 200, made(parts, body)))
    with synced(laptop, tmp_path) as (client, home):
        with pytest.raises(VerificationError, match="pack"):
            payload.sync(client, home)
        assert _holds(home, {})
        assert not (tmp_path / "out").exists()


def test_an_endless_pack_is_read_no_further_than_an_honest_one(tmp_path: Path) -> None:
    sent = []

    def endless(request: Request, parts: list[Part], body: bytes) -> None:
        request.send_response(200)
        request.end_headers()
        request.close_connection = True
        with contextlib.suppress(OSError):
            while sum(sent) < 2**28:
                sent.append(len(body))
                request.wfile.write(body)

    with synced(Laptop(SMALL, pack=endless), tmp_path) as (client, home):
        with pytest.raises(VerificationError, match="more than was asked for"):
            payload.sync(client, home)
    assert sum(sent) < 2**28


def test_a_file_with_other_bytes_than_its_hash_is_named_and_the_old_one_stays(tmp_path: Path) -> None:
    laptop = Laptop({"data/a": b"old"})
    with synced(laptop, tmp_path) as (client, home):
        payload.sync(client, home)
        laptop.files = {"data/a": b"new"}
        laptop.pack = lambda request, parts, body: reply(request, 200, packs.PLAIN + packs.frame_head(3) + b"wen")
        with pytest.raises(VerificationError, match="data/a"):
            payload.sync(client, home)
        assert _holds(home, {"data/a": b"old"})


@pytest.mark.parametrize("data", [b"second", BIG[::-1]], ids=["small", "big"])
def test_a_file_that_changes_meanwhile_arrives_as_it_is_then(tmp_path: Path, data: bytes) -> None:
    laptop = Laptop({**SMALL, "data/x": b"first"} if len(data) < 100 else {**SMALL, "data/x": BIG})

    def change_first(request: Request, *args: Any) -> None:
        laptop.files["data/x"] = data
        laptop.pack = laptop.content = None
        if len(args) == 2:
            reply(request, 200, packs.PLAIN + b"".join(map(laptop._frame, args[0])))
        else:
            reply(request, 404, b"{}")

    laptop.pack, laptop.content = (change_first, None) if len(data) < 100 else (None, change_first)
    with synced(laptop, tmp_path) as (client, home):
        payload.sync(client, home)
        assert _holds(home, laptop.files)
    assert laptop.manifests == 2
    fetched = [part.sha256 for parts in laptop.asked if isinstance(parts, list) for part in parts]
    assert len(fetched) - len(set(fetched)) == 0, "what came before the change was fetched again"


# --- ranges -----------------------------------------------------------------------------------------


@pytest.fixture
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_ranges, "SEGMENT_BYTES", 4 * blocks.LEAST_BYTES)


@pytest.mark.usefixtures("short_segments")
def test_each_range_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    laptop = Laptop({"data/big": BIG})
    seen: set[int] = set()

    def cut_each_once(request: Request, data: bytes, start: int, end: int) -> None:
        with laptop.lock:
            first = start not in seen
            seen.add(end)
            seen.add(start)
        if first and start % (4 * blocks.LEAST_BYTES) == 0:
            told = {"Content_Range": f"bytes {start}-{end - 1}/{len(data)}", "ETag": f'"{_sha(data)}"'}
            cut(request, 206, data[start:end], (end - start) * 3 // 4, **told)
        else:
            part(request, data, start, end)

    laptop.content = cut_each_once
    with synced(laptop, tmp_path) as (client, home):
        payload.sync(client, home)
        assert _holds(home, laptop.files)
    again = [(start, end) for start, end in laptop.asked if start % (4 * blocks.LEAST_BYTES)]
    assert again and all(end - start < 4 * blocks.LEAST_BYTES for start, end in again)


@pytest.mark.usefixtures("short_segments")
def test_a_server_without_ranges_is_taken_from_the_start_by_one_connection(tmp_path: Path) -> None:
    laptop = Laptop({"data/big": BIG})
    laptop.content = lambda request, data, start, end: reply(request, 200, data, ETag=f'"{_sha(data)}"')
    with synced(laptop, tmp_path) as (client, home):
        payload.sync(client, home)
        assert _holds(home, laptop.files)


def test_another_version_in_the_middle_means_a_new_manifest(tmp_path: Path) -> None:
    laptop = Laptop({"data/big": BIG})

    def another(request: Request, data: bytes, start: int, end: int) -> None:
        laptop.files = {"data/big": BIG + b"new"}
        laptop.content = None
        reply(request, 200, BIG + b"new", ETag=f'"{_sha(BIG + b"new")}"')

    laptop.content = another
    with synced(laptop, tmp_path) as (client, home):
        payload.sync(client, home)
        assert _holds(home, {"data/big": BIG + b"new"})
    assert laptop.manifests == 2


WRONG = ["bytes 1-{last}/{size}", "bytes {start}-{end}/{size}", "bytes {start}-{last}/9", "bytes */{size}", ""]


@pytest.mark.parametrize("told", WRONG)
def test_another_range_than_asked_for_is_not_taken(tmp_path: Path, told: str) -> None:
    laptop = Laptop({"data/big": BIG})
    laptop.content = lambda request, data, start, end: part(
        request, data, start, end, Content_Range=told.format(start=start, last=end - 1, end=end, size=len(data))
    )
    with synced(laptop, tmp_path) as (client, home):
        with pytest.raises(TransferError, match="another range"):
            payload.sync(client, home)
        assert _holds(home, {})


def test_a_range_longer_than_asked_for_is_refused(tmp_path: Path) -> None:
    laptop = Laptop({"data/big": BIG})

    def longer(request: Request, data: bytes, start: int, end: int) -> None:
        told = {"Content_Range": f"bytes {start}-{end - 1}/{len(data)}", "ETag": f'"{_sha(data)}"'}
        reply(request, 206, data[start:end] + b"x", **told)

    laptop.content = longer
    with synced(laptop, tmp_path) as (client, home), pytest.raises(VerificationError, match="more of a payload file"):
        payload.sync(client, home)


def test_a_block_that_came_wrong_is_fetched_once_more(tmp_path: Path) -> None:
    laptop = Laptop({"data/big": BIG})

    def flip_once(request: Request, data: bytes, start: int, end: int) -> None:
        laptop.content = None
        told = {"Content_Range": f"bytes {start}-{end - 1}/{len(data)}", "ETag": f'"{_sha(data)}"'}
        sent = bytearray(data[start:end])
        sent[1_000_000] ^= 1
        reply(request, 206, bytes(sent), **told)

    laptop.content = flip_once
    with synced(laptop, tmp_path) as (client, home):
        payload.sync(client, home)
        assert _holds(home, laptop.files)
    (again,) = [parts for parts in laptop.asked if isinstance(parts, list)]
    assert [(part.start, part.length) for part in again] == [(3 * blocks.LEAST_BYTES, blocks.LEAST_BYTES)]


def test_a_file_that_never_comes_right_is_named_and_nothing_of_it_stays(tmp_path: Path) -> None:
    laptop = Laptop({"data/big": BIG})
    wrong = bytes(len(BIG))

    def lie(request: Request, data: bytes, start: int, end: int) -> None:
        told = {"Content_Range": f"bytes {start}-{end - 1}/{len(data)}", "ETag": f'"{_sha(data)}"'}
        reply(request, 206, wrong[start:end], **told)

    def lie_again(request: Request, parts: list[Part], body: bytes) -> None:
        reply(request, 200, body[:5] + bytes(len(body) - 5))

    laptop.content, laptop.pack = lie, lie_again
    with synced(laptop, tmp_path) as (client, home):
        with pytest.raises(VerificationError, match="data/big arrived with another hash"):
            payload.sync(client, home)
        assert _holds(home, {})
        assert list((home.state / "content").iterdir()) == []


def test_what_a_killed_sync_has_left_of_a_big_file_is_not_fetched_again(tmp_path: Path) -> None:
    laptop = Laptop({"data/big": BIG})
    with synced(laptop, tmp_path) as (client, home):
        folder = home.state / "content"
        folder.mkdir()
        there = bytearray(BIG[: 6 * blocks.LEAST_BYTES])
        there[0] ^= 1  # and a block of it is damaged
        (folder / f"{_sha(BIG)}.part").write_bytes(there)
        payload.sync(client, home)
        assert _holds(home, laptop.files)
    fetched = sum(
        sum(part.length for part in item) if isinstance(item, list) else item[1] - item[0] for item in laptop.asked
    )
    assert fetched == len(BIG) - 5 * blocks.LEAST_BYTES
