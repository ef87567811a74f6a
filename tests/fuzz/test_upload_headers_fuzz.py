"""Upload requests that are signed and odd, and bytes that are hardly a request: answered, and never a fault."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Iterator

import pytest
from fuzz_support import fuzz, near
from hypothesis import example, given
from hypothesis import strategies as st

from bridge import uploads
from bridge_client import VM, Client, LiveBridge, live_bridge
from bridgehead import errors, names, signing

CODES = {cls.code for cls in errors.all_errors()}
ANSWERS = {201, 204, 400, 401, 404, 405, 409, 411, 413, 415, 417, 507}  # 401: signed in another spelling than sent
PLAIN = st.text(st.characters(min_codepoint=33, max_codepoint=0x7E), max_size=12)
NUMBERS = st.sampled_from(
    ["", "0", "3", "4", "-1", "+3", " 3", "3.0", "1e3", "\xb2", "9" * 15, "9" * 16, "0x3", "03", "?1"]
)
DIGESTS = st.sampled_from(["sha-256=::", f"sha-256=:{'A' * 43}=:", signing.content_digest(b"abc"), "md5=:AA==:", ":"])
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        names.HEADER_OFFSET: NUMBERS | PLAIN,
        names.HEADER_LENGTH: NUMBERS | PLAIN,
        names.HEADER_COMPLETE: st.sampled_from(["?0", "?1", "?2", "1", "true", "", "?0, ?1"]) | PLAIN,
        names.HEADER_GENERATION: st.sampled_from(["g1", "g2", "", "g" * 129, "g 1", "../g", "g\xe9"]) | PLAIN,
        names.HEADER_REPR_DIGEST: DIGESTS | PLAIN,
        "Content-Type": st.sampled_from([names.PARTIAL_UPLOAD, "text/plain", names.PARTIAL_UPLOAD + ";x=1", "", "/"])
        | PLAIN,
        "Content-Encoding": st.sampled_from(["identity", "gzip", "br"]),
        "Expect": st.sampled_from(["100-continue", "200-ok"]),
        "Range": st.sampled_from(["bytes=0-", "bytes=9-1", "x"]),
    },
)
NAMES = st.sampled_from([names.LOG, "artifacts/model.pt", "artifacts", "log/x", "results.json"])


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBridge]:
    with live_bridge(tmp_path_factory.mktemp("project")) as bridge:
        yield bridge


@pytest.fixture(scope="module")
def run_id(live: LiveBridge) -> str:
    return live.given_run()


@given(st.sampled_from(uploads.METHODS), NAMES, HEADERS, st.binary(max_size=6))
@example("PATCH", names.LOG, {names.HEADER_OFFSET: "\xb2"}, b"x")
@fuzz(150)
def test_no_header_of_an_upload_makes_the_bridge_stumble(
    live: LiveBridge, run_id: str, caplog: pytest.LogCaptureFixture,
    method: str, name: str, headers: dict[str, str], body: bytes,
) -> None:  # fmt: skip
    client = live.client()
    target = f"/in/{run_id}/{name}?vm={VM}&attempt=1"
    signed = client.signed(method, target, body, headers)
    answer = client.send(method, target, body, signed)
    assert answer.status in ANSWERS
    if answer.status >= 400 and method != "HEAD":
        assert answer.code in CODES - {errors.BridgeheadError.code}
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    found = {path.name for path in live.arrivals.rglob("*")}
    assert found <= {run_id, names.LOG, "artifacts", "model.pt", "results.json", "x"} | _temps(found)


def _temps(found: set[str]) -> set[str]:
    """The one temp file of the one sized upload that may be under way below each name."""
    temps = {name for name in found if name.startswith(".tmp-")}
    assert len(temps) <= 3
    return temps


HEAD = near(
    "GET", "PATCH", " ", "/in/", "/healthz", "HTTP/1.1", "HTTP/9", "\r\n", "\r\n\r\n", "Host: a", ":", "\0", "hello",
    "Content-Length: 5", "Transfer-Encoding: chunked", "5\r\n", "Signature: bh=:AA==:", "Signature-Input: bh=()",
)  # fmt: skip


@given(HEAD.map(lambda text: text.encode("utf-8", "replace")) | st.binary(max_size=80))
@fuzz(80)
def test_whatever_a_stranger_sends_the_bridge_says_no_more_than_it_must_and_goes_on(
    live: LiveBridge, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", live.bridge.port), 20) as sock:
        told = b""
        with contextlib.suppress(ConnectionError):
            sock.sendall(data + b"\r\n\r\n")
            sock.shutdown(socket.SHUT_WR)
            while piece := sock.recv(4096):
                told += piece
    assert told[:5] in (b"", b"HTTP/") and told[9:12] in (b"", b"200", b"400", b"401", b"413")
    assert b"Traceback" not in told and b"Python" not in told
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert Client(live.bridge.port, "none", bytes(32)).send("GET", names.HEALTH_PATH, b"", {}).body == b"ok"
