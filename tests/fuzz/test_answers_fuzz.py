"""What a VM hears need not come from its laptop: whoever holds the tunnel can answer anything at all.

Each call of BridgeClient ends in an error of our tree then; a thread of a daemon that dies of another one is deaf.
"""

from __future__ import annotations

import http.server
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from fuzz_support import DEEP, any_json, damaged, fuzz
from hypothesis import example, given
from hypothesis import strategies as st

from bridgehead import names, signing
from bridgehead.errors import BridgeheadError
from bridgehead.names import Ack
from bridgehead.records import AckRecord, Command, Heartbeat, StageSpec
from vm_daemons.client import BridgeClient
from vm_support import KEY, paired_home, reply, scripted_server

RUN = "pretrain-0001-3fa9c1"
SPEC = StageSpec("pretrain", "python train.py", config={"lr": 0.1})


@dataclass
class Stranger:
    """Answers each request with what was last put here."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    def __call__(self, request: http.server.BaseHTTPRequestHandler) -> None:
        with suppress(OSError):
            reply(request, self.status, b"" if self.status == 204 else self.body, **self.headers)


@pytest.fixture(scope="module")
def stranger() -> Iterator[tuple[Stranger, str]]:
    answers = Stranger()
    with scripted_server(answers) as url:
        yield answers, url


@pytest.fixture(scope="module")
def client(stranger: tuple[Stranger, str], tmp_path_factory: pytest.TempPathFactory) -> BridgeClient:
    return BridgeClient(paired_home(tmp_path_factory.mktemp("vm"), url=stranger[1]))


CALLS: tuple[Callable[[BridgeClient], Any], ...] = (
    lambda client: client.poll(0, 0.0),
    lambda client: client.ack("a" * 32, AckRecord("vm-1", Ack.ACCEPTED, 1)),
    lambda client: client.heartbeat(Heartbeat("vm-1", "boot", 0.0)),
    lambda client: client.manifest_document(),
    lambda client: client.offset(RUN, names.LOG, 1, "g"),
    lambda client: client.open_upload(RUN, names.LOG, 1, "g"),
    lambda client: client.append(RUN, names.LOG, 1, "g", 0, b"x"),
)
COMMAND = Command("1" * 32, 1, 1, "vm-x", "run", "pretrain", 1.0, run_id=RUN, spec=SPEC)
SOUND = {"commands": [signing.sign_document(KEY, "command", COMMAND.to_json())]}
SIGNED_WRONG = damaged(COMMAND.to_json()).map(
    lambda body: {"commands": [signing.sign_document(KEY, "command", body if isinstance(body, dict) else {})]}
)
BODIES = st.one_of(
    st.binary(max_size=60),
    any_json().map(lambda value: json.dumps(value).encode()),
    damaged(SOUND).map(lambda value: json.dumps(value).encode()),
    damaged({"error": {"code": "superseded", "message": "m", "hint": "h"}}).map(
        lambda value: json.dumps(value).encode()
    ),
    SIGNED_WRONG.map(lambda value: json.dumps(value).encode()),
)
HEADERS = st.dictionaries(
    st.sampled_from([names.HEADER_OFFSET, names.HEADER_COMPLETE, "Content-Range", "Content-Encoding", "Content-Type"]),
    st.sampled_from(
        ["5", "-1", "\xb2", "9" * 15, "9" * 5000, "?1", "gzip", "bytes 0-1/2", "bytes 9-", "text/html", ""]
    ),
    max_size=3,
)


@given(st.sampled_from([200, 204, 206, 301, 304, 400, 401, 404, 409, 413, 502, 507, 530]), BODIES, HEADERS)
@example(200, b"[" * DEEP, {})
@example(200, json.dumps({"commands": [{"kind": "command", "body": {}, "sig": "\ud800"}]}).encode(), {})
@example(409, b"[" * DEEP, {names.HEADER_OFFSET: "\xb2"})
@fuzz(40)
def test_whatever_answers_a_vm_hears_an_error_of_ours_or_what_was_meant(
    stranger: tuple[Stranger, str], client: BridgeClient, status: int, body: bytes, headers: dict[str, str]
) -> None:
    stranger[0].status, stranger[0].body, stranger[0].headers = status, body, headers
    for call in CALLS:
        with suppress(BridgeheadError):
            call(client)
