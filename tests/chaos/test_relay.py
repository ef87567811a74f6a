"""The campaign's relay: a real sshd whose ports it hears of, and the faults that give the bridge another address."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.tunnels.process import Times
from bridge.tunnels.spec import TunnelSpec
from bridge.tunnels.ssh import SshReverse
from chaos import campaign, relay
from chaos.faults import FAULTS
from chaos.relay import Relay
from chaos.world import SSH
from support import wait_until

RELAYED = {"url-change", "relay-down"}
with_sshd = pytest.mark.skipif(bool(relay.missing()), reason=relay.missing())


@pytest.fixture
def heard() -> list[int]:
    return []


@pytest.fixture
def host(tmp_path: Path, heard: list[int]) -> Iterator[Relay]:
    made = Relay(tmp_path / "relay", heard.append)
    made.start()
    yield made
    made.stop()


@with_sshd
def test_each_port_that_it_chooses_is_heard_of(host: Relay, heard: list[int]) -> None:
    spec = TunnelSpec(kind="ssh", host="127.0.0.1", options=host.options(), url="http://127.0.0.2:{port}")
    tunnel = SshReverse(spec, times=Times(pause_s=0.05, check_s=0.02))
    tunnel.start(9)
    try:
        first = tunnel.wait_url(60)
        wait_until(lambda: [f"http://127.0.0.2:{port}" for port in heard] == [first], 60)
        assert host.signal_sessions(signal.SIGKILL) > 0
        wait_until(lambda: len(heard) == 2 and tunnel.healthy(), 60)
        host.stop()
        wait_until(lambda: not tunnel.healthy(), 60)
        host.start()
        wait_until(lambda: len(heard) == 3 and tunnel.healthy(), 60)
    finally:
        tunnel.stop()


def test_faults_of_the_relay_strike_only_where_there_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert {kind for kind, fault in FAULTS.items() if fault.tunnel == SSH} == RELAYED
    assert not RELAYED & set(campaign._kinds(None, "none"))
    assert "url-change-bridge" in campaign._kinds(None, "none")
    assert "url-change" not in capsys.readouterr().err
    with pytest.raises(SystemExit):
        campaign._kinds(["url-change"], "none")
    assert "url-change: needs --tunnel ssh" in capsys.readouterr().err
    if not relay.missing():
        assert set(campaign._kinds(None, SSH)) > RELAYED
