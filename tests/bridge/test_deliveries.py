"""What the bridge sends by hash: contents, lists of blocks and packs; and nothing that is not of the payload."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path

import pytest

from bridge_client import Answer, Client, LiveBridge
from bridgehead import blocks, files, packs, signing
from bridgehead.packs import Part

SMALL = b"print('hello')\n" * 20
BIG = os.urandom(blocks.FROM_BYTES + 1000)
OLD = (1_000_000_000, 1_000_000_000)


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(autouse=True)
def project(tmp_path: Path, live: LiveBridge, client: Client) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/small.py").write_bytes(SMALL)
    (tmp_path / "data/big.bin").write_bytes(BIG)
    client.get("/serve/manifest.json")
    return tmp_path / "data"


def _ask(client: Client, *parts: Part, deflate: bool = False) -> Answer:
    return client.ask("POST", "/serve/pack", files.canonical_json(packs.make_request(parts, deflate=deflate)))


def _parts_of(answer: Answer, *parts: Part) -> list[bytes | None]:
    assert answer.status == 200
    return [None if data is None else bytes(data) for _, data in packs.unpack(answer.body, parts)]


def test_a_content_comes_by_its_hash_with_ranges(client: Client) -> None:
    answer = client.get(f"/serve/content/{_sha(BIG)}", Range="bytes=5-9")
    assert (answer.status, answer.body, answer.headers["ETag"]) == (206, BIG[5:10], f'"{_sha(BIG)}"')
    assert client.get(f"/serve/content/{_sha(BIG)}").body == BIG


@pytest.mark.parametrize("change", ["touched", "replaced", "gone"])
def test_a_content_that_may_be_another_by_now_is_not_sent(client: Client, project: Path, change: str) -> None:
    path = project / "small.py"
    if change == "touched":
        os.utime(path, OLD)
    elif change == "replaced":
        (project / "new").write_bytes(SMALL[::-1])
        (project / "new").replace(path)
    else:
        path.unlink()
    part = Part(_sha(SMALL), 0, len(SMALL))
    assert client.get(f"/serve/content/{_sha(SMALL)}").status == 404
    assert _parts_of(_ask(client, part), part) == [None]


def test_a_content_that_is_named_no_more_is_not_sent(client: Client, live: LiveBridge, project: Path) -> None:
    (project / "small.py").rename(live.root / "secret.py")
    client.get("/serve/manifest.json")
    assert client.get(f"/serve/content/{_sha(SMALL)}").status == 404


def test_blocks_are_signed_for_the_very_request(client: Client) -> None:
    path = f"/serve/blocks/{_sha(BIG)}"
    document = client.send("GET", path, b"", client.signed("GET", path, nonce="this-very-request")).json
    told = signing.open_document(client.key, "blocks", document)
    assert (told["reply_to"], told["sha256"], told["size"]) == ("this-very-request", _sha(BIG), len(BIG))
    expected = [hashlib.sha256(BIG[start : start + length]).digest() for start, length in blocks.spans(len(BIG))]
    assert base64.b64decode(told["blocks"]) == b"".join(expected)


@pytest.mark.parametrize("path", ["content/", f"content/{'0' * 64}", "blocks/x", f"blocks/{'A' * 64}", "pack"])
def test_other_addresses_are_not_found(client: Client, path: str) -> None:
    assert client.get(f"/serve/{path}").status == 404


@pytest.mark.parametrize("deflate", [False, True])
def test_a_pack_holds_whole_files_and_parts_in_the_order_asked_for(client: Client, deflate: bool) -> None:
    asked = [
        Part(_sha(BIG), 1000, 50),
        Part(_sha(SMALL), 0, len(SMALL)),
        Part("0" * 64, 0, 5),
        Part(_sha(BIG), 0, 1 << 20),
    ]
    expected = [BIG[1000:1050], SMALL, None, BIG[: 1 << 20]]
    assert _parts_of(_ask(client, *asked, deflate=deflate), *asked) == expected


def test_a_pack_is_deflated_where_it_pays(client: Client) -> None:
    text, noise = Part(_sha(SMALL), 0, len(SMALL)), Part(_sha(BIG), 0, 100_000)
    assert _ask(client, text, deflate=True).body[:1] == packs.DEFLATED
    assert _ask(client, noise, deflate=True).body[:1] == packs.PLAIN
    assert _ask(client, text).body[:1] == packs.PLAIN


def test_a_part_beyond_the_end_of_a_file_is_gone(client: Client) -> None:
    part = Part(_sha(SMALL), len(SMALL) - 1, 2)
    assert _parts_of(_ask(client, part), part) == [None]


def test_a_pack_out_of_bounds_is_refused(client: Client) -> None:
    assert _ask(client, Part("0" * 64, 0, packs.CONTENT_MAX_BYTES + 1)).status == 400
    assert client.ask("POST", "/serve/pack", b"[]").status == 400
    assert client.ask("POST", "/serve/pack", b"{").status == 400


def test_a_stranger_gets_no_content(client: Client) -> None:
    for path in (f"/serve/content/{_sha(SMALL)}", f"/serve/blocks/{_sha(BIG)}"):
        assert client.send("GET", path, b"", {}).status == 401
    assert client.send("POST", "/serve/pack", b"{}", {}).status == 401


def test_a_file_that_was_touched_into_the_future_is_hashed_once(
    client: Client, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(project / "big.bin", (4e9, 4e9))
    client.get("/serve/manifest.json")
    monkeypatch.setattr("bridge.payload_hashes._hash", lambda *_: pytest.fail("hashed again"))
    os.utime(project / "small.py", OLD)
    (project / "small.py").unlink()
    assert client.get("/serve/manifest.json").status == 200
