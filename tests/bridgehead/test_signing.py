"""RFC 9421 requests and signed documents."""

from __future__ import annotations

import time

import pytest

from bridgehead import names, signing
from bridgehead.errors import PairingError

KEY = bytes(range(32))


def _headers(method: str = "GET", path: str = "/queue", query: str = "vm=a", **kwargs: object) -> dict[str, str]:
    extra = kwargs.pop("extra", {})
    made = signing.sign_request(KEY, "kid1", method, path, query, extra, **kwargs)  # type: ignore[arg-type]
    return {name.lower(): value for name, value in {**extra, **made}.items()}  # type: ignore[dict-item]


def _verify(headers: dict[str, str], method: str = "GET", path: str = "/queue", query: str = "vm=a") -> None:
    signed = signing.parse_signature(headers)
    signing.verify_request(signed, KEY, method, path, query, headers, now_s=time.time())


def test_a_signed_request_is_accepted() -> None:
    headers = _headers()
    _verify(headers)
    assert signing.parse_signature(headers).key_id == "kid1"


@pytest.mark.parametrize(
    ("method", "path", "query"),
    [("PUT", "/queue", "vm=a"), ("GET", "/queue/", "vm=a"), ("GET", "/queue", "vm=b"), ("GET", "/queue", "")],
)
def test_a_signature_covers_method_path_and_query(method: str, path: str, query: str) -> None:
    with pytest.raises(PairingError, match="wrong signature"):
        _verify(_headers(), method, path, query)


def test_a_header_that_steers_an_upload_must_be_signed() -> None:
    headers = _headers("PATCH", "/in/x", "")
    headers[names.HEADER_OFFSET.lower()] = "7"
    with pytest.raises(PairingError, match="does not cover"):
        _verify(headers, "PATCH", "/in/x", "")


def test_a_changed_upload_offset_breaks_the_signature() -> None:
    headers = _headers("PATCH", "/in/x", "", extra={names.HEADER_OFFSET: "7"})
    headers[names.HEADER_OFFSET.lower()] = "8"
    with pytest.raises(PairingError, match="wrong signature"):
        _verify(headers, "PATCH", "/in/x", "")


@pytest.mark.parametrize("shift_s", [-200, 200])
def test_a_stale_request_is_refused(shift_s: int) -> None:
    headers = _headers(created=int(time.time()) + shift_s)
    with pytest.raises(PairingError, match="stale"):
        _verify(headers)


@pytest.mark.parametrize(
    "damage",
    [
        {"signature-input": ""},
        {"signature": "bh=:AAAA:"},
        {"signature": "bh=:????:"},
        {"signature-input": 'bh=("@method");created=1;nonce="n";keyid="k"'},
        {"signature-input": "bh=();created=x"},
        {"signature": "x" * 100_000},
    ],
)
def test_a_damaged_signature_is_refused_without_a_traceback(damage: dict[str, str]) -> None:
    with pytest.raises(PairingError):
        _verify({**_headers(), **damage})


def test_another_key_is_refused() -> None:
    headers = _headers()
    signed = signing.parse_signature(headers)
    with pytest.raises(PairingError, match="wrong signature"):
        signing.verify_request(signed, bytes(32), "GET", "/queue", "vm=a", headers, now_s=time.time())


def test_a_document_opens_only_as_its_own_kind_and_unchanged() -> None:
    document = signing.sign_document(KEY, "command", {"id": "a", "n": 1})
    assert signing.open_document(KEY, "command", document) == {"id": "a", "n": 1}
    for bad in ({**document, "body": {"id": "a", "n": 2}}, {**document, "sig": "0" * 64}, {}, None, [], "x"):
        with pytest.raises(PairingError):
            signing.open_document(KEY, "command", bad)
    with pytest.raises(PairingError):
        signing.open_document(KEY, "hints", document)


def test_a_request_signature_is_no_document_signature() -> None:
    assert signing.derive(KEY, signing.REQUESTS) != signing.derive(KEY, signing.DOCUMENTS)
