"""The S3 store when things go wrong: what is stored is proven, downloads go on, and refusals say what to do."""

from __future__ import annotations

import hashlib
import json
import os
import time
from email.utils import formatdate
from pathlib import Path

import pytest
import requests

from bridgehead.errors import (
    StoreDenied,
    StoreError,
    StoreFull,
    StoreGone,
    VerificationError,
)
from bridgehead.records import StoreSpec
from s3_rig import BUCKET, DEADLINE_S, Exchange, Gate, boto, store_at
from vm_daemons.storage import s3_client
from vm_daemons.storage.objects import Stored
from vm_daemons.storage.s3_store import S3Store

MIB = 1 << 20
KEY = "demo/runs/r/checkpoints/slot-a/step-3.pt"


@pytest.fixture
def store(gate: Gate) -> S3Store:
    return store_at(gate.url, prefix="team/x")


def _file(tmp_path: Path, size: int = 1000, name: str = "source") -> Path:
    path = tmp_path / name
    path.write_bytes(os.urandom(size))
    return path


def _digests(path: Path, key: str = KEY) -> Stored:
    data = path.read_bytes()
    return Stored(key, len(data), hashlib.md5(data).hexdigest(), hashlib.sha256(data).hexdigest())


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
    monkeypatch.setattr("vm_daemons.storage.s3_download.time.sleep", lambda _: None)
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
    iam = boto(endpoint, "iam")
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
