"""Many small files in one request: each is whole or not there, and told of by itself."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge import batches
from bridge_client import VM, Answer, Client, LiveBridge, live_bridge
from bridgehead import files, names

Item = tuple[str, bytes]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBridge]:
    with live_bridge(tmp_path_factory.mktemp("project")) as bridge:
        yield bridge


@pytest.fixture
def run_id(live: LiveBridge) -> str:
    return live.given_run()


def index(items: list[Item]) -> list[list[Any]]:
    return [[path, len(data), hashlib.sha256(data).hexdigest()] for path, data in items]


def send(client: Client, run_id: str, items: list[Item], *, ask: bool = False) -> Answer:
    data = b"" if ask else b"".join(data for _, data in items)
    return post(client, run_id, json.dumps(index(items)).encode() + b"\n" + data, ask=ask)


def post(client: Client, run_id: str, body: bytes, *, ask: bool = False) -> Answer:
    target = f"/in/{run_id}/?vm={VM}&attempt=1" + ("&ask=1" if ask else "")
    return client.ask("POST", target, body, {"Content-Type": names.BATCH_TYPE})


def arrived(live: LiveBridge, run_id: str) -> dict[str, bytes]:
    folder = live.arrivals / run_id
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_thousand_files_arrive_with_one_request(client: Client, live: LiveBridge, run_id: str) -> None:
    items = [(f"artifacts/{n % 7}/clip-{n}.bin", os.urandom(n % 300)) for n in range(1000)]
    answer = send(client, run_id, items)
    assert (answer.status, answer.json) == (200, {"files": [None] * 1000})
    assert arrived(live, run_id) == dict(items)


def test_they_replace_what_was_there(client: Client, live: LiveBridge, run_id: str) -> None:
    send(client, run_id, [("artifacts/a", b"old"), ("artifacts/b", b"stays")])
    send(client, run_id, [("artifacts/a", b"new")])
    assert arrived(live, run_id) == {"artifacts/a": b"new", "artifacts/b": b"stays"}


@pytest.mark.parametrize(
    "path", ["artifacts/../../x", "/etc/x", "artifacts/CON", "artifacts/a.", "artifacts/a b", "artifacts/a:b", ""]
)
def test_a_name_that_is_refused_keeps_no_other_file_from_arriving(
    client: Client, live: LiveBridge, run_id: str, path: str
) -> None:
    answer = send(client, run_id, [("artifacts/good", b"1"), (path, b"2"), ("artifacts/also", b"3")])
    first, refused, last = answer.json["files"]
    assert (first, refused["code"], last) == (None, "usage", None)
    assert arrived(live, run_id) == {"artifacts/good": b"1", "artifacts/also": b"3"}


def test_names_that_differ_in_case_alone_are_refused(client: Client, live: LiveBridge, run_id: str) -> None:
    answer = send(client, run_id, [("a/Model", b"1"), ("a/model", b"2"), ("A/other", b"3"), ("a/Model", b"4")])
    assert [error and error["code"] for error in answer.json["files"]] == [None, "usage", "usage", "usage"]
    answer = send(client, run_id, [("a/MODEL", b"5")])
    assert answer.json["files"][0]["code"] == "usage"
    assert arrived(live, run_id) == {"a/Model": b"1"}


def test_bytes_that_do_not_match_their_digest_are_not_renamed(client: Client, live: LiveBridge, run_id: str) -> None:
    wrong = index([("a/good", b"1234"), ("a/bad", b"5678")])
    wrong[1][2] = "0" * 64
    answer = post(client, run_id, json.dumps(wrong).encode() + b"\n12345678")
    assert answer.json["files"][1]["code"] == "verification"
    assert arrived(live, run_id) == {"a/good": b"1234"}


def test_a_link_on_the_way_is_not_followed(client: Client, live: LiveBridge, run_id: str, tmp_path: Path) -> None:
    (live.arrivals / run_id).mkdir()
    (live.arrivals / run_id / "a").symlink_to(tmp_path)
    (live.arrivals / run_id / "folder").mkdir()
    answer = send(client, run_id, [("a/x", b"1"), ("folder", b"2"), ("b", b"3"), ("b/c", b"4")])
    assert [error and error["code"] for error in answer.json["files"]] == ["usage", "usage", None, "usage"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]\n",
        b"{}\n",
        b'[["a",1]]\n1',
        b'[["a",true,"' + b"0" * 64 + b'"]]\n1',
        b'[["a",-1,"' + b"0" * 64 + b'"]]\n',
        b'[["a",2,"' + b"0" * 64 + b'"]]\n1',
        b'[["a",1,"' + b"0" * 64 + b'"]]\n12',
        b"[" * 5000 + b"\n",
        json.dumps(index([(f"f{n}", b"") for n in range(names.BATCH_MAX_FILES + 1)])).encode() + b"\n",
    ],
)
def test_what_is_no_batch_is_refused_whole(client: Client, live: LiveBridge, run_id: str, body: bytes) -> None:
    answer = post(client, run_id, body)
    assert (answer.status, answer.code) == (400, "usage")
    assert not (live.arrivals / run_id).exists()


def test_what_the_laptop_has_is_not_asked_for(client: Client, live: LiveBridge, run_id: str) -> None:
    items = [("a/one", b"one"), ("a/two", b"two")]
    send(client, run_id, items)
    asked = [*items, ("b/copy-of-one", b"one"), ("b/three", b"three")]
    assert send(client, run_id, asked, ask=True).json == {"have": [True, True, True, False]}
    assert arrived(live, run_id)["b/copy-of-one"] == b"one"
    (live.arrivals / run_id / "a/one").write_bytes(b"edited")
    assert send(client, run_id, [("a/two", b"two"), ("c", b"never sent")], ask=True).json == {"have": [True, False]}


def test_a_full_disk_leaves_nothing_behind(
    client: Client, live: LiveBridge, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(client, run_id, [("a/one", b"old")])
    real = os.write

    def full(fd: int, data: Any) -> int:
        if bytes(data) == b"no room":
            raise OSError(28, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(batches.os, "write", full)
    answer = send(client, run_id, [("a/one", b"new"), ("a/two", b"no room")])
    assert (answer.status, answer.code) == (507, "transfer")
    assert arrived(live, run_id) == {"a/one": b"old"}


def test_without_room_nothing_is_read(client: Client, run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2**20))
    assert send(client, run_id, [("a", b"1")]).status == 507


def test_where_the_system_can_not_flush_a_file_system_each_file_is_flushed(
    client: Client, live: LiveBridge, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    real = os.fsync
    monkeypatch.setattr(files, "sync_file_system", lambda folder: False)
    monkeypatch.setattr(batches.os, "fsync", lambda fd: (flushed.append(fd), real(fd))[1])
    assert send(client, run_id, [("a/one", b"1"), ("a/two", b"2")]).status == 200
    assert len(flushed) >= 3  # both files, and their folder
    assert arrived(live, run_id) == {"a/one": b"1", "a/two": b"2"}


def test_another_vm_is_refused(client: Client, live: LiveBridge, run_id: str) -> None:
    answer = client.ask("POST", f"/in/{run_id}/?vm=vm-other&attempt=1", b"[]\n", {"Content-Type": names.BATCH_TYPE})
    assert (answer.status, answer.code) == (409, "superseded")
