"""What a run made reaches a real bridge: many small files at once, big ones in parts, nothing twice, nothing lost."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge import uploads as laptop_uploads
from bridge_client import STAGE, LiveBridge, live_bridge, project
from bridgehead import names
from bridgehead.errors import SupersededError, TransferError
from support import wait_until
from vm_daemons import artefacts, client, crew, upload_requests
from vm_daemons.artefacts import Artefacts
from vm_daemons.client import BridgeClient
from vm_daemons.upload_pace import UploadPace
from vm_support import make_run, paired_home

BIG = f"{names.ARTIFACTS}/big.bin"
PART = 4000


class Rig:
    """One run, given to this VM, and its two ends."""

    def __init__(self, live: LiveBridge, root: Path) -> None:
        self.live = live
        self.home = paired_home(root, live)
        self.client = BridgeClient(self.home)
        self.pace = UploadPace()
        self.artefacts = Artefacts(self.client, self.pace)
        self.run_id = live.bridge.ledger.take([(1, f"run:{STAGE}")], project())[0].run_id
        self.client.poll(0, 0)
        self.run_dir = make_run(self.home, self.run_id)
        self.arrived = live.arrivals / self.run_id
        self.requests: list[tuple[str, str]] = []  # method, path below the run

    def make(self, relative: str, content: bytes) -> bytes:
        path = self.run_dir / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return content

    def send(self, *relatives: str) -> dict[str, str]:
        return self.artefacts.send(self.run_dir, self.run_id, 1, list(relatives))

    def count(self, method: str) -> int:
        return sum(sent == method for sent, _ in self.requests)


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(artefacts, "SMALL_BYTES", 1000)
    monkeypatch.setattr(artefacts, "PART_SIZES", (PART,))
    monkeypatch.setattr(artefacts, "TRIES", 2)
    monkeypatch.setattr(artefacts, "Backoff", lambda: client.Backoff(0.01, 0.02))
    root = tmp_path / "project"
    root.mkdir()
    with live_bridge(root) as live:
        rig = Rig(live, tmp_path / "vm")
        real = rig.client.send_in
        monkeypatch.setattr(
            rig.client,
            "send_in",
            lambda *given, **more: (rig.requests.append((given[0], given[2])), real(*given, **more))[1],
        )
        yield rig


# --- small files ------------------------------------------------------------------------------------------


def test_many_small_files_travel_in_few_requests(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artefacts, "BATCH_FILES", 100)
    made = {f"{names.ARTIFACTS}/{n % 5}/{n}.bin": os.urandom(n % 200) for n in range(250)}
    for relative, content in made.items():
        rig.make(relative, content)
    assert rig.send(*made) == {}
    assert rig.requests == [("POST", "")] * 3
    assert {path: (rig.arrived / path).read_bytes() for path in made} == made


def test_what_the_laptop_refuses_is_told_and_the_rest_arrives(rig: Rig) -> None:
    rig.make(f"{names.ARTIFACTS}/good", b"1")
    rig.make(f"{names.ARTIFACTS}/Model", b"2")
    (rig.arrived / names.ARTIFACTS).mkdir(parents=True)
    (rig.arrived / names.ARTIFACTS / "model").write_bytes(b"of an earlier attempt")
    refused = rig.send(f"{names.ARTIFACTS}/good", f"{names.ARTIFACTS}/Model")
    assert (
        list(refused) == [f"{names.ARTIFACTS}/Model"] and "upper and lower case" in refused[f"{names.ARTIFACTS}/Model"]
    )
    assert (rig.arrived / names.ARTIFACTS / "good").read_bytes() == b"1"


def test_a_batch_whose_answer_was_lost_is_asked_for_and_not_sent_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = [0]
    real = artefacts.send_batch

    def loses_its_answer(*given: Any) -> dict[str, str]:
        sent[0] += 1
        real(*given)
        raise TransferError("524")

    monkeypatch.setattr(artefacts, "send_batch", loses_its_answer)
    rig.make(f"{names.ARTIFACTS}/one", b"1")
    assert rig.send(f"{names.ARTIFACTS}/one") == {}
    assert sent == [1]
    assert (rig.arrived / names.ARTIFACTS / "one").read_bytes() == b"1"


# --- big files -----------------------------------------------------------------------------------------------


def test_a_big_file_arrives_in_parts_side_by_side(rig: Rig) -> None:
    content = rig.make(BIG, os.urandom(10 * PART + 17))
    assert rig.send(BIG) == {}
    assert (rig.arrived / BIG).read_bytes() == content
    assert rig.count("PATCH") == 11


def test_parts_whose_answers_were_lost_are_not_sent_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    content = rig.make(BIG, os.urandom(5 * PART))
    real = artefacts.send_part
    lost = {0, 2 * PART, 4 * PART}
    sent: list[int] = []

    def flaky(*given: Any, **more: Any) -> upload_requests.PartsState:
        part = given[3]
        sent.append(part.start)
        state = real(*given, **more)
        if part.start in lost:
            lost.discard(part.start)
            raise TransferError("cut after it arrived")
        return state

    monkeypatch.setattr(artefacts, "send_part", flaky)
    rig.send(BIG)
    assert (rig.arrived / BIG).read_bytes() == content
    assert sorted(sent) == [0, PART, 2 * PART, 3 * PART, 4 * PART]


def test_what_the_laptop_has_is_not_sent(rig: Rig) -> None:
    content = rig.make(BIG, os.urandom(5 * PART))
    rig.send(BIG)
    rig.make(f"{names.ARTIFACTS}/copy.bin", content)
    rig.make(f"{names.ARTIFACTS}/changed.bin", content[:PART] + os.urandom(PART) + content[2 * PART :])
    rig.requests.clear()
    rig.send(BIG, f"{names.ARTIFACTS}/copy.bin", f"{names.ARTIFACTS}/changed.bin")
    assert rig.count("PATCH") == 1
    assert (rig.arrived / names.ARTIFACTS / "copy.bin").read_bytes() == content


def test_a_file_that_changes_while_it_is_sent_arrives_as_it_is_in_the_end(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.make(BIG, os.urandom(5 * PART))
    real = artefacts.send_part
    newest: list[bytes] = []

    def changing(*given: Any, **more: Any) -> upload_requests.PartsState:
        if given[3].start == 2 * PART and not newest:
            newest.append(rig.make(BIG, os.urandom(4 * PART)))
        return real(*given, **more)

    monkeypatch.setattr(artefacts, "send_part", changing)
    rig.send(BIG)
    assert (rig.arrived / BIG).read_bytes() == newest[0]


def test_it_gives_up_when_nothing_gets_through(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise TransferError("no")

    monkeypatch.setattr(artefacts, "send_part", refuse)
    rig.make(BIG, os.urandom(5000))
    with pytest.raises(TransferError):
        rig.send(BIG)
    assert rig.pace.told() == {}


def test_a_run_that_went_to_another_vm_ends_it(rig: Rig) -> None:
    rig.make(BIG, os.urandom(5000))
    rig.live.bridge.ledger.mark_vm_gone(rig.client.vm_id, "test")
    with pytest.raises(SupersededError):
        rig.send(BIG)


def test_the_laptops_limit_for_a_part_is_kept(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    real = laptop_uploads.Uploads.limits
    limit = {names.HEADER_LIMIT: "max-size=1000000, max-append-size=1500"}
    monkeypatch.setattr(laptop_uploads.Uploads, "limits", lambda *given: {**real(*given), **limit})
    content = rig.make(BIG, os.urandom(5000))
    rig.send(BIG)
    assert (rig.arrived / BIG).read_bytes() == content
    assert rig.count("PATCH") == 4


def test_the_laptops_limit_for_a_whole_is_kept(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laptop_uploads.Uploads, "limits", lambda *_: {names.HEADER_LIMIT: "max-size=4999"})
    rig.make(BIG, os.urandom(5000))
    with pytest.raises(TransferError, match="no room"):
        rig.send(BIG)
    assert rig.count("PATCH") == 0


def test_no_part_is_ever_near_what_a_tunnel_refuses(tmp_path: Path) -> None:
    assert max(artefacts.PART_SIZES) <= names.PART_MAX_BYTES == 32 * 2**20
    assert artefacts.BATCH_BYTES + artefacts.SMALL_BYTES <= names.BATCH_MAX_BYTES <= 32 * 2**20


# --- proxies that spoil the last answer ------------------------------------------------------------------------


@contextlib.contextmanager
def spoiling_proxy(
    port: int, spoils: Callable[[str, http.client.HTTPResponse], bool]
) -> Iterator[tuple[str, list[str]]]:
    """Passes requests on; where `spoils`, the answer becomes the 524 of an edge that had no patience."""
    spoilt: list[str] = []

    class Proxy(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            upstream = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            upstream.request(self.command, self.path, body, dict(self.headers.items()))
            answer = upstream.getresponse()
            data, status, headers = answer.read(), answer.status, answer.getheaders()
            if spoils(self.command, answer):
                spoilt.append(f"{self.command} {self.path}")
                data, status, headers = b"<html>error code: 524</html>", 524, [("Content-Type", "text/html")]
            self.send_response(status)
            for name, value in headers:
                if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_PATCH = do_PUT = do_HEAD = do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", spoilt
    finally:
        server.shutdown()
        server.server_close()
        thread.join(100)


def test_a_524_after_the_last_part_arrived_is_success(rig: Rig) -> None:
    content = rig.make(BIG, os.urandom(3 * PART))

    def completes(method: str, answer: http.client.HTTPResponse) -> bool:
        return method == "PATCH" and answer.getheader(names.HEADER_COMPLETE) == "?1"

    with spoiling_proxy(rig.live.bridge.port, completes) as (url, spoilt):
        rig.home.save_pairing(rig.live.bridge.pairing(url))
        rig.send(BIG)
    assert len(spoilt) == 1 and rig.count("PATCH") == 3
    assert (rig.arrived / BIG).read_bytes() == content


# --- room ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_full_disk_truncates_nothing_and_the_rest_arrives_when_there_is_room(rig: Rig) -> None:
    from chaos.mounts import Disk

    rig.live.arrivals.mkdir(exist_ok=True)
    old = rig.make(f"{names.ARTIFACTS}/small", b"old")
    disk = Disk(rig.live.arrivals, 80)
    disk.mount()
    try:
        rig.send(f"{names.ARTIFACTS}/small")
        content = rig.make(BIG, os.urandom(20 * PART))
        rig.make(f"{names.ARTIFACTS}/small", b"new")
        disk.fill(leave_bytes=names.LAPTOP_RESERVE_BYTES)
        for relative in (BIG, f"{names.ARTIFACTS}/small"):
            with pytest.raises(TransferError):
                rig.send(relative)
        assert (rig.arrived / names.ARTIFACTS / "small").read_bytes() == old
        assert not (rig.arrived / BIG).exists()
        disk.empty()
        rig.send(BIG, f"{names.ARTIFACTS}/small")
        assert (rig.arrived / BIG).read_bytes() == content
        assert (rig.arrived / names.ARTIFACTS / "small").read_bytes() == b"new"
    finally:
        disk.unmount()


# --- progress, pause -------------------------------------------------------------------------------------------


def test_a_pause_lets_nothing_begin_until_it_ends(rig: Rig) -> None:
    content = rig.make(BIG, os.urandom(2 * PART))
    rig.pace.heed({"paused": True, "mb_s": 0})
    sender = threading.Thread(target=rig.send, args=(BIG,), daemon=True)
    sender.start()
    wait_until(lambda: rig.pace.told().get("runs"), what="the sender to wait its turn")
    assert rig.pace.told()["paused"] is True and rig.requests == []
    rig.pace.heed({"paused": False, "mb_s": 0})
    sender.join(100)
    assert (rig.arrived / BIG).read_bytes() == content


def test_progress_counts_what_was_there_already(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    content = rig.make(BIG, os.urandom(4 * PART))
    rig.send(BIG)
    rig.make(BIG, content[: 3 * PART] + os.urandom(PART))
    seen: list[dict[str, Any]] = []
    real = artefacts.send_part
    monkeypatch.setattr(
        artefacts, "send_part", lambda *a, **b: (seen.append(rig.pace.told()["runs"][0]), real(*a, **b))[1]
    )
    rig.send(BIG)
    assert [(run["bytes"], run["total_bytes"]) for run in seen] == [(3 * PART, 4 * PART)]


# --- how many at once ------------------------------------------------------------------------------------------


def settle(line: Callable[[int], float]) -> int:
    """The width after a while on a line that carries `line(width)` bytes a second in all."""
    now = [0.0]
    width = crew.Width(clock=lambda: now[0])
    for _ in range(60):
        now[0] += 2**20 / line(width.now)
        width.note(2**20)
    return width.now


def test_a_slow_line_gets_one_connection() -> None:
    assert settle(lambda width: 2e5) == 1


def test_a_line_that_one_pair_fills_gets_no_more() -> None:
    assert settle(lambda width: 2e7) == 2


def test_a_line_that_carries_more_with_each_connection_gets_all() -> None:
    assert settle(lambda width: width * 5e6) == crew.MOST


def test_after_a_failed_job_no_other_is_begun_and_the_failure_is_told() -> None:
    begun: list[int] = []

    def job(number: int) -> int:
        begun.append(number)
        if number == 0:
            raise TransferError("no")
        return 1

    jobs = ((lambda n=n: job(n)) for n in range(100))  # type: ignore[misc]
    with pytest.raises(TransferError):
        crew.work(jobs, crew.Width())
    assert len(begun) < 100
