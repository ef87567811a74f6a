"""Only who holds the pairing key gets an answer, each request counts once, and refusals come before the body."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import http_message_signatures
import pytest
import requests
from http_message_signatures import HTTPMessageSigner, HTTPMessageVerifier, HTTPSignatureKeyResolver, algorithms

from bridge.nonces import NonceStore
from bridge_client import TIMEOUT_S, VM, Client, LiveBridge, Uploader, live_bridge
from bridgehead import names, signing

QUEUE = f"/queue?vm={VM}&after=0&wait=0"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBridge]:
    with live_bridge(tmp_path_factory.mktemp("project")) as bridge:
        yield bridge


def test_the_health_check_says_ok_and_nothing_else(client: Client) -> None:
    answer = client.send("GET", "/healthz", b"", {})
    assert (answer.status, answer.body) == (200, b"ok")


def test_a_signed_request_is_answered(client: Client) -> None:
    assert client.get(QUEUE).status == 200


@pytest.mark.parametrize(
    "target", ["/", "/healthz/", "/healthz?x=1", "/queue.txt", "/serve/boot.zip", "/in/x", "/nothing", QUEUE]
)
def test_an_unsigned_request_learns_nothing(client: Client, target: str) -> None:
    answer = client.send("GET", target, b"", {})
    assert answer.status == 401
    assert answer.headers["Connection"] == "close"
    assert answer.json == {
        "error": {"code": "pairing", "hint": "run the bootstrap cell again", "message": "not paired", "retry": False}
    }
    assert answer.headers["Server"] == "bridgehead"


@pytest.mark.parametrize("seconds", [-signing.SKEW_S - 2, signing.SKEW_S + 10])
def test_a_stale_or_early_request_is_refused(client: Client, seconds: int) -> None:
    headers = client.signed("GET", QUEUE, created=int(time.time()) + seconds)
    assert client.send("GET", QUEUE, b"", headers).status == 401


def test_a_replayed_request_is_refused(client: Client) -> None:
    headers = client.signed("GET", QUEUE)
    assert client.send("GET", QUEUE, b"", headers).status == 200
    assert client.send("GET", QUEUE, b"", headers).status == 401


def test_a_wrong_key_and_an_unknown_key_id_are_refused(client: Client) -> None:
    assert Client(client.port, client.key_id, bytes(32)).get(QUEUE).status == 401
    assert Client(client.port, "k-00000000", client.key).get(QUEUE).status == 401


def test_a_signature_holds_for_its_method_path_and_query_alone(client: Client) -> None:
    headers = client.signed("GET", QUEUE)
    for method, target in (("HEAD", QUEUE), ("GET", "/queue.txt"), ("GET", QUEUE.replace("after=0", "after=1"))):
        assert client.send(method, target, b"", headers).status == 401


def test_the_signature_covers_the_spelling_that_was_on_the_wire(client: Client) -> None:
    headers = client.signed("GET", "/queue.txt")
    assert client.send("GET", "/queue%2etxt", b"", headers).status == 401
    assert client.get("/queue%2etxt").status == 200


def test_an_upload_header_that_is_not_signed_is_refused(client: Client, live: LiveBridge) -> None:
    uploader = Uploader(client, live.given_run(), "log")
    headers = client.signed("POST", uploader.target, b"", {names.HEADER_GENERATION: "1"})
    answer = client.send("POST", uploader.target, b"", headers | {names.HEADER_LENGTH: "5"})
    assert answer.status == 401


def test_an_unsigned_upload_is_refused_before_its_body_is_sent(client: Client) -> None:
    answer = client.head_only("PUT", "/in/pretrain-0001-aaaaaa/file", {"Content-Length": "50000000"})
    assert (answer.status, answer.headers["Connection"]) == (401, "close")


def test_a_stranger_who_asks_for_permission_to_send_gets_none(client: Client) -> None:
    headers = {"Content-Length": "10", "Expect": "100-continue"}
    assert client.head_only("PUT", "/in/pretrain-0001-aaaaaa/file", headers).status == 401


def test_an_oversized_heartbeat_is_refused_before_its_body_is_sent(client: Client) -> None:
    target = f"/vms/{VM}/heartbeat"
    headers = client.signed("POST", target) | {"Content-Length": str(2**20 + 1)}
    assert client.head_only("POST", target, headers).status == 413


def test_a_body_that_is_not_the_signed_one_is_refused(client: Client) -> None:
    target = f"/vms/{VM}/heartbeat"
    answer = client.send("POST", target, b'{"vm_id":"b"}', client.signed("POST", target, b'{"vm_id":"a"}'))
    assert (answer.status, answer.code) == (400, "verification")


def test_a_get_whose_body_is_not_signed_is_refused(client: Client) -> None:
    headers = client.signed("GET", QUEUE) | {"Content-Length": "5"}
    assert client.send("GET", QUEUE, b"hello", headers).status == 413


def test_a_nonce_is_good_once_across_restarts(tmp_path: Path) -> None:
    store = NonceStore(tmp_path)
    assert store.use("first")
    store.close()
    with (tmp_path / "nonces-a").open("ab") as handle:
        handle.write(b"half")  # the process was killed while it wrote
    again = NonceStore(tmp_path)
    assert not again.use("first")
    assert again.use("second")
    again.close()
    assert not NonceStore(tmp_path).use("second")


def test_nonces_are_kept_as_long_as_a_request_can_be_good(tmp_path: Path) -> None:
    now = time.time()
    store = NonceStore(tmp_path, clock=lambda: now)
    assert store.use("early")
    now += 2 * signing.SKEW_S + 11
    assert store.use("later") and not store.use("early")
    now += 2 * signing.SKEW_S + 11
    assert store.use("latest") and not store.use("later")
    assert store.use("early")  # forgotten; its request is stale by now
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 3 * 16
    store.close()


class _Resolver(HTTPSignatureKeyResolver):
    def __init__(self, key: bytes) -> None:
        self.key = signing.derive(key, signing.REQUESTS)

    def resolve_private_key(self, key_id: str) -> bytes:
        return self.key

    def resolve_public_key(self, key_id: str) -> bytes:
        return self.key


def test_the_bridge_accepts_what_an_independent_package_signs(client: Client) -> None:
    request = requests.Request("GET", f"http://127.0.0.1:{client.port}{QUEUE}").prepare()
    request.headers["Content-Digest"] = signing.content_digest(b"")
    signer = HTTPMessageSigner(signature_algorithm=algorithms.HMAC_SHA256, key_resolver=_Resolver(client.key))
    signer.sign(
        request,
        key_id=client.key_id,
        nonce="an-independent-nonce",
        label=signing.LABEL,
        use_existing_digest=True,
        include_alg=True,
        covered_component_ids=("@method", "@path", "@query", "content-digest"),
    )
    with requests.Session() as session:
        assert session.send(request, timeout=TIMEOUT_S).status_code == 200


def test_an_independent_package_accepts_what_we_sign(client: Client) -> None:
    request = requests.Request("GET", f"http://127.0.0.1:{client.port}{QUEUE}").prepare()
    request.headers.update(client.signed("GET", QUEUE))
    verifier = HTTPMessageVerifier(signature_algorithm=algorithms.HMAC_SHA256, key_resolver=_Resolver(client.key))
    assert [result.label for result in verifier.verify(request)] == [signing.LABEL]
    request.method = "HEAD"
    with pytest.raises(http_message_signatures.InvalidSignature):
        verifier.verify(request)
