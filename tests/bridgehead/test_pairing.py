"""The pairing code."""

from __future__ import annotations

import base64
import dataclasses
import json

import pytest

from bridgehead.errors import PairingError
from bridgehead.pairing import Pairing, decode

PAIRING = Pairing("http://127.0.0.1:8766", "kid-1", bytes(range(32)), "ab" * 32)


def test_a_code_reads_back() -> None:
    assert decode(PAIRING.encode()) == PAIRING


def test_where_the_store_lies_is_in_it_when_the_project_says_so() -> None:
    code = dataclasses.replace(PAIRING, store="/kaggle/disk/my store").encode()
    assert decode(code).store == "/kaggle/disk/my store"


def test_a_code_of_before_names_no_store_and_is_good() -> None:
    body = json.loads(base64.urlsafe_b64decode(PAIRING.encode()[4:] + "=="))
    assert set(body) == {"v", "url", "kid", "key", "boot"} and decode(PAIRING.encode()).store == ""


@pytest.mark.parametrize("store", ["relative/path", "/a\nb"])
def test_a_code_with_a_strange_store_is_refused(store: str) -> None:
    with pytest.raises(PairingError, match="no usable store"):
        decode(dataclasses.replace(PAIRING, store=store).encode())


def test_white_space_from_copying_does_no_harm() -> None:
    code = PAIRING.encode()
    assert decode(f"  {code[:20]}\n{code[20:]} \n") == PAIRING


def test_the_key_is_not_in_the_repr() -> None:
    assert "\\x01" not in repr(PAIRING)


@pytest.mark.parametrize("cut", [20, 100, -3, -30])
def test_a_cut_code_is_refused_without_being_quoted(cut: int) -> None:
    code = PAIRING.encode()[:cut]
    with pytest.raises(PairingError) as caught:
        decode(code)
    assert code[4:16] not in str(caught.value)


@pytest.mark.parametrize("code", ["", "hello", "bh1.", "bh1.!!!!", "bh2.abcd", "bh1.e30"])
def test_what_is_no_code_is_refused(code: str) -> None:
    with pytest.raises(PairingError):
        decode(code)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://a b", "javascript:x", "http://u:p@host"])
def test_a_code_with_a_strange_url_is_refused(url: str) -> None:
    with pytest.raises(PairingError):
        decode(Pairing(url, "kid-1", bytes(32), "ab" * 32).encode())


def test_another_protocol_says_what_to_do() -> None:
    with pytest.raises(PairingError) as caught:
        decode(Pairing("http://h", "kid-1", bytes(32), "ab" * 32, protocol=2).encode())
    assert "bootstrap cell" in caught.value.hint


def test_a_code_says_that_its_vm_runs_no_shell_commands_and_what_keys_were_before() -> None:
    narrow = dataclasses.replace(PAIRING, allow_sh=False, former=(bytes(32), bytes([7] * 32)))
    assert decode(narrow.encode()) == narrow
    assert decode(narrow.encode()).document_keys == (PAIRING.key, *narrow.former)
    assert "\\x07" not in repr(narrow)


def test_only_plain_true_lets_a_vm_run_shell_commands() -> None:
    body = json.loads(base64.urlsafe_b64decode(PAIRING.encode()[4:] + "=="))
    code = "bh1." + base64.urlsafe_b64encode(json.dumps({**body, "sh": "yes"}).encode()).decode()
    assert decode(code).allow_sh is False


def test_a_former_key_of_another_length_is_refused() -> None:
    with pytest.raises(PairingError, match="cut or damaged"):
        decode(dataclasses.replace(PAIRING, former=(b"short",)).encode())
