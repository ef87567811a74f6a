"""The ssh tunnel through a real sshd on loopback, with a real bridge behind it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import relay_rig
from bridge.tunnels.process import Times
from bridge.tunnels.spec import TunnelSpec
from bridge.tunnels.ssh import SshReverse, forward_arguments
from bridge_client import VM, Client, LiveBridge, Uploader, live_bridge
from bridgehead.errors import BridgeDownError, UsageError
from relay_rig import Relay
from support import wait_until

TIMES = Times(ask_s=0.01, check_s=0.02, restart_s=60.0, pause_s=0.05, pause_max_s=0.2, stop_s=2.0)
WAIT_S = 100.0
pytestmark = pytest.mark.skipif(bool(relay_rig.MISSING), reason=relay_rig.MISSING)

Make = Callable[..., SshReverse]


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[Relay]:
    with relay_rig.relay(tmp_path / "relay") as made:
        yield made


@pytest.fixture
def make() -> Iterator[Make]:
    made = []

    def start(spec: TunnelSpec, port: int = 9, **values: Any) -> SshReverse:
        tunnel = SshReverse(spec, times=TIMES, **values)
        made.append(tunnel)
        tunnel.start(port)
        return tunnel

    yield start
    for tunnel in made:
        tunnel.stop()


def through(url: str, live: LiveBridge) -> Client:
    """The client, as it reaches the bridge from the relay's side."""
    return dataclasses.replace(live.client(), port=urlsplit(url).port)


def answers(url: str, live: LiveBridge) -> bool:
    with contextlib.suppress(OSError):
        return through(url, live).get(f"/queue?vm={VM}&after=0&wait=0").status == 200
    return False


# --- up -------------------------------------------------------------------------------------------


def test_signed_requests_pass_at_the_port_that_the_relay_chose(relay: Relay, make: Make, live: LiveBridge) -> None:
    relay.start()
    tunnel = make(relay.spec(), live.bridge.port)
    url = tunnel.wait_url(WAIT_S)
    assert url.startswith("http://127.0.0.1:") and urlsplit(url).port != live.bridge.port
    assert tunnel.healthy() and tunnel.wait_url(0) == url
    assert answers(url, live)
    forged = dataclasses.replace(through(url, live), key=bytes(32)).get(f"/queue?vm={VM}&after=0&wait=0")
    assert forged.status == 401


def test_a_fixed_port_is_used_and_known_without_being_allocated(relay: Relay, make: Make, live: LiveBridge) -> None:
    relay.start()
    port = relay_rig.free_port()
    url = make(relay.spec(remote_port=port), live.bridge.port).wait_url(WAIT_S)
    assert url == f"http://127.0.0.1:{port}"
    assert answers(url, live)


def test_an_address_of_a_web_server_on_the_relay_is_told_with_the_port_in_it(relay: Relay, make: Make) -> None:
    relay.start()
    port = relay_rig.free_port()
    tunnel = make(relay.spec(remote_port=port, url="https://at-{port}.example.org/"))
    assert tunnel.wait_url(WAIT_S) == f"https://at-{port}.example.org"


def test_a_quiet_config_of_the_user_does_not_hide_the_port(relay: Relay, make: Make) -> None:
    relay.start()
    assert make(relay.spec("LogLevel=QUIET")).wait_url(WAIT_S)


def test_what_ssh_says_at_length_is_not_in_the_log(relay: Relay, make: Make) -> None:
    relay.start()
    tunnel = make(relay.spec())
    tunnel.wait_url(WAIT_S)
    assert any("Allocated port" in line for line in tunnel.log_tail())
    assert not any(line.startswith("debug") for line in tunnel.log_tail())


def test_64_mib_pass_intact_both_ways(relay: Relay, make: Make, tmp_path: Path) -> None:
    relay.start()
    body = os.urandom(64 * 2**20)
    data = tmp_path / "project" / "data"
    data.mkdir(parents=True)
    (data / "large.bin").write_bytes(body)
    with live_bridge(tmp_path / "project") as live:
        client = through(make(relay.spec(), live.bridge.port).wait_url(WAIT_S), live)
        client.get("/serve/manifest.json")
        down = client.get("/serve/payload/data/large.bin")
        assert down.status == 200 and hashlib.sha256(down.body).digest() == hashlib.sha256(body).digest()
        run = live.given_run()
        up = Uploader(client, run, "artifacts/large.bin").put(body)
        assert up.status in (200, 201)
        assert (live.arrivals / run / "artifacts" / "large.bin").read_bytes() == body


# --- down and back --------------------------------------------------------------------------------


def test_a_killed_session_is_back_by_itself_at_a_new_port_that_is_reported(
    relay: Relay, make: Make, live: LiveBridge
) -> None:
    relay.start()
    heard: list[str] = []
    tunnel = make(relay.spec(), live.bridge.port, on_new_url=heard.append)
    first = tunnel.wait_url(WAIT_S)
    with _held(urlsplit(first).port, after=lambda: relay.signal_sessions(signal.SIGKILL)):
        wait_until(lambda: heard, WAIT_S)
    assert heard[0] != first and tunnel.wait_url(0) == heard[0]
    assert wait_until(lambda: answers(heard[0], live), WAIT_S)
    assert not tunnel.trouble()


def test_at_a_fixed_port_it_keeps_trying_while_the_relay_holds_it_and_says_so(
    relay: Relay, make: Make, live: LiveBridge
) -> None:
    relay.start()
    heard: list[str] = []
    port = relay_rig.free_port()
    tunnel = make(relay.spec(remote_port=port), live.bridge.port, on_new_url=heard.append)
    url = tunnel.wait_url(WAIT_S)
    with _held(port, after=lambda: relay.signal_sessions(signal.SIGKILL)):
        wait_until(lambda: f"port {port} on 127.0.0.1 is taken" in tunnel.trouble(), WAIT_S)
        assert not tunnel.healthy()
    wait_until(tunnel.healthy, WAIT_S)
    assert wait_until(lambda: answers(url, live), WAIT_S)
    assert not heard, "the address is the same"


def test_a_relay_that_does_not_answer_any_more_is_left_for_a_new_connection(relay: Relay, make: Make) -> None:
    """As after a laptop's sleep, or a cut that nobody was told of."""
    relay.start()
    heard: list[str] = []
    tunnel = make(relay.spec("ServerAliveInterval=1", "ServerAliveCountMax=1"), on_new_url=heard.append)
    tunnel.wait_url(WAIT_S)
    before = tunnel.pid
    frozen = relay.sessions()
    relay.signal_sessions(signal.SIGSTOP)
    wait_until(lambda: heard, WAIT_S)
    assert tunnel.pid != before and tunnel.healthy()
    for pid in frozen:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_relay_that_was_away_is_found_again(relay: Relay, make: Make, live: LiveBridge) -> None:
    relay.start()
    port = relay_rig.free_port()
    tunnel = make(relay.spec(remote_port=port), live.bridge.port)
    url = tunnel.wait_url(WAIT_S)
    relay.stop()
    wait_until(lambda: "nothing listens for ssh" in tunnel.trouble(), WAIT_S)
    relay.start()
    assert wait_until(lambda: answers(url, live), WAIT_S)


def test_stopping_leaves_no_process(relay: Relay, make: Make) -> None:
    relay.start()
    tunnel = make(relay.spec())
    tunnel.wait_url(WAIT_S)
    pid = tunnel.pid
    tunnel.stop()
    tunnel.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not tunnel.healthy()
    wait_until(lambda: not relay.sessions(), WAIT_S)


# --- never up -------------------------------------------------------------------------------------


def fails(make: Make, spec: TunnelSpec) -> BridgeDownError:
    with pytest.raises(BridgeDownError) as caught:
        make(spec).wait_url(WAIT_S)
    assert caught.value.hint and "\n" not in caught.value.in_one_line()
    return caught.value


def test_a_busy_port_is_told(relay: Relay, make: Make) -> None:
    relay.start()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        error = fails(make, relay.spec(remote_port=port))
    assert f"port {port} on 127.0.0.1 is taken" in error.message and "remote_port = 0" in error.hint


def test_a_key_that_the_relay_does_not_know_is_told(relay: Relay, make: Make) -> None:
    relay.start()
    error = fails(make, relay.spec(key="stranger"))
    assert "does not let you in" in error.message and "authorized_keys" in error.hint


def test_a_relay_that_is_down_is_told(relay: Relay, make: Make) -> None:
    assert f"nothing listens for ssh at 127.0.0.1 port {relay.port}" in fails(make, relay.spec()).message


def test_a_host_that_does_not_exist_is_told(relay: Relay, make: Make) -> None:
    error = fails(make, relay.spec(host="relay.invalid", url="https://relay.example"))
    assert "no host called relay.invalid" in error.message


def test_a_host_key_that_is_not_known_is_told(relay: Relay, make: Make) -> None:
    relay.start()
    (relay.folder / "known").write_text("")
    error = fails(make, relay.spec())
    assert "not known on this laptop" in error.message and "`ssh 127.0.0.1`" in error.hint


def test_a_host_key_that_changed_is_told_as_that(relay: Relay, make: Make) -> None:
    relay.start()
    relay.know("stranger")
    assert "another host key than before" in fails(make, relay.spec()).message


def test_a_relay_that_forbids_forwarding_is_told(relay: Relay, make: Make) -> None:
    relay.lines.append("AllowTcpForwarding local")
    relay.start()
    error = fails(make, relay.spec())
    assert "forbids remote forwarding" in error.message and "AllowTcpForwarding yes" in error.hint


def test_a_key_that_may_not_forward_is_told(relay: Relay, make: Make) -> None:
    relay.allow("user", "no-port-forwarding")
    relay.start()
    assert "forbids remote forwarding" in fails(make, relay.spec()).message


def test_a_port_that_the_relay_does_not_permit_is_told(relay: Relay, make: Make) -> None:
    relay.lines.append("PermitListen 22222")
    relay.start()
    assert "PermitListen" in fails(make, relay.spec()).hint


def test_a_relay_without_gateway_ports_is_told(relay: Relay, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts any bind address and listens on its loopback, so the port is refused at its public address."""
    relay.lines.append("GatewayPorts no")
    relay.start()
    public = _own_address()
    monkeypatch.setattr("bridge.tunnels.ssh.resolve", lambda spec: public)
    error = fails(make, relay.spec(bind="0.0.0.0"))
    assert "on its own loopback alone" in error.message and "GatewayPorts clientspecified" in error.hint


def test_with_gateway_ports_the_address_is_the_relays_own(
    relay: Relay, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay.lines.append("GatewayPorts clientspecified")
    relay.start()
    public = _own_address()
    monkeypatch.setattr("bridge.tunnels.ssh.resolve", lambda spec: public)
    assert make(relay.spec(bind="0.0.0.0")).wait_url(WAIT_S).startswith(f"http://{public}:")


def test_a_loopback_port_without_an_address_is_refused_before_anything_starts(relay: Relay) -> None:
    tunnel = SshReverse(TunnelSpec(kind="ssh", host="alias", options=("HostName=relay.example.org",)))
    with pytest.raises(BridgeDownError, match="its own loopback") as caught:
        tunnel.start(9)
    assert "web server" in caught.value.hint and 'bind = "0.0.0.0"' in caught.value.hint
    assert not tunnel.pid


def test_an_option_that_ssh_does_not_know_is_told(relay: Relay, make: Make) -> None:
    with pytest.raises(BridgeDownError, match="does not know the option nonsense"):
        make(relay.spec("Nonsense=1"))


def test_without_ssh_it_says_so(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BridgeDownError, match="ssh is not on your PATH"):
        make(TunnelSpec(kind="ssh", host="relay"))


@pytest.mark.parametrize(
    "values",
    [
        {"host": ""},
        {"host": "-oProxyCommand=touch /tmp/x"},
        {"host": "me@-relay"},
        {"host": "relay more"},
        {"host": "relay\n"},
        {"remote_port": 65536},
        {"bind": "-R"},
        {"options": ("-oProxyCommand=x",)},
        {"options": ("NoValue",)},
        {"options": ("Port=1\nProxyCommand=x",)},
        {"url": "ftp://x"},
        {"url": "https://user@x"},
    ],
)
def test_a_tunnel_that_cant_be_meant_is_refused_when_it_is_made(values: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        SshReverse(TunnelSpec(**{"kind": "ssh", "host": "relay", **values}))
    assert caught.value.hint


def test_the_users_options_count_but_it_never_asks() -> None:
    words = forward_arguments(TunnelSpec(host="relay", options=("BatchMode=no", "ServerAliveInterval=60")), 8766)
    options = words[words.index("-o") :]
    assert options.index("BatchMode=yes") < options.index("BatchMode=no"), "the first one counts"
    assert options.index("ServerAliveInterval=60") < options.index("ServerAliveInterval=5")
    assert words[-1] == "relay" and "127.0.0.1:0:127.0.0.1:8766" in words


def test_a_v6_address_to_listen_at_is_put_in_brackets() -> None:
    assert "[::]:7000:127.0.0.1:8766" in forward_arguments(TunnelSpec(host="relay", bind="::", remote_port=7000), 8766)


@contextlib.contextmanager
def _held(port: int | None, *, after: Callable[[], None]) -> Iterator[None]:
    """The relay holds the port, as it does for a connection that was cut without a word."""
    assert port
    after()
    with socket.socket() as holder:
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                holder.bind(("127.0.0.1", port))
                break
            except OSError:
                assert time.monotonic() < deadline
        holder.listen()
        yield


def _own_address() -> str:
    """One of this machine's that is not loopback; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(probe.getsockname()[0])
