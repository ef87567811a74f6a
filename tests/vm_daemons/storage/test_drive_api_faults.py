"""Google Drive that cuts, refuses, is full, forgets and damages: nothing half, nothing twice, and a plain word why."""

from __future__ import annotations

import http.server
import os
import threading
from pathlib import Path

import pytest

from bridgehead.errors import StoreDenied, StoreError, StoreFull, UsageError, VerificationError
from bridgehead.records import StoreSpec
from doubles.drive_v3 import TOKEN, DriveServer
from doubles.google_cloud import Cloud
from drive_rig import drive_api, quick, token_file
from vm_daemons.storage.drive_api import DriveApi
from vm_daemons.storage.drive_auth import DriveAuth, check_trusted
from vm_daemons.storage.drive_upload import GRAIN_BYTES, Uploader

KEY = "demo/runs/train-0001-abc123/checkpoints/slot-a/step-00000010-0-state.pt"
BIG = os.urandom(1_700_000)
AT = f"Bridgehead/{KEY}"


@pytest.fixture
def big(tmp_path: Path) -> Path:
    path = tmp_path / "big"
    path.write_bytes(BIG)
    return path


def uploaded_bytes(server: DriveServer) -> int:
    return sum(request.received_bytes for request in server.log if request.operation == "upload.chunk")


# --- uploads --------------------------------------------------------------------------------------


def test_a_chunk_that_broke_off_goes_on_where_it_stopped(
    api: DriveApi, server: DriveServer, cloud: Cloud, big: Path
) -> None:
    server.fail_next("upload.chunk", cut="middle", keep_bytes=GRAIN_BYTES)
    api.put(KEY, big)
    assert cloud.read(AT) == BIG
    assert uploaded_bytes(server) == len(BIG) + GRAIN_BYTES
    assert server.count("upload.create") == 1


@pytest.mark.parametrize("size", [10, len(BIG)], ids=["small", "big"])
def test_a_lost_answer_makes_no_second_file(
    api: DriveApi, server: DriveServer, cloud: Cloud, tmp_path: Path, size: int
) -> None:
    source = tmp_path / "source"
    source.write_bytes(BIG[:size])
    for operation in ("files.create", "upload.create"):
        server.fail_next(operation, cut="after")
    last_chunk = len(BIG) // (2 * GRAIN_BYTES)
    for number in range(last_chunk + 1):
        server.fail_next("upload.chunk", cut="after" if number == last_chunk else "")
    api.put(KEY, source)
    assert [entry.size for entry in cloud.at(AT)] == [size]
    assert len(cloud.at("Bridgehead")) == 1


@pytest.mark.parametrize("status", [404, 410])
def test_a_session_that_ended_is_replaced_by_another(
    api: DriveApi, server: DriveServer, cloud: Cloud, big: Path, status: int
) -> None:
    server.fail_next("upload.chunk")
    server.fail_next("upload.chunk", status=status)
    api.put(KEY, big)
    assert cloud.read(AT) == BIG
    assert server.count("upload.create") == 2


def test_sessions_that_always_end_are_given_up(api: DriveApi, server: DriveServer, cloud: Cloud, big: Path) -> None:
    server.fail_next("upload.chunk", status=404, times=99)
    with pytest.raises(StoreError, match="ended too early"):
        api.put(KEY, big)
    assert cloud.at(AT) == []


def test_a_session_that_takes_nothing_is_given_up(api: DriveApi, server: DriveServer, big: Path) -> None:
    api._http.first_pause_s = 0.0
    server.fail_next("upload.chunk", cut="middle", keep_bytes=0, times=99)
    with pytest.raises(StoreError):
        api.put(KEY, big)


@pytest.mark.parametrize("size", [10, len(BIG)], ids=["small", "big"])
def test_content_that_was_damaged_on_its_way_is_sent_again(
    api: DriveApi, server: DriveServer, cloud: Cloud, tmp_path: Path, size: int
) -> None:
    source = tmp_path / "source"
    source.write_bytes(BIG[:size])
    server.fail_next("upload.chunk" if size > 10 else "upload.create", damage=True)
    sent = api.put(KEY, source)
    assert cloud.read(AT) == BIG[:size]
    assert api.find(KEY) == [sent]


def test_content_that_never_arrives_whole_is_not_left_under_its_key(
    api: DriveApi, server: DriveServer, cloud: Cloud, big: Path
) -> None:
    server.fail_next("upload.chunk", damage=True, times=999)
    with pytest.raises(StoreError, match="does not hold what was sent"):
        api.put(KEY, big)
    assert cloud.at(AT) == []
    assert cloud.usage().used == 0


def test_an_upload_tells_of_each_piece_so_that_it_can_be_slowed_down(
    server: DriveServer, tmp_path: Path, big: Path
) -> None:
    heard: list[int] = []
    api = drive_api(server, token_file(tmp_path))
    api._uploader = Uploader(api._http, mb_per_s=0.6)
    api.on_bytes = heard.append
    api.put(KEY, big)
    assert heard[:3] == [2 * GRAIN_BYTES] * 3, "pieces are of a second's worth at most"
    assert sum(heard) == len(BIG)


# --- downloads ------------------------------------------------------------------------------------


def test_a_download_that_was_cut_goes_on(api: DriveApi, server: DriveServer, big: Path, tmp_path: Path) -> None:
    api.put(KEY, big)
    server.fail_next("files.get", cut="middle", times=2)
    api.get(KEY, tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == BIG
    got = [request.sent_bytes for request in server.log if request.operation == "files.get"]
    assert len(got) == 3 and got[0] > got[1] > got[2], "each goes on where the one before was cut"


def test_a_damaged_download_is_fetched_again_and_never_kept(
    api: DriveApi, server: DriveServer, big: Path, tmp_path: Path
) -> None:
    api.put(KEY, big)
    server.fail_next("files.get", damage=True)
    api.get(KEY, tmp_path / "target")
    (tmp_path / "target").write_bytes(b"what was there")
    server.fail_next("files.get", damage=True, times=99)
    with pytest.raises(VerificationError):
        api.get(KEY, tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"what was there"
    with pytest.raises(VerificationError):
        api.read(KEY, 1 << 24)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big", "cloud", "target", "token.json"]


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "reason"),
    [(403, "rateLimitExceeded"), (403, "userRateLimitExceeded"), (429, "rateLimitExceeded"), (500, "backendError")]
    + [(503, "backendError")],
)
def test_what_passes_is_asked_again(
    api: DriveApi, server: DriveServer, cloud: Cloud, big: Path, status: int, reason: str
) -> None:
    for operation in ("files.list", "generateIds", "files.create", "upload.create", "upload.chunk", "upload.query"):
        server.fail_next(operation, status=status, reason=reason)
    api.put(KEY, big)
    assert cloud.read(AT) == BIG


def test_a_pause_that_drive_asks_for_is_kept(
    api: DriveApi, server: DriveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("vm_daemons.storage.drive_http.time.sleep", pauses.append)
    server.fail_next("files.list", status=429, retry_after_s=7)
    api.find(KEY)
    assert 7.0 in pauses


def test_what_does_not_pass_is_given_up_in_time(server: DriveServer, tmp_path: Path) -> None:
    api = drive_api(server, token_file(tmp_path), give_up_after_s=0.3)
    server.fail_next("files.list", status=503, times=9999)
    with pytest.raises(StoreError, match="503 backendError") as caught:
        api.find(KEY)
    assert caught.value.retry
    server.faults.clear()
    server.fail_next("files.list", status=503, retry_after_s=3600)
    with pytest.raises(StoreError):
        api.find(KEY)


def test_nobody_listens_there(server: DriveServer, tmp_path: Path) -> None:
    api = drive_api(server, token_file(tmp_path), give_up_after_s=0.1)
    server.close()
    with pytest.raises(StoreError, match="does not answer"):
        api.find(KEY)
    assert "does not answer" in api.probe().error


@pytest.mark.parametrize("size", [1000, len(BIG)], ids=["small", "big"])
def test_a_full_drive_says_so_at_once(
    api: DriveApi, server: DriveServer, cloud: Cloud, tmp_path: Path, size: int
) -> None:
    cloud.set_quota(500)
    source = tmp_path / "source"
    source.write_bytes(BIG[:size])
    with pytest.raises(StoreFull) as caught:
        api.put(KEY, source)
    assert "empty the trash" in caught.value.hint
    assert cloud.at(AT) == []
    assert api.probe().error == ""


def test_a_full_drive_keeps_what_was_there(api: DriveApi, cloud: Cloud) -> None:
    api.put_bytes("demo/status.json", b"old")
    cloud.set_quota(10)
    with pytest.raises(StoreFull):
        api.put_bytes("demo/status.json", b"x" * 100)
    assert api.read("demo/status.json", 100) == b"old"


def test_what_is_not_permitted_is_not_asked_again(api: DriveApi, server: DriveServer) -> None:
    for reason in ("insufficientPermissions", "accessNotConfigured"):
        server.fail_next("files.list", status=403, reason=reason)
        with pytest.raises(StoreDenied, match=reason):
            api.find(KEY)
    assert server.count("files.list") == 2


def test_a_token_that_expired_is_renewed_once(api: DriveApi, server: DriveServer, cloud: Cloud, tmp_path: Path) -> None:
    api.find(KEY)
    server.tokens = {"another"}
    token_file(tmp_path, "another")  # what the cell does when it signs in again
    api.put_bytes(KEY, b"1")
    assert cloud.read(AT) == b"1"


def test_a_token_that_expires_during_an_upload_costs_no_byte(
    api: DriveApi, server: DriveServer, cloud: Cloud, big: Path, tmp_path: Path
) -> None:
    server.fail_next("upload.chunk")
    server.fail_next("upload.chunk", status=401, reason="authError")
    server.tokens.add("another")
    token_file(tmp_path, "another")
    api._http._auth._token, api._http._auth._expiry = TOKEN, 1e12  # the one from before
    api.put(KEY, big)
    assert cloud.read(AT) == BIG


def test_revoked_credentials_are_said_and_shown_to_nobody(
    api: DriveApi, server: DriveServer, big: Path, tmp_path: Path
) -> None:
    server.revoke()
    for action in (lambda: api.put(KEY, big), lambda: api.find(KEY), lambda: api.get(KEY, tmp_path / "target")):
        before = len(server.log)
        with pytest.raises(StoreDenied, match="expired or revoked") as caught:
            action()
        assert len(server.log) - before <= 2
        assert TOKEN not in f"{caught.value!r} {caught.value.hint} {caught.value.__context__!r}"
        assert not caught.value.retry
    assert "expired or revoked" in api.probe().error


def test_names_of_files_are_in_no_error(api: DriveApi, server: DriveServer) -> None:
    server.fail_next("files.list", status=400, reason="invalid")
    with pytest.raises(StoreError) as caught:
        api.find("demo/secret-project.json")
    assert "secret" not in f"{caught.value} {caught.value.hint}"


# --- where a token goes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    ["http://www.googleapis.com", "https://googleapis.com.example.org", "https://example.org/googleapis.com", "ftp://x"]
    + ["https://evilgoogleapis.com", "http://127.0.0.1.example.org", "https://user@example.org", "", "//", "http://["],
)
def test_no_token_goes_to_a_foreign_host(tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError):
        check_trusted(url)
    if url:
        with pytest.raises(UsageError):
            DriveApi(StoreSpec(endpoint=url), DriveAuth(token_file(tmp_path)))


def test_a_token_does_not_follow_a_redirect_or_a_session_elsewhere(tmp_path: Path, big: Path) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if "generateIds" in self.path:
                self._answer(200, b'{"ids": ["1abcdefghij"]}')
            elif "folder" in self.path:
                self._answer(200, b'{"files": [{"id": "1folder", "name": "Bridgehead"}, {"id": "2", "name": "demo"}]}')
            else:
                self._answer(302, b"", Location="https://example.org/")

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(200, b"", Location="https://example.org/session")

        def _answer(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        spec = StoreSpec(endpoint=f"http://127.0.0.1:{server.server_address[1]}")
        api = quick(DriveApi(spec, DriveAuth(token_file(tmp_path))))
        with pytest.raises(StoreError, match="sent us elsewhere"):
            api.by_id("1abcdefghij")
        with pytest.raises(UsageError, match=r"example\.org"):
            api._create("demo/big", api_content(big))
        server.shutdown()


def api_content(path: Path) -> object:
    from vm_daemons.storage.drive_upload import Content

    return Content.of_file(path)


def test_another_login_in_netrc_is_not_used(
    api: DriveApi, server: DriveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    assert api.find(KEY) == []


@pytest.mark.parametrize("body", [b"", b"[]", b"not json", b'{"files": 3}', b'{"files": [7, {"id": 8}, {"name": 1}]}'])
def test_odd_answers_end_in_one_clear_line(tmp_path: Path, body: bytes) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        spec = StoreSpec(endpoint=f"http://127.0.0.1:{server.server_address[1]}")
        api = DriveApi(spec, DriveAuth(token_file(tmp_path)), give_up_after_s=0.1)
        try:
            assert api.find(KEY) == []
        except StoreError as error:
            assert "something other than Google Drive answered" in error.message
        assert api.probe().error
        server.shutdown()
