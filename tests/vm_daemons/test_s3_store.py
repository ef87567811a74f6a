"""The S3 store on a real S3 endpoint on loopback, alone and through a gate that spoils requests and answers."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import boto3
import pytest
import requests

from bridgehead.errors import (
    NotFoundError,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreGone,
    UsageError,
    VerificationError,
)
from bridgehead.records import StoreSpec
from s3_rig import BUCKET, DEADLINE_S, KEYS, Exchange, Gate, gate_before, s3_endpoint, store_at
from support import wait_until
from vm_daemons import s3_client, s3_upload
from vm_daemons.objects import ObjectStore, Stored
from vm_daemons.s3_store import S3Store

MIB = 1 << 20
KEY = "demo/runs/r/checkpoints/slot-a/step-3.pt"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_endpoint() as url:
        yield url


@pytest.fixture
def gate(endpoint: str) -> Iterator[Gate]:
    """An empty bucket behind a gate."""
    requests.post(f"{endpoint}/moto-api/reset", timeout=DEADLINE_S)
    requests.put(f"{endpoint}/{BUCKET}", timeout=DEADLINE_S)
    with gate_before(endpoint) as gate:
        yield gate


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


def _boto(url: str, service: str = "s3", access_key_id: str = "x", secret: str = "x") -> Any:
    return boto3.client(
        service,
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=access_key_id,
        aws_secret_access_key=secret,
    )


def _unfinished(gate: Gate) -> list[str]:
    return [upload["Key"] for upload in _boto(gate.url).list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])]


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
        "import sys; from pathlib import Path; from vm_daemons import s3_upload; from s3_rig import store_at\n"
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
        _boto(gate.url).create_multipart_upload(Bucket=BUCKET, Key=key)

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


# --- what is stored is proven ------------------------------------------------------------------------


def _store_flipped(exchange: Exchange) -> None:
    """A service that stores another bit than it was sent, and answers as if all was well."""
    exchange.body = bytes([exchange.body[0] ^ 1]) + exchange.body[1:]
    exchange.headers = {name: value for name, value in exchange.headers.items() if "hecksum" not in name}
    exchange.headers.pop("Content-MD5", None)
    status, headers, body = exchange.forward()
    exchange.reply(status, body, headers)


def test_a_flipped_bit_in_the_store_is_no_success(gate: Gate, store: S3Store, tmp_path: Path) -> None:
    gate.spoil("PUT", KEY, _store_flipped)
    with pytest.raises(VerificationError):
        store.put(KEY, _file(tmp_path))


def test_a_flipped_bit_in_a_record_is_no_success(gate: Gate, store: S3Store) -> None:
    gate.spoil("PUT", KEY, _store_flipped)
    with pytest.raises(VerificationError):
        store.put_bytes(KEY, b"record")


def test_a_put_that_was_answered_and_never_stored_is_no_success(gate: Gate, store: S3Store, tmp_path: Path) -> None:
    gate.spoil("PUT", KEY, lambda exchange: exchange.reply(200, b"", {}))
    with pytest.raises(VerificationError):
        store.put(KEY, _file(tmp_path))


def _tell_no_digest(exchange: Exchange) -> None:
    status, headers, body = exchange.forward()
    headers = {name: value for name, value in headers.items() if "checksum" not in name.lower()}
    headers["ETag"] = '"0123456789abcdef0123456789abcdef"'
    headers["x-amz-server-side-encryption"] = "aws:kms"
    exchange.reply(status, body, headers)


def test_where_the_tag_is_no_digest_the_object_is_read_back(gate: Gate, store: S3Store, tmp_path: Path) -> None:
    gate.spoil("HEAD", KEY, _tell_no_digest, times=2)
    source = _file(tmp_path)
    assert store.put(KEY, source) == _digests(source)
    assert gate.count("GET", KEY) == 1
    assert store.find(KEY) == [Stored(KEY, 1000)]


def test_a_store_that_knows_no_checksums_is_asked_without_them(gate: Gate, store: S3Store, tmp_path: Path) -> None:
    gate.spoil("PUT", KEY, lambda exchange: exchange.refuse(501, "NotImplemented"))
    source = _file(tmp_path)
    assert store.put(KEY, source) == _digests(source)
    assert store.find(KEY)[0].md5 == _digests(source).md5
    store.put(KEY, source)
    assert gate.count("PUT", KEY) == 3  # it is remembered


def test_a_file_that_changes_while_it_is_sent_is_reported_as_it_was_sent(
    gate: Gate, store: S3Store, tmp_path: Path
) -> None:
    source = _file(tmp_path)
    was = _digests(source)

    def change(exchange: Exchange) -> None:
        source.write_bytes(b"changed")
        exchange.refuse(503, "SlowDown")

    gate.spoil("PUT", KEY, change)
    assert store.put(KEY, source) == was
    assert store.get(KEY, tmp_path / "back").sha256 == was.sha256


# --- downloads ---------------------------------------------------------------------------------------


def _cut(exchange: Exchange) -> None:
    status, headers, body = exchange.forward()
    exchange.reply(status, body, headers, cut_after=len(body) // 2)


def test_a_cut_download_goes_on_where_it_was(gate: Gate, store: S3Store, tmp_path: Path) -> None:
    source = _file(tmp_path, 2 * MIB)
    store.put(KEY, source)
    ranges: list[str] = []

    def look(exchange: Exchange) -> None:
        ranges.append(exchange.headers.get("Range", ""))
        _cut(exchange)

    gate.spoil("GET", KEY, look, times=3)
    assert store.get(KEY, tmp_path / "back") == _digests(source)
    assert ranges[0] == "" and ranges[1] == f"bytes={MIB}-"


def test_two_versions_are_never_glued_together(gate: Gate, store: S3Store, tmp_path: Path) -> None:
    store.put(KEY, _file(tmp_path, 2 * MIB))
    later = _file(tmp_path, 2 * MIB, "later")

    def cut_then_replace(exchange: Exchange) -> None:
        _cut(exchange)
        store.put(KEY, later)

    gate.spoil("GET", KEY, cut_then_replace)
    assert store.get(KEY, tmp_path / "back") == _digests(later)


def test_a_download_that_is_cut_each_time_ends(
    gate: Gate, store: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vm_daemons.s3_download.time.sleep", lambda _: None)
    store.put_bytes(KEY, b"x" * 100)
    gate.spoil("GET", KEY, lambda exchange: exchange.drop(), times=1000)
    with pytest.raises(StoreError):
        store.get(KEY, tmp_path / "back")
    assert list(tmp_path.iterdir()) == []


# --- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (403, "SignatureDoesNotMatch", StoreDenied),
        (403, "InvalidAccessKeyId", StoreDenied),
        (400, "ExpiredToken", StoreDenied),
        (403, "AccessDenied", StoreDenied),
        (401, "", StoreDenied),
        (400, "AuthorizationHeaderMalformed", StoreDenied),
        (301, "PermanentRedirect", StoreDenied),
        (507, "XMinioStorageFull", StoreFull),
        (507, "", StoreFull),
        (403, "QuotaExceeded", StoreFull),
        (400, "EntityTooLarge", StoreError),
        (404, "NoSuchBucket", StoreGone),
        (404, "", StoreGone),
    ],
)
@pytest.mark.parametrize("method", ["PUT", "HEAD"])
def test_refusals_are_told_by_class_with_a_next_step_and_no_secret(
    gate: Gate, store: S3Store, method: str, status: int, code: str, error: type[StoreError]
) -> None:
    for each in {method, "GET"}:  # what a HEAD may not say is asked with a GET
        gate.spoil(each, KEY, lambda exchange: exchange.refuse(status, code))
    with pytest.raises(StoreError) as caught:
        store.put_bytes(KEY, b"x") if method == "PUT" else store.find(KEY)
    assert isinstance(caught.value, error)
    assert caught.value.hint
    assert "hidden" not in caught.value.message + caught.value.hint
    assert gate.count(method) == 1  # not tried again


def test_an_endpoint_that_checks_signatures_takes_ours_and_no_other(endpoint: str, gate: Gate, tmp_path: Path) -> None:
    iam = _boto(endpoint, "iam")
    iam.create_user(UserName="runner")
    allowed = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    iam.put_user_policy(UserName="runner", PolicyName="all", PolicyDocument=json.dumps(allowed))
    made = iam.create_access_key(UserName="runner")["AccessKey"]
    keys = {"access_key_id": made["AccessKeyId"], "secret_access_key": made["SecretAccessKey"]}
    spec = StoreSpec("s3", bucket=BUCKET, prefix="team/x", endpoint=gate.url)
    requests.post(f"{endpoint}/moto-api/reset-auth", data=b"0", timeout=DEADLINE_S)
    try:
        store = S3Store(spec, keys)
        sent = store.put("demo/a+b=c@d", _file(tmp_path))
        assert store.get("demo/a+b=c@d", tmp_path / "back") == sent
        assert store.list("demo") == ["a+b=c@d"] and store.probe().error == ""
        with pytest.raises(StoreDenied) as caught:
            S3Store(spec, {**keys, "secret_access_key": "another"}).put_bytes(KEY, b"x")
        assert "secret key" in caught.value.message
        with pytest.raises(StoreDenied) as caught:
            S3Store(spec, {**keys, "access_key_id": "AKIDUNKNOWN"}).put_bytes(KEY, b"x")
        assert "access key id" in caught.value.message
    finally:
        requests.post(f"{endpoint}/moto-api/reset-auth", data=b"inf", timeout=DEADLINE_S)


def test_another_region_is_named(gate: Gate, store: S3Store) -> None:
    wrong = "<Region>eu-west-1</Region>"
    gate.spoil("PUT", KEY, lambda exchange: exchange.refuse(400, "AuthorizationHeaderMalformed", more=wrong))
    with pytest.raises(StoreDenied) as caught:
        store.put_bytes(KEY, b"x")
    assert 'region = "eu-west-1"' in caught.value.hint


def test_a_bucket_that_is_not_there_is_not_an_empty_one(gate: Gate, tmp_path: Path) -> None:
    nowhere = store_at(gate.url, bucket="no-such-bucket")
    with pytest.raises(StoreGone):
        nowhere.find(KEY)
    with pytest.raises(StoreGone):
        nowhere.read(KEY, 10)
    with pytest.raises(StoreGone):
        nowhere.list("demo")
    with pytest.raises(StoreGone):
        nowhere.put(KEY, _file(tmp_path))
    assert "not there" in nowhere.probe().error


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_store_that_is_busy_is_asked_again(gate: Gate, store: S3Store, status: int) -> None:
    gate.spoil("PUT", KEY, lambda exchange: exchange.refuse(status, ""), times=2)
    gate.spoil("PUT", KEY, lambda exchange: exchange.drop())
    store.put_bytes(KEY, b"x")
    assert store.read(KEY, 10) == b"x"


def test_a_store_that_stays_busy_is_given_up(gate: Gate, store: S3Store) -> None:
    gate.spoil("PUT", KEY, lambda exchange: exchange.refuse(503, "SlowDown"), times=100)
    with pytest.raises(StoreError) as caught:
        store.put_bytes(KEY, b"x")
    assert "503 SlowDown" in caught.value.message and gate.count("PUT") == 4
    assert "SlowDown" not in store.probe().error


def test_a_store_that_says_how_long_to_wait_is_left_alone_that_long(
    gate: Gate, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(s3_client, "_sleep", pauses.append)
    gate.spoil("PUT", KEY, lambda exchange: exchange.refuse(503, "SlowDown", {"Retry-After": "7"}))
    gate.spoil("PUT", KEY, lambda exchange: exchange.refuse(503, "SlowDown", {"Retry-After": "86400"}))
    store.put_bytes(KEY, b"x")
    assert pauses == [7.0, s3_client.RETRY_AFTER_MAX_S]


def test_nobody_at_the_address(tmp_path: Path) -> None:
    store = store_at("http://127.0.0.1:9", tries=2)
    with pytest.raises(StoreError) as caught:
        store.put(KEY, _file(tmp_path))
    assert "does not answer" in caught.value.message and "hidden" not in caught.value.message
    assert "does not answer" in store.probe().error


def test_a_wrong_clock_is_corrected_once_from_the_stores_own(gate: Gate, store: S3Store) -> None:
    stamps: list[str] = []

    def skewed(exchange: Exchange) -> None:
        stamps.append(exchange.headers["X-Amz-Date"])
        exchange.refuse(403, "RequestTimeTooSkewed", {"Date": formatdate(time.time() + 7200, usegmt=True)})

    def look(exchange: Exchange) -> None:
        stamps.append(exchange.headers["X-Amz-Date"])
        exchange.pass_on()

    gate.spoil("PUT", KEY, skewed)
    gate.spoil("PUT", KEY, look, times=2)
    store.put_bytes(KEY, b"x")
    store.put_bytes(KEY, b"y")
    first, second, third = (time.mktime(time.strptime(stamp, "%Y%m%dT%H%M%SZ")) for stamp in stamps)
    assert 7190 < second - first < 7300 and third >= second


def test_a_clock_that_can_not_be_corrected_is_denied(gate: Gate, store: S3Store) -> None:
    gate.spoil("PUT", KEY, lambda exchange: exchange.refuse(403, "RequestTimeTooSkewed"), times=9)
    with pytest.raises(StoreDenied) as caught:
        store.put_bytes(KEY, b"x")
    assert "clock" in caught.value.message


@pytest.mark.parametrize(
    "body",
    [
        b"<!DOCTYPE x [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;'>]><ListBucketResult>&b;</ListBucketResult>",
        b"<a>" * 50_000,
        b"<html>sign in to the network",
        b"",
        b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        b"<r>" + b" " * (9 << 20) + b"</r>",
    ],
)
def test_hostile_answers_are_refused_in_words(gate: Gate, store: S3Store, body: bytes) -> None:
    gate.spoil("GET", "list-type", lambda exchange: exchange.reply(200, body, {}), times=9)
    with pytest.raises(StoreError):
        store.list("demo")


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
