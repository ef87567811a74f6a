"""Which tunnels can work here, and why not. What is wrong with the configured kind fails; with another it is a note."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bridge.tunnels import command, ssh, token_file
from bridge.tunnels.cloudflared import Cloudflared
from bridge.tunnels.none import NoTunnel
from bridge.tunnels.spec import TunnelSpec
from bridgehead.errors import BridgeheadError
from run_control.checks import FAIL, PASS, WARN, Check

RELAY_DEADLINE_S = 5.0
_VERSION_TIMEOUT_S = 5.0
_VERSION = re.compile(r"version (\d[\w.-]*)")
# Where cloudflared looks for a configuration by itself (its config/configuration.go, 2026.8).
_CONFIG_FOLDERS = (
    "~/.cloudflared", "~/.cloudflare-warp", "~/cloudflare-warp", "/etc/cloudflared", "/usr/local/etc/cloudflared",
)  # fmt: skip
_CONFIG_NAMES = ("config.yml", "config.yaml")
_UNTESTED_EDGE = "not tested: whether this network lets it out to Cloudflare, TCP port 7844"


def examine(spec: TunnelSpec, *, in_use: str = "") -> list[Check]:
    """One or more checks for each kind. `in_use` is the kind that a live bridge has now: that one has proved itself.

    Connects to the relay of an ssh tunnel, within 5 s, and to nothing else.
    """
    return [
        _check_none(spec),
        *_check_cloudflared(spec),
        *_check_ssh(spec, in_use == ssh.SshReverse.name),
        *_check_command(spec),
    ]


def _state(spec: TunnelSpec, kind: str) -> str:
    return FAIL if spec.kind == kind else WARN


def _check_none(spec: TunnelSpec) -> Check:
    name = NoTunnel.name
    if spec.kind != name:
        return Check("tunnel", PASS, f"[tunnel] kind is {spec.kind}")
    if spec.url:
        return Check("tunnel", PASS, f"none: VMs reach the bridge at {spec.url}")
    return Check("tunnel", PASS, "none: only a VM on this machine reaches the bridge")


def _check_cloudflared(spec: TunnelSpec) -> list[Check]:
    name, bad = Cloudflared.name, _state(spec, Cloudflared.name)
    found = [_check_cloudflared_program(name, bad, spec), *_check_hijack()]
    if spec.token_file:
        found.append(_check_token(Path(spec.token_file), bad))
    return found


def _check_cloudflared_program(name: str, bad: str, spec: TunnelSpec) -> Check:
    path = shutil.which(name)
    if path is None:
        return Check(name, bad, "not on PATH", f"the tunnel {name} needs it: developers.cloudflare.com, “Downloads”")
    told = _output([path, "--version"])
    version = _VERSION.search(told or "")
    if told is None or version is None:
        shown = f": {told[:100]}" if told else ""
        return Check(name, bad, f"{path} does not tell its version{shown}", "run it by hand; install it anew")
    udp = "" if spec.protocol == "http2" else " and UDP port 7844"
    return Check(name, PASS, f"{version[1]} at {path}; {_UNTESTED_EDGE}{udp}")


def _check_hijack() -> list[Check]:
    """A configuration of its own takes a quick tunnel over, unless it is started with another, as we do."""
    for folder in _CONFIG_FOLDERS:
        for name in _CONFIG_NAMES:
            path = Path(folder).expanduser() / name
            if path.is_file():
                text = f"{path} would lead a tunnel elsewhere; harmless here: it is started with an empty one"
                return [Check("cloudflared config", PASS, text)]
    return []


def _check_token(path: Path, bad: str) -> Check:
    name = "cloudflared token"
    try:
        token_file.read(path)
    except BridgeheadError as error:
        return Check(name, bad, error.message, error.hint)
    return Check(name, PASS, f"{path} holds a token; only you can read it")


def _check_ssh(spec: TunnelSpec, in_use: bool) -> list[Check]:
    name, bad = ssh.SshReverse.name, _state(spec, ssh.SshReverse.name)
    try:
        path = ssh.program()
    except BridgeheadError as error:
        return [Check(name, bad, error.message, error.hint)]
    version = (_output([path, "-V"]) or "version unknown").partition(",")[0]
    found = [Check(name, PASS, f"{version} at {path}")]
    if spec.host or spec.kind == name:
        found.append(_check_relay(spec, bad, in_use))
    return found


def _check_relay(spec: TunnelSpec, bad: str, in_use: bool) -> Check:
    """A forward that leads nowhere, for a moment: that proves name, host key, key and permission at once."""
    if in_use:
        return Check("relay", PASS, f"the bridge's tunnel leads through {spec.host} now")
    try:
        where = ssh.try_forward(spec, RELAY_DEADLINE_S)
    except BridgeheadError as error:
        return Check("relay", bad, error.message, error.hint)
    text = f"{spec.host} lets you in without a question and forwards"
    return Check("relay", PASS, text + (f"; not tested: whether {where} leads there" if spec.url else ""))


def _check_command(spec: TunnelSpec) -> list[Check]:
    name = command.CommandTunnel.name
    if not spec.command and spec.kind != name:
        return []
    try:
        command.check(spec)
        path = command.program(spec)
    except BridgeheadError as error:
        return [Check("command", _state(spec, name), error.message, error.hint)]
    return [Check("command", PASS, f"{path}; not tested: whether it gets an address, and whether that leads here")]


def _output(argv: Sequence[str]) -> str | None:
    """What a program prints, on either stream; None when it can't be run, fails or takes too long."""
    try:
        told = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_VERSION_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return " ".join(told.stdout.decode(errors="replace").split())
