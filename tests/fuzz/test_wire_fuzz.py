"""What comes from a stranger: signatures, digests, pairing codes, addresses. Refused in words, or exactly as it was."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import pytest
from fuzz_support import DEEP, any_json, any_text, damaged, fuzz, near
from hypothesis import assume, example, given
from hypothesis import strategies as st

from bridge.addresses import count, read_address, vm_id
from bridgehead import names, pairing, paths, signing
from bridgehead.errors import PairingError, UsageError
from bridgehead.pairing import Pairing

KEY = bytes(range(32))
NOW_S = 1_700_000_000
SIGNED = signing.sign_request(KEY, "key-1", "GET", "/queue", "a=1", {}, created=NOW_S, nonce="n" * 16)
TOKENS = (
    "bh=", "sig1=", "(", ")", '"@method"', '"@path"', '"@query"', '"content-digest"', " ", ";created=", "17", "é", "٣",
    ';nonce="nnnnnnnnnnnnnnnn"', ';keyid="key-1"', ';alg="hmac-sha256"', ";alg=", ":", "AAAA", "=",
)  # fmt: skip
HEADER_TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=0xFF), min_size=1, max_size=20)
COVERED = st.dictionaries(st.sampled_from(signing.COVERED_HEADERS), HEADER_TEXT, max_size=3)
URL_TEXT = st.text("abc/%._-~=&0123é", max_size=30)


def lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


# --- signatures ------------------------------------------------------------------------------------------


@given(any_text(60) | near(*TOKENS), any_text(60) | near(*TOKENS), COVERED | st.dictionaries(any_text(8), any_text(8)))
@fuzz(120)
def test_no_header_breaks_the_reader_of_signatures_and_none_passes(
    signature_input: str, signature: str, more: dict[str, str]
) -> None:
    headers = {**lower(SIGNED), **more, "signature-input": signature_input, "signature": signature}
    with pytest.raises(PairingError):
        signed = signing.parse_signature(headers)
        signing.verify_request(signed, KEY, "GET", "/queue", "a=1", headers, now_s=NOW_S)


@given(
    near(*TOKENS), any_text(20), any_text(20), st.dictionaries(st.sampled_from(signing.COVERED_HEADERS), any_text(9))
)
@example("GET", "/\udcff", "", {})
@fuzz(120)
def test_a_right_signature_does_not_pass_for_anything_but_what_was_signed(
    method: str, path: str, query: str, more: dict[str, str]
) -> None:
    headers = {**lower(SIGNED), **more}
    assume((method, path, query) != ("GET", "/queue", "a=1"))
    with pytest.raises(PairingError):
        signing.verify_request(signing.parse_signature(headers), KEY, method, path, query, headers, now_s=NOW_S)


@given(st.sampled_from(["GET", "PATCH"]), URL_TEXT, URL_TEXT, COVERED, st.binary(max_size=20))
@fuzz(100)
def test_what_was_signed_passes_and_changed_in_one_place_it_does_not(
    method: str, path: str, query: str, covered: dict[str, str], body: bytes
) -> None:
    digest = signing.parse_digest(signing.content_digest(body))
    made = signing.sign_request(KEY, "key-1", method, path, query, covered, body_sha256=digest, created=NOW_S)
    headers = lower({**covered, **made})
    signed = signing.parse_signature(headers)
    signing.verify_request(signed, KEY, method, path, query, headers, now_s=NOW_S)
    other = signing.content_digest(body + b"x")
    changes: list[tuple[str, str, str, dict[str, str]]] = [
        ("PUT", path, query, headers),
        (method, path + "x", query, headers),
        (method, path, query + "x", headers),
        (method, path, query, {**headers, "content-digest": other}),
        *((method, path, query, {**headers, name: value + "1"}) for name, value in covered.items()),
        *((method, path, query, {key: headers[key] for key in headers if key != name}) for name in covered),
    ]
    for change in changes:
        with pytest.raises(PairingError):
            signing.verify_request(signed, KEY, *change[:3], change[3], now_s=NOW_S)


@given(any_text(80) | near("sha-256=", ":", "A" * 43, "A" * 44, "=", ",", "sha-512=:AA==:"))
@fuzz(100)
def test_a_digest_header_is_32_bytes_or_nothing(text: str) -> None:
    digest = signing.parse_digest(text)
    assert digest is None or len(digest) == 32


# --- signed documents ---------------------------------------------------------------------------------------

DOCUMENT = signing.sign_document(KEY, "command", {"id": "1", "spec": {"config": {"lr": 0.1}}, "list": [1, 2]})


@given(any_json() | damaged(DOCUMENT), st.sampled_from(["command", "manifest", ""]))
@example({"kind": "command", "body": {"x": "\ud800"}, "sig": "\ud800"}, "command")
@fuzz(100)
def test_no_document_passes_that_was_not_signed_as_it_is(document: Any, kind: str) -> None:
    assume(json.dumps(document) != json.dumps(DOCUMENT))
    try:
        body = signing.open_document(KEY, kind, document)
    except PairingError:
        return
    assert (document["kind"], body) == ("command", DOCUMENT["body"])  # only what is not signed has changed


@given(st.dictionaries(any_text(8), any_json(), max_size=4), st.sampled_from(["command", "manifest"]))
@fuzz(80)
def test_a_signed_document_opens_as_its_own_kind_alone(body: dict[str, Any], kind: str) -> None:
    sent = json.loads(json.dumps(signing.sign_document(KEY, kind, body)))
    assert json.dumps(signing.open_document(KEY, kind, sent)) == json.dumps(body)
    with pytest.raises(PairingError):
        signing.open_document(KEY, "hints", sent)
    with pytest.raises(PairingError):
        signing.open_document(bytes(32), kind, sent)


# --- pairing codes ---------------------------------------------------------------------------------------------

CODE = Pairing("https://a-b.example", "key-1", KEY, "ab" * 32, store="/drive/My Drive").encode()
CODE_BODY = json.loads(base64.urlsafe_b64decode(CODE[4:] + "=="))


def code_of(body: str) -> str:
    return "bh1." + base64.urlsafe_b64encode(body.encode("utf-8", "surrogatepass")).decode().rstrip("=")


@given(any_text(60) | near("bh1.", CODE[4:20], CODE[20:], " ", "=", "-", "_"))
@example(code_of('{"v":Infinity,"url":"http://a","kid":"aaaa","key":"AAAA","boot":""}'))
@fuzz(120)
def test_no_text_breaks_the_reader_of_pairing_codes(text: str) -> None:
    _refused_or_the_same(text)


@given(
    damaged(CODE_BODY).map(lambda body: code_of(json.dumps(body))) | any_json().map(lambda v: code_of(json.dumps(v)))
)
@fuzz(100)
def test_no_content_of_a_pairing_code_breaks_its_reader(text: str) -> None:
    _refused_or_the_same(text)


def _refused_or_the_same(text: str) -> None:
    try:
        found = pairing.decode(text)
    except PairingError as error:
        told = error.message + error.hint
        assert not any(CODE[at : at + 8] in told for at in range(4, len(CODE) - 8))  # no part of a secret in an error
        return
    assert pairing.decode(found.encode()) == found
    assert len(found.key) == 32 and found.url.startswith(("http://", "https://"))


@given(
    st.from_regex(r"https?://[a-z0-9.-]{1,20}(:[1-9][0-9]{0,3})?", fullmatch=True),
    st.from_regex(r"[A-Za-z0-9_-]{4,64}", fullmatch=True),
    st.binary(min_size=32, max_size=32),
    st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
    st.just("") | st.from_regex(r"/[a-zA-Z0-9 é/]{0,20}", fullmatch=True),
    st.integers(1, 200),
)
@fuzz(40)
def test_a_pairing_code_reads_back_also_when_a_mail_program_has_wrapped_it(
    url: str, key_id: str, key: bytes, boot: str, store: str, width: int
) -> None:
    made = Pairing(url, key_id, key, boot, store=store)
    code = made.encode()
    assert pairing.decode("\n ".join(code[at : at + width] for at in range(0, len(code), width))) == made
    assert repr(key) not in repr(made)


# --- addresses ---------------------------------------------------------------------------------------------------


@given(any_text(60) | near("/in/", "/", "..", "%2e", "%2F", "%5c", "%", "%00", "?", "&", "vm=", "a", "attempt=1", "//"))
@fuzz(120)
def test_no_address_breaks_its_reader_and_no_path_that_is_let_through_leads_anywhere_else(raw: str) -> None:
    try:
        address = read_address(raw)
    except UsageError:
        return
    assert address.path.startswith("/") and "\0" not in address.path and "\\" not in address.path
    assert address.path.count("/") == raw.partition("?")[0].count("/")
    relative = address.path.removeprefix(names.IN_PREFIX)
    try:
        paths.check_relative(relative)
    except UsageError:
        return
    assert not set(relative.split("/")) & {"", ".", ".."}


@given(
    st.text(st.characters(exclude_characters="/\\\0", exclude_categories=["Cs"]), min_size=1),
    st.integers(0, 10**15 - 1),
)
@fuzz(80)
def test_an_address_reads_back(name: str, number: int) -> None:
    address = read_address(f"/in/{quote(name, safe='')}?n={number}")
    assert (address.path, count("n", address.query["n"])) == (f"/in/{name}", number)


@given(st.none() | any_text(20) | st.text("0123456789 +-_.e٣", max_size=18))
@fuzz(120)
def test_numbers_and_vm_ids_are_plain(text: str | None) -> None:
    with contextlib.suppress(UsageError):
        assert str(count("n", text)) == ((text or "").lstrip("0") or "0")
    with contextlib.suppress(UsageError):
        assert vm_id(text).isascii()


# --- one by one: what no example above would hit ---------------------------------------------------------------


def test_a_document_that_is_nested_too_deep_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(DEEP):
        deep = [deep]
    with pytest.raises(PairingError):
        signing.open_document(KEY, "command", {"kind": "command", "body": {"deep": deep}, "sig": "x"})


def test_a_pairing_code_that_is_nested_too_deep_is_refused() -> None:
    with pytest.raises(PairingError):
        pairing.decode(code_of("[" * DEEP))
