"""The S3 store on a real S3 endpoint on loopback, alone and through a gate that spoils requests and answers."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bridgehead.errors import (
    NotFoundError,
    StoreDenied,
    UsageError,
    VerificationError,
)
from bridgehead.records import StoreSpec
from s3_rig import BUCKET, DEADLINE_S, KEYS, Exchange, Gate, boto, store_at
from support import wait_until
from vm_daemons.storage import s3_upload
from vm_daemons.storage.objects import ObjectStore, Stored
from vm_daemons.storage.pace import Bucket, PacedStore
from vm_daemons.storage.s3_store import S3Store

MIB = 1 << 20
KEY = "demo/runs/r/checkpoints/slot-a/step-3.pt"


@pytest.fixture
def store(gate: Gate) -> S3Store:
    return store_at(gate.url, prefix="team/x")


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 5 MiB, the least that S3 takes, so that a file of 11 MiB has three."""
    monkeypatch.setattr(s3_upload, "WHOLE_MAX_BYTES", 5 * MIB)
    monkeypatch.setattr(s3_upload, "PART_BYTES", 5 * MIB)


def _file(tmp_path: Path, size: int = 1000, name: str = "source") -> Path:
    path = tmp_path / name
    path.write_bytes(os.urandom(size))
    return path


def _digests(path: Path, key: str = KEY) -> Stored:
    data = path.read_bytes()
    return Stored(key, len(data), hashlib.md5(data).hexdigest(), hashlib.sha256(data).hexdigest())


def _unfinished(gate: Gate) -> list[str]:
    return [upload["Key"] for upload in boto(gate.url).list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])]


# --- what every object store does --------------------------------------------------------------------


def test_it_is_an_object_store(store: S3Store) -> None:
    typed: ObjectStore = store
    assert (typed.kind, typed.proves) == ("s3", True)
    assert "hidden" not in typed.where and "team/x" in typed.where


@pytest.mark.parametrize("size", [0, 1, 1000, 300_000])
def test_a_file_comes_back_as_it_was(store: S3Store, tmp_path: Path, size: int) -> None:
    source = _file(tmp_path, size)
    sent = store.put(KEY, source)
    assert sent == _digests(source)
    assert store.get(KEY, tmp_path / "back") == sent
    assert (tmp_path / "back").read_bytes() == source.read_bytes()
    assert store.find(KEY) == [sent]


def test_a_put_replaces_what_was_there(store: S3Store, tmp_path: Path) -> None:
    store.put_bytes(KEY, b"old and longer")
    sent = store.put(KEY, _file(tmp_path))
    assert store.find(KEY) == [sent]


def test_keys_with_every_character_that_paths_allow(store: S3Store) -> None:
    key = "demo/a+b=c@d_e-f.g/_x"
    store.put_bytes(key, b"x")
    assert store.read(key, 10) == b"x"
    assert store.list("demo/a+b=c@d_e-f.g") == ["_x"]


def test_what_is_not_there(store: S3Store, tmp_path: Path) -> None:
    assert store.read(KEY, 10) is None
    assert store.find(KEY) == []
    assert store.list("demo/runs") == []
    store.delete(KEY)
    with pytest.raises(NotFoundError):
        store.get(KEY, tmp_path / "back")
    assert list(tmp_path.iterdir()) == []


def test_a_record_larger_than_allowed_is_refused(store: S3Store) -> None:
    store.put_bytes(KEY, b"x" * 11)
    assert store.read(KEY, 11) == b"x" * 11
    with pytest.raises(VerificationError):
        store.read(KEY, 10)


def test_a_list_names_folders_and_objects_once_and_nothing_outside_the_prefix(gate: Gate, store: S3Store) -> None:
    for key in ("demo/a/x", "demo/a/y", "demo/b", "demo/b/z", "demos/c"):
        store.put_bytes(key, b"1")
    store_at(gate.url).put_bytes("team/xx/no", b"1")
    assert store.list("demo") == ["a", "b"]
    assert store.list("demo/") == ["a", "b"]
    assert store.list("") == ["demo", "demos"]


def test_a_long_list_comes_page_by_page(gate: Gate, store: S3Store) -> None:
    for name in "abcdefgh":
        store.put_bytes(f"many/{name}", b"1")

    def three_a_page(exchange: Exchange) -> None:
        exchange.path += "&max-keys=3"
        exchange.pass_on()

    gate.spoil("GET", "list-type", three_a_page, times=9)
    assert store.list("many") == list("abcdefgh")
    assert gate.count("GET", "continuation-token") == 2


def test_delete_removes_and_leaves_the_rest(store: S3Store) -> None:
    store.put_bytes(KEY, b"1")
    store.put_bytes(KEY + "x", b"2")
    store.delete(KEY)
    assert store.list(KEY.rpartition("/")[0]) == ["step-3.ptx"]


def test_a_probe_leaves_nothing_behind(store: S3Store) -> None:
    room = store.probe()
    assert room.error == "" and room.free_bytes is None
    assert store.list("") == []


def test_what_a_killed_probe_left_is_not_listed(gate: Gate, store: S3Store) -> None:
    gate.spoil("DELETE", "_probe", lambda exchange: exchange.refuse(403, "AccessDenied"))
    assert "DeleteObject" in store.probe().error
    assert store.list("") == []


@pytest.mark.usefixtures("small_parts")
def test_each_piece_that_is_sent_is_told(store: S3Store, tmp_path: Path) -> None:
    pieces: list[int] = []
    store.on_bytes = pieces.append
    store.put(KEY, _file(tmp_path, 6 * MIB))
    assert 6 * MIB <= sum(pieces) < 6 * MIB + 10_000 and max(pieces) <= 64 << 10


def test_the_uploaders_pace_holds_within_a_file(store: S3Store, tmp_path: Path) -> None:
    pauses: list[float] = []
    paced = PacedStore(store, Bucket(0, 1), Bucket(MIB, 1000, clock=lambda: 0.0, sleep=pauses.append))
    paced.put(KEY, _file(tmp_path, 100_000))
    assert len(pauses) > 3


@pytest.mark.parametrize("key", ["../x", "/x", "a//b", "", "a b"])
def test_keys_outside_the_grammar_are_refused(store: S3Store, key: str) -> None:
    with pytest.raises(UsageError):
        store.read(key, 1)


# --- uploads in parts --------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_parts")
def test_a_large_file_goes_in_parts_and_comes_back(gate: Gate, store: S3Store, tmp_path: Path) -> None:
    source = _file(tmp_path, 11 * MIB)
    assert store.put(KEY, source) == _digests(source)
    assert gate.count("PUT", "partNumber") == 3
    assert store.get(KEY, tmp_path / "back").sha256 == _digests(source).sha256
    assert store.find(KEY) == [Stored(KEY, 11 * MIB)]  # no digest is better than one of something else
    assert _unfinished(gate) == []


def test_parts_are_as_few_as_the_service_allows() -> None:
    assert s3_upload.part_bytes(65 * MIB) == 16 * MIB
    size = 5 << 40
    assert -(-size // s3_upload.part_bytes(size)) <= 10_000
    assert s3_upload.part_bytes(size) % MIB == 0


@pytest.mark.usefixtures("small_parts")
def test_a_failed_upload_drops_its_parts_and_keeps_the_old_object(gate: Gate, store: S3Store, tmp_path: Path) -> None:
    store.put_bytes(KEY, b"old")
    gate.spoil("PUT", "partNumber=2", lambda exchange: exchange.refuse(403, "AccessDenied"))
    with pytest.raises(StoreDenied):
        store.put(KEY, _file(tmp_path, 11 * MIB))
    assert _unfinished(gate) == []
    assert store.read(KEY, 10) == b"old"


@pytest.mark.usefixtures("small_parts")
def test_an_uploader_killed_in_the_middle_leaves_the_old_object_and_its_parts_go(
    gate: Gate, store: S3Store, tmp_path: Path
) -> None:
    store.put_bytes(KEY, b"old")
    _file(tmp_path, 11 * MIB)
    gate.spoil("PUT", "partNumber=3", lambda _: wait_until(lambda: killed, DEADLINE_S))
    killed: list[bool] = []
    code = (
        "import sys; from pathlib import Path; from vm_daemons.storage import s3_upload; from s3_rig import store_at\n"
        f"s3_upload.WHOLE_MAX_BYTES = s3_upload.PART_BYTES = {5 * MIB}\n"
        "store_at(sys.argv[1], prefix='team/x').put(sys.argv[2], Path(sys.argv[3]))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen([sys.executable, "-c", code, gate.url, KEY, tmp_path / "source"], env=environment)
    try:
        wait_until(lambda: gate.count("PUT", "partNumber=3"), DEADLINE_S)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE_S)
        killed.append(True)
    assert store.read(KEY, 10) == b"old"
    assert _unfinished(gate) == [f"team/x/{KEY}"]
    store.put(KEY, tmp_path / "source")
    assert store.get(KEY, tmp_path / "back").sha256 == _digests(tmp_path / "source").sha256
    assert _unfinished(gate) == []


@pytest.mark.usefixtures("small_parts")
def test_only_uploads_that_can_be_ours_are_swept(gate: Gate, store: S3Store, tmp_path: Path) -> None:
    beside = f"team/x/{KEY.rpartition('/')[0]}/step-2.pt"
    elsewhere = "team/x/demo/runs/other/step-3.pt"
    for key in (beside, elsewhere):
        boto(gate.url).create_multipart_upload(Bucket=BUCKET, Key=key)

    def say_just_begun(exchange: Exchange) -> None:
        status, headers, body = exchange.forward()
        begun = f"<Initiated>{time.strftime('%Y-%m-%dT%H:%M:%S.000Z', time.gmtime())}</Initiated>"
        exchange.reply(status, re.sub(rb"<Initiated>.*?</Initiated>", begun.encode(), body), headers)

    gate.spoil("GET", "uploads", say_just_begun)
    store.put(KEY, _file(tmp_path, 6 * MIB))
    assert sorted(_unfinished(gate)) == sorted([beside, elsewhere])  # another's, perhaps under way
    store.put(KEY, tmp_path / "source")  # the endpoint itself says that they are years old
    assert _unfinished(gate) == [elsewhere]


@pytest.mark.usefixtures("small_parts")
def test_a_lost_answer_to_the_last_request_is_no_failure(gate: Gate, store: S3Store, tmp_path: Path) -> None:
    def lose(exchange: Exchange) -> None:
        exchange.forward()
        exchange.drop()

    source = _file(tmp_path, 11 * MIB)
    gate.spoil("POST", "uploadId", lose)
    assert store.put(KEY, source) == _digests(source)
    assert store.get(KEY, tmp_path / "back").sha256 == _digests(source).sha256


@pytest.mark.usefixtures("small_parts")
def test_a_failure_that_comes_as_200_is_seen(gate: Gate, store: S3Store, tmp_path: Path) -> None:
    gate.spoil("POST", "uploadId", lambda exchange: exchange.refuse(200, "InternalError"))
    source = _file(tmp_path, 11 * MIB)
    assert store.put(KEY, source) == _digests(source)
    assert gate.count("POST", "uploadId") == 2


# --- settings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"bucket": ""},
        {"bucket": "a/b"},
        {"endpoint": "http://store.example"},
        {"endpoint": "http://127.0.0.1.evil.example"},
        {"endpoint": "https://key:hidden@store.example"},
        {"endpoint": "https://"},
        {"endpoint": "https://h:port"},
        {"prefix": "../other"},
        {"region": "eu west"},
    ],
)
def test_settings_that_can_not_work_are_refused(change: dict[str, str]) -> None:
    settings = {"bucket": BUCKET, "endpoint": "https://store.example", **change}
    with pytest.raises(UsageError) as caught:
        S3Store(StoreSpec("s3", **settings), KEYS)
    assert "hidden" not in caught.value.message


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"bucket": "b-1", "region": "eu-west-1"}, "s3://b-1 at b-1.s3.eu-west-1.amazonaws.com"),
        ({"bucket": "b.dots"}, "s3://b.dots at s3.us-east-1.amazonaws.com"),
        ({"bucket": "b-1", "endpoint": "https://s.example:443/v1/s3", "prefix": "/p/"}, "s3://b-1/p at s.example"),
        ({"bucket": "b-1", "endpoint": "https://s.example:9000"}, "s3://b-1 at s.example:9000"),
    ],
)
def test_the_address_follows_from_the_settings(settings: dict[str, str], where: str) -> None:
    assert S3Store(StoreSpec("s3", **settings), KEYS).where == where


def test_no_keys_is_denied() -> None:
    with pytest.raises(StoreDenied):
        S3Store(StoreSpec("s3", bucket=BUCKET), {})
