"""Our Signature Version 4 against botocore's, which moto brings: an independent judge."""

from __future__ import annotations

import datetime as dt
import hashlib
import random

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as JudgeCredentials

from bridgehead import names
from bridgehead.errors import StoreDenied
from vm_daemons.storage import s3_signing
from vm_daemons.storage.s3_signing import Credentials, Unsigned

NOW = dt.datetime(2026, 3, 9, 4, 5, 6, tzinfo=dt.UTC)
# What our keys may hold, what a foreign prefix may, and what a bad encoder gets wrong.
LETTERS = "abcXYZ019._+=@-~ %&?#'()*!:;,$é日/"


def _text(rng: random.Random, most: int = 12) -> str:
    return "".join(rng.choice(LETTERS) for _ in range(rng.randint(1, most)))


def _request(rng: random.Random) -> Unsigned:
    path = "/" + "/".join(part.strip("/. ") or "x" for part in (_text(rng) for _ in range(rng.randint(1, 4))))
    names = {_text(rng, 5) for _ in range(rng.randint(0, 3))}
    query = [(name, rng.choice(["", _text(rng)])) for name in names]
    headers = {"Range": "bytes=1-2", "x-amz-meta-a": "two   blanks ", "Content-MD5": "1B2M2Y8AsgTpgAmY7PhCfg=="}
    kept = {name: headers[name] for name in headers if rng.random() < 0.5}
    payload = hashlib.sha256(rng.randbytes(3)).hexdigest()
    host = rng.choice(["bucket.s3.eu-west-1.amazonaws.com", "127.0.0.1:9000", "[::1]:9000", "store.example"])
    return Unsigned(rng.choice(["GET", "PUT", "POST", "HEAD", "DELETE"]), host, path, query, kept, payload)


def _judge(request: Unsigned, credentials: Credentials, region: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda *_, **__: NOW.replace(tzinfo=None))
    url = f"https://{request.host}{s3_signing.encode_path(request.path)}"
    headers = {**request.headers, "Host": request.host}
    judged = AWSRequest(request.method, url, headers=headers, params=dict(request.query))  # encodes the query itself
    judged.headers["X-Amz-Content-SHA256"] = request.payload_sha256
    judge = S3SigV4Auth(
        JudgeCredentials(credentials.access_key_id, credentials.secret_access_key, credentials.session_token or None),
        "s3",
        region,
    )
    judge.payload = lambda _request: request.payload_sha256  # type: ignore[method-assign]
    judge.add_auth(judged)
    assert judged.headers["X-Amz-Date"] == "20260309T040506Z"
    return str(judged.headers["Authorization"])


@pytest.mark.parametrize("seed", range(8))
def test_signatures_equal_botocores(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        request = _request(rng)
        credentials = Credentials("AKIDEXAMPLE", "wJalr+/secret", rng.choice(["", "FwoGZ+/token=="]))
        region = rng.choice(["us-east-1", "eu-west-1", "auto"])
        ours = s3_signing.sign(request, credentials, region, NOW)["Authorization"]
        assert ours == _judge(request, credentials, region, monkeypatch), request


def test_paths_are_encoded_as_s3_wants_them() -> None:
    assert s3_signing.encode_path("/b/a b+c=d@e~f-g_h.i/é") == "/b/a%20b%2Bc%3Dd%40e~f-g_h.i/%C3%A9"


def test_credentials_do_not_show() -> None:
    shown = repr(Credentials("AKID-1", "hidden-2", "hidden-3"))
    assert "AKID-1" not in shown and "hidden" not in shown


def test_pasted_blanks_are_taken_off() -> None:
    read = Credentials.read({"access_key_id": " AKID\n", "secret_access_key": "\tkey ", "session_token": ""})
    assert (read.access_key_id, read.secret_access_key, read.session_token) == ("AKID", "key", "")


def test_missing_keys_are_asked_for_by_the_names_of_the_notebooks_secrets() -> None:
    with pytest.raises(StoreDenied) as caught:
        Credentials.read({})
    assert names.SECRET_S3_KEY_ID in caught.value.hint and names.SECRET_S3_SECRET in caught.value.hint


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"access_key_id": "AKID"},
        {"access_key_id": "AKID", "secret_access_key": " "},
        {"access_key_id": "AK\nX-Evil: hidden", "secret_access_key": "key"},
        {"access_key_id": "AKID", "secret_access_key": "hiddené"},
        {"access_key_id": 7, "secret_access_key": "hidden"},
    ],
)
def test_bad_credentials_are_refused_without_being_quoted(values: dict[str, object]) -> None:
    with pytest.raises(StoreDenied) as caught:
        Credentials.read(values)
    assert caught.value.hint and "hidden" not in caught.value.message + caught.value.hint
