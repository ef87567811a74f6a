"""The table of peers, tiny: each case is measured, what a server can't do is left out, one that fails costs itself."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from bench import peer_servers, peer_sides, peers
from bench.peer_servers import Peer
from support import wait_until
from vm_run_support import is_gone

HTTP_SERVER = next(peer for peer in peer_servers.PEERS if peer.name == "http.server")
BROKEN = Peer("broken", takes_uploads=False, install=lambda: "", argv=lambda *_: [sys.executable, "-c", "exit('no')"])
ABSENT = Peer("absent", takes_uploads=True, install=lambda: "absent is not here", argv=lambda *_: ["absent"])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="the peers' client is curl")
def test_each_case_of_each_server_becomes_a_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (peers, peer_sides):
        monkeypatch.setattr(module, "LOG_S", 1)
    for name, value in {"PEERS": (HTTP_SERVER, BROKEN, ABSENT), "LINE_CASES": (), "ROUNDS": 1}.items():
        monkeypatch.setattr(peers, name, value)
    rows = list(peers.against_peers(1, 20))
    ours = {row["case"]: row for row in rows if row.get("server") == peers.BRIDGE}
    assert set(ours) == set(peers.CASES)
    assert all("error" not in row and row["mib_s"] > 0 and row["peak_mib"] > 0 for row in ours.values())
    theirs = {row["case"] for row in rows if row.get("server") == "http.server" and "error" not in row}
    assert theirs == {"GET", "small files down", "1 % changed, down"}
    assert {row["error"][:12] for row in rows if row.get("server") == "broken"} == {"RuntimeError"}
    assert "absent is not here" in capsys.readouterr().err
    table = peers.markdown(rows)
    assert "| GET | bridge |" in table and "| PUT | http.server, absent |" in table


def test_a_server_that_does_not_end_by_itself_is_ended_with_all_its_children(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys, http.server as h\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)'])\n"
        "h.HTTPServer(('127.0.0.1', int(sys.argv[1])), h.SimpleHTTPRequestHandler).serve_forever()"
    )

    def argv(data: Path, state: Path, port: int) -> list[str]:
        return [sys.executable, "-c", script, str(port)]

    peer = Peer("two", takes_uploads=False, install=lambda: "", argv=argv)
    with peer_servers.served(peer, tmp_path) as running:
        found = peer_servers.tree(running.pid)
        assert len(found) == 2 and peer_servers.peak_mib(running.pid) > 5
    wait_until(lambda: all(is_gone(pid) for pid in found), 20, what="the peer's processes to be ended")
