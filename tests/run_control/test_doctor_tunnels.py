"""`bridgehead doctor` about tunnels: each kind, with a real relay and stand-ins for the programs."""

from __future__ import annotations

import base64
import dataclasses
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import relay_rig
from bridge.tunnels.spec import TunnelSpec
from relay_rig import Relay
from run_control import doctor_tunnels
from run_control.checks import Check
from support import wait_until

with_relay = pytest.mark.skipif(bool(relay_rig.MISSING), reason=relay_rig.MISSING)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that comes first on PATH; nobody's configuration is found."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(doctor_tunnels, "_CONFIG_FOLDERS", (str(tmp_path / "config"),))
    return folder


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[Relay]:
    with relay_rig.relay(tmp_path / "relay") as made:
        yield made


def put(folder: Path, name: str, code: str) -> None:
    program = folder / name
    program.write_text(f"#!{sys.executable}\n{code}\n")
    program.chmod(0o755)


def by_name(spec: TunnelSpec, in_use: str = "") -> dict[str, Check]:
    return {check.name: check for check in doctor_tunnels.examine(spec, in_use=in_use)}


CLOUDFLARED = "print('cloudflared version 2026.8.2 (built 2026-08-20-1130 UTC)')"


def test_cloudflareds_version_is_told_and_what_was_not_tested(programs: Path) -> None:
    put(programs, "cloudflared", CLOUDFLARED)
    check = by_name(TunnelSpec())["cloudflared"]
    assert check.state == "pass" and check.text.startswith("2026.8.2 at ")
    assert "not tested" in check.text and "TCP port 7844" in check.text and "UDP" not in check.text
    assert "UDP port 7844" in by_name(TunnelSpec(protocol="quic"))["cloudflared"].text


@pytest.mark.parametrize("code", ["print('hello')", "raise SystemExit(1)"])
def test_a_cloudflared_that_tells_no_version_is_no_good(programs: Path, code: str) -> None:
    put(programs, "cloudflared", code)
    assert by_name(TunnelSpec())["cloudflared"].state == "warn"
    assert by_name(TunnelSpec(kind="cloudflared"))["cloudflared"].state == "fail"


def test_what_is_missing_fails_for_the_configured_kind_alone(
    programs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(programs))
    for kind in ("cloudflared", "ssh"):
        found = by_name(TunnelSpec(kind=kind, host="relay"))
        states = {name: found[name].state for name in ("cloudflared", "ssh")}
        assert states == {"cloudflared": "warn", "ssh": "warn"} | {kind: "fail"}
        assert all(found[name].hint for name in states)


def test_a_configuration_of_the_user_is_named_as_harmless(programs: Path, tmp_path: Path) -> None:
    assert "cloudflared config" not in by_name(TunnelSpec())
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.yml").write_text("ingress: []\n")
    check = by_name(TunnelSpec())["cloudflared config"]
    assert check.state == "pass" and "config.yml" in check.text and "harmless" in check.text


def test_a_token_file_is_looked_at_and_never_shown(programs: Path, tmp_path: Path) -> None:
    file = tmp_path / "token"
    spec = TunnelSpec(kind="cloudflared", hostname="bridge.example.org", token_file=str(file))
    assert by_name(spec)["cloudflared token"].state == "fail"
    file.write_text("no-token-at-all")
    wrong = by_name(spec)["cloudflared token"]
    assert wrong.state == "fail" and "no-token-at-all" not in wrong.text
    token = base64.b64encode(b'{"a": "account", "t": "tunnel", "s": "secret"}').decode()
    file.write_text(token)
    good = by_name(spec)["cloudflared token"]
    assert good.state == "pass" and token not in good.text


@with_relay
def test_a_relay_that_forwards_passes(programs: Path, relay: Relay) -> None:
    relay.start()
    found = by_name(relay.spec())
    assert found["ssh"].state == "pass" and "OpenSSH" in found["ssh"].text
    assert found["relay"].state == "pass" and "forwards" in found["relay"].text
    wait_until(lambda: not relay.sessions(), 20)


@with_relay
def test_a_relay_that_cant_be_used_fails_for_the_configured_kind_alone(programs: Path, relay: Relay) -> None:
    check = by_name(relay.spec())["relay"]
    assert check.state == "fail" and "nothing listens for ssh" in check.text and check.hint
    assert by_name(dataclasses.replace(relay.spec(), kind="none"))["relay"].state == "warn"


@with_relay
def test_a_relay_that_forbids_forwarding_fails(programs: Path, relay: Relay) -> None:
    relay.lines.append("AllowTcpForwarding no")
    relay.start()
    check = by_name(relay.spec())["relay"]
    assert check.state == "fail" and "forbids remote forwarding" in check.text


@with_relay
def test_a_relay_that_a_live_bridge_uses_is_not_asked_for_its_port_again(programs: Path, relay: Relay) -> None:
    check = by_name(relay.spec(remote_port=7000), in_use="ssh")["relay"]
    assert check.state == "pass" and "now" in check.text


def test_an_ssh_tunnel_without_a_host_fails_and_says_where_to_put_it(programs: Path) -> None:
    check = by_name(TunnelSpec(kind="ssh"))["relay"]
    assert check.state == "fail" and "host" in check.hint
    assert "relay" not in by_name(TunnelSpec())


def test_the_commands_program_is_looked_for(programs: Path) -> None:
    spec = TunnelSpec(kind="command", command=("my-tunnel", "{port}"), url="https://bridge.example.org")
    missing = by_name(spec)["command"]
    assert missing.state == "fail" and "my-tunnel is not on your PATH" in missing.text
    put(programs, "my-tunnel", "")
    assert by_name(spec)["command"].state == "pass"
    assert "command" not in by_name(TunnelSpec())


def test_a_command_that_cant_be_meant_fails(programs: Path) -> None:
    check = by_name(TunnelSpec(kind="command", command=("true",)))["command"]
    assert check.state == "fail" and "url_pattern" in check.hint


def test_no_tunnel_says_who_reaches_the_bridge(programs: Path) -> None:
    assert "only a VM on this machine" in by_name(TunnelSpec())["tunnel"].text
    assert "http://10.0.0.5:8766" in by_name(TunnelSpec(url="http://10.0.0.5:8766"))["tunnel"].text
