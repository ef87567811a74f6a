"""Signatures between us and an independent implementation of RFC 9421, over real HTTP, in both directions.

The package http-message-signatures knows nothing of ours: what it signs the bridge has to accept, and what the VM's
client sends it has to accept.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import http_message_signatures
import pytest
import requests
from http_message_signatures import HTTPMessageSigner, HTTPMessageVerifier, HTTPSignatureKeyResolver, algorithms

from bridge_client import TIMEOUT_S, VM, LiveBridge
from bridgehead import names, signing
from bridgehead.errors import BridgeheadError
from bridgehead.names import Ack
from bridgehead.records import AckRecord, Heartbeat
from vm_daemons.client import BridgeClient
from vm_support import KEY, paired_home, reply, scripted_server

RUN = "pretrain-0001-aaaaaa"


class _Key(HTTPSignatureKeyResolver):
    def __init__(self, key: bytes) -> None:
        self.key = signing.derive(key, signing.REQUESTS)

    def resolve_private_key(self, key_id: str) -> bytes:
        return self.key

    def resolve_public_key(self, key_id: str) -> bytes:
        return self.key


# --- it signs, the bridge judges -------------------------------------------------------------------


def _send(
    live: LiveBridge, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> requests.Response:
    key_id, key = live.bridge.keys.current()
    url = f"http://127.0.0.1:{live.bridge.port}{target}"
    request = requests.Request(method, url, headers=dict(headers or {}), data=body or None).prepare()
    # The structured field of RFC 9530, spelled by hand: nothing of ours takes part.
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    request.headers["Content-Digest"] = f"sha-256=:{digest}:"
    HTTPMessageSigner(signature_algorithm=algorithms.HMAC_SHA256, key_resolver=_Key(key)).sign(
        request,
        key_id=key_id,
        nonce=hashlib.sha256(f"{method} {target} {headers}".encode()).hexdigest(),
        label="bh",
        use_existing_digest=True,
        include_alg=True,
        covered_component_ids=("@method", "@path", "@query", "content-digest", *map(str.lower, headers or {})),
    )
    with requests.Session() as session:
        return session.send(request, timeout=TIMEOUT_S)


def test_the_bridge_takes_its_polls_and_acks(live: LiveBridge) -> None:
    run_id = live.given_run()
    command = _send(live, "GET", f"/queue?vm={VM}&after=0&wait=0").json()["commands"][0]["body"]
    record = AckRecord(VM, Ack.STARTED, 1)
    answer = _send(live, "POST", f"/queue/{command['id']}/ack", json.dumps(record.to_json()).encode())
    assert answer.status_code == 204
    assert live.bridge.ledger.find_run(run_id).state == "running"


def test_the_bridge_takes_its_heartbeats_and_answers_them(live: LiveBridge) -> None:
    answer = _send(live, "POST", f"/vms/{VM}/heartbeat", json.dumps(Heartbeat(VM, "boot", 1.0).to_json()).encode())
    assert answer.status_code == 200 and answer.json()["kind"] == "hints"


def test_the_bridge_takes_its_uploads_with_every_header_covered(live: LiveBridge) -> None:
    target = f"/in/{live.given_run()}/log?vm={VM}&attempt=1"
    opened = _send(live, "POST", target, b"", {names.HEADER_GENERATION: "1", names.HEADER_COMPLETE: "?0"})
    headers = {names.HEADER_GENERATION: "1", names.HEADER_OFFSET: "0", names.HEADER_COMPLETE: "?0"}
    appended = _send(live, "PATCH", target, b"hello\n", {**headers, "Content-Type": "application/partial-upload"})
    assert (opened.status_code, appended.status_code, appended.headers[names.HEADER_OFFSET]) == (201, 204, "6")


def test_the_bridge_takes_a_path_that_is_percent_encoded(live: LiveBridge) -> None:
    target = f"/in/{live.given_run()}/a%2Bb%3Dc.txt?vm={VM}&attempt=1"
    assert _send(live, "PUT", target, b"x").status_code == 201


def test_the_bridge_refuses_what_it_signed_with_another_key(live: LiveBridge, monkeypatch: pytest.MonkeyPatch) -> None:
    key_id, _ = live.bridge.keys.current()
    monkeypatch.setattr(live.bridge.keys, "current", lambda: (key_id, bytes(32)))
    assert _send(live, "GET", "/queue.txt").status_code == 401


# --- the VM's client signs, it judges --------------------------------------------------------------


class _Judge:
    """A server that answers 200 to what the independent verifier accepts, and keeps why it refused anything."""

    def __init__(self) -> None:
        self.accepted: list[tuple[str, set[str]]] = []
        self.refused: list[str] = []

    def __call__(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("Content-Length", "0"))
        body = handler.rfile.read(length)
        if length:
            handler.headers.replace_header("Content-Length", "0")  # it has been read; not part of what is signed
        url = f"http://{handler.headers['Host']}{handler.path}"
        request = requests.Request(handler.command, url, headers=dict(handler.headers.items())).prepare()
        verifier = HTTPMessageVerifier(signature_algorithm=algorithms.HMAC_SHA256, key_resolver=_Key(KEY))
        try:
            [result] = verifier.verify(request)
            covered = {str(name).strip('"') for name in result.covered_components}
            assert result.covered_components['"content-digest"'] == signing.content_digest(body)
            self.accepted.append((handler.command, covered))
            reply(handler, 200, b"" if handler.command == "HEAD" else b"{}", Upload_Offset="0")
        except (http_message_signatures.HTTPMessageSignaturesException, AssertionError, ValueError) as error:
            self.refused.append(f"{handler.command} {handler.path}: {error!r}")
            reply(handler, 400, b"")


@contextlib.contextmanager
def _judged(tmp_path: Path) -> Iterator[tuple[BridgeClient, _Judge]]:
    judge = _Judge()
    with scripted_server(judge) as url:
        yield BridgeClient(paired_home(tmp_path, url=url)), judge


def _asks(client: BridgeClient, tmp_path: Path) -> None:
    """One request of each kind; what the judge answers makes no sense to the client, and that is none of our matter."""
    file = tmp_path / "a b"
    file.write_bytes(b"whole")
    for ask in (
        lambda: client.poll(3, 0.0),
        lambda: client.ack("0" * 32, AckRecord(client.vm_id, Ack.ACCEPTED, 1)),
        lambda: client.heartbeat(Heartbeat(client.vm_id, "boot", 1.0)),
        client.manifest_document,
        lambda: client.put(RUN, "artifacts/a+b=c.bin", file, 1),
        lambda: client.open_upload(RUN, "log", 1, "1@vm"),
        lambda: client.offset(RUN, "log", 1, "1@vm"),
        lambda: client.append(RUN, "log", 1, "1@vm", 0, b"hello\n"),
        lambda: client.forget_upload(RUN, "log", 1, "1@vm"),
    ):
        with contextlib.suppress(BridgeheadError):
            ask()


def test_it_accepts_every_request_of_the_vms_client(tmp_path: Path) -> None:
    with _judged(tmp_path) as (client, judge):
        _asks(client, tmp_path)
    assert judge.refused == []
    assert [method for method, _ in judge.accepted] == [
        "GET", "POST", "POST", "GET", "PUT", "POST", "HEAD", "PATCH", "DELETE",
    ]  # fmt: skip
    assert all({"@method", "@path", "@query", "content-digest"} <= covered for _, covered in judge.accepted)
    patch = dict(judge.accepted)["PATCH"]
    assert {names.HEADER_OFFSET.lower(), names.HEADER_COMPLETE.lower(), names.HEADER_GENERATION.lower()} <= patch


def test_it_refuses_a_client_with_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridgehead.signing.derive", lambda key, use: bytes(32))
    with _judged(tmp_path) as (client, judge):
        monkeypatch.setattr(_Key, "resolve_public_key", lambda self, key_id: KEY)
        _asks(client, tmp_path)
    assert judge.accepted == [] and len(judge.refused) == 9
