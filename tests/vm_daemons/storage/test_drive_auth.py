"""Where access tokens for Google Drive come from, and what is said when there is none."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridgehead import names
from bridgehead.errors import StoreDenied, StoreError
from doubles.drive_v3 import REFRESH_TOKEN, DriveServer
from doubles.google_cloud import Cloud
from drive_rig import drive_api
from vm_daemons.storage.drive_auth import DriveAuth

SECRET = "ya29.very-secret"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DriveServer]:
    with DriveServer(Cloud(tmp_path / "cloud")) as running:
        yield running


@pytest.fixture(autouse=True)
def no_sign_in_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "no-gcloud"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")


def written(tmp_path: Path, value: object) -> Path:
    path = tmp_path / "credentials.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


@pytest.mark.parametrize("expiry", [None, 4e9, "4000000000", "2096-10-02T07:06:40Z", "2096-10-02T07:06:40.123"])
def test_a_plain_token_from_a_file_or_from_secrets(tmp_path: Path, expiry: object) -> None:
    told = {"token": SECRET, "expiry": expiry}
    assert DriveAuth(written(tmp_path, told)).token() == SECRET
    assert DriveAuth(told).token() == SECRET
    assert DriveAuth({"drive_credentials": json.dumps(told), "secret_access_key": "x"}).token() == SECRET


def test_a_token_that_ends_soon_is_read_again(tmp_path: Path) -> None:
    auth = DriveAuth(written(tmp_path, {"token": "old", "expiry": time.time() + 30}))
    assert auth.token() == "old"
    written(tmp_path, {"token": "new", "expiry": time.time() + 3000})
    assert auth.token() == "new"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "not json", "{}", '{"token": ""}', '{"token": 7}', '{"token": "a\\nb"}', '{"type": "nothing"}']
    + [json.dumps({"token": SECRET, "expiry": expiry}) for expiry in ("noon", True)]
    + ["[" * 100_000],
    ids=range(11),
)
def test_a_file_that_is_no_use_is_refused_in_words(tmp_path: Path, text: str) -> None:
    with pytest.raises(StoreDenied) as caught:
        DriveAuth(written(tmp_path, text)).token()
    assert "sign in" in caught.value.hint and names.SECRET_DRIVE in caught.value.hint
    assert SECRET not in str(caught.value)


def test_no_file_and_no_sign_in(tmp_path: Path) -> None:
    with pytest.raises(StoreDenied, match=r"credentials\.json"):
        DriveAuth(tmp_path / "credentials.json").token()
    for nothing in (None, {}, {"secret_access_key": "of another store"}):
        with pytest.raises(StoreDenied, match="no sign-in"):
            DriveAuth(nothing).token()


def test_without_google_auth_only_a_plain_token_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "google.auth" or name.startswith("google.auth.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "google.auth", None)
    with pytest.raises(StoreDenied, match="google-auth is not installed") as caught:
        DriveAuth(written(tmp_path, {"refresh_token": REFRESH_TOKEN})).token()
    assert "pip install google-auth" in caught.value.hint
    assert DriveAuth(written(tmp_path, {"token": SECRET})).token() == SECRET


def test_a_refresh_token_is_turned_into_tokens_until_it_is_revoked(server: DriveServer, tmp_path: Path) -> None:
    told = {"refresh_token": REFRESH_TOKEN, "client_id": "id", "client_secret": "s", "token_uri": server.url + "/token"}
    api = drive_api(server, written(tmp_path, told))
    api.put_bytes("demo/a.json", b"1")
    server.expire()
    assert api.read("demo/a.json", 9) == b"1"
    assert server.count("token") == 2
    server.revoke()
    with pytest.raises(StoreDenied, match="expired or revoked") as caught:
        api.read("demo/a.json", 9)
    assert REFRESH_TOKEN not in repr(caught.value) + repr(caught.value.__cause__)


def test_applications_default_credentials_of_this_machine(
    server: DriveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"type": "authorized_user", "refresh_token": "1//x", "client_id": "id", "client_secret": "s"}
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(written(tmp_path, told)))
    monkeypatch.setattr("google.oauth2.credentials._GOOGLE_OAUTH2_TOKEN_ENDPOINT", server.url + "/token")
    server.refresh_tokens.add("1//x")
    assert DriveAuth().token() in server.tokens


def test_a_refresh_token_is_not_sent_to_a_foreign_host(tmp_path: Path) -> None:
    told = {"refresh_token": REFRESH_TOKEN, "client_id": "i", "client_secret": "s", "token_uri": "https://example.org/"}
    with pytest.raises(StoreDenied):
        DriveAuth(written(tmp_path, told)).token()


def test_a_token_service_that_is_away_is_no_denial(server: DriveServer, tmp_path: Path) -> None:
    told = {"refresh_token": REFRESH_TOKEN, "client_id": "i", "client_secret": "s", "token_uri": server.url + "/token"}
    server.close()
    with pytest.raises(StoreError) as caught:
        DriveAuth(written(tmp_path, told)).token()
    assert not isinstance(caught.value, StoreDenied)
    assert caught.value.retry
