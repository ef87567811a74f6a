"""What ssh's last lines mean, in plain words with a next step.

The lines are OpenSSH's own, seen with 9.2 against an sshd of the same version; they have been the same since 7.x.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from bridge.tunnels.process import how_it_ended
from bridgehead.errors import BridgeDownError

BY_HAND = "see whether `ssh -o BatchMode=yes {host} true` works by hand"
FORBIDDEN = "Remote: Server has disabled port forwarding"
REFUSED = "Remote: port forwarding refused"
_ADD_KEY = "put your public key into the relay's ~/.ssh/authorized_keys; a key with a passphrase must be in ssh-agent"
# Looked for in this order, each over the whole life: the last line alone often hides the cause. {host} is ours.
_KNOWN = [
    (re.compile(pattern), message, hint)
    for pattern, message, hint in (
        (
            rf"{FORBIDDEN}",
            "{host} forbids remote forwarding",
            "AllowTcpForwarding yes in its sshd_config, no restrict at your key, and remote_port above 1023",
        ),
        (
            rf"{REFUSED}",
            "{host} forbids to listen on that port",
            "set remote_port to one that PermitListen in its sshd_config (or permitlisten= at your key) allows",
        ),
        (
            r"remote port forwarding failed for listen port (?P<port>[1-9]\d*)",
            "port {port} on {host} is taken, perhaps still by this tunnel's last connection",
            "wait until it is free (quick with ClientAliveInterval 5 in the relay's sshd_config), or remote_port = 0",
        ),
        (
            r"remote port forwarding failed",
            "{host} refuses to listen for us",
            "on the relay: AllowTcpForwarding yes in sshd_config",
        ),
        (
            r"cannot listen to port: (?P<port>\d+)|Could not request local forwarding",
            "your ~/.ssh/config forwards a port of this laptop for {host}, and that port is taken",
            "give the relay a Host entry of its own, without LocalForward",
        ),
        (
            r"REMOTE HOST IDENTIFICATION HAS CHANGED|[Hh]ost key for \S+ has changed",
            "{host} shows another host key than before: it was set up anew, or somebody stands in between",
            "find out which; if it was set up anew: `ssh-keygen -R` with its name, then `ssh {host}` once by hand",
        ),
        (
            r"Host key verification failed|host key is known for",
            "the host key of {host} is not known on this laptop",
            "run `ssh {host}` once by hand and compare the fingerprint",
        ),
        (
            r"UNPROTECTED PRIVATE KEY FILE|bad permissions",
            "ssh does not use your private key, because others can read it",
            "chmod 600 on the key file",
        ),
        (
            r"Bad owner or permissions on (?P<file>\S+)",
            "ssh does not use {file}, because others can write it",
            "chmod go-w {file}",
        ),
        (
            r"Too many authentication failures",
            "{host} hung up after too many keys were tried",
            'name the one: options = ["IdentitiesOnly=yes", "IdentityFile=~/.ssh/KEY"]',
        ),
        (r"Permission denied \((?P<ways>[^)]*)\)", "{host} does not let you in ({ways})", _ADD_KEY),
        (
            r"Could not resolve hostname (?P<name>[^:\s]+)",
            "there is no host called {name}, or DNS does not answer",
            "check `host` in [tunnel], and the network of this machine",
        ),
        (
            r"connect to host (?P<name>\S+) port (?P<port>\d+): Connection refused",
            "nothing listens for ssh at {name} port {port}",
            "is sshd up there, and on that port? Another one: Port in ~/.ssh/config, or options = [\"Port=N\"]",
        ),
        (
            r"connect to host (?P<name>\S+) port (?P<port>\d+): (?P<why>.+)",
            "{name} port {port} can't be reached: {why}",
            "check the network of this machine, and the relay's firewall",
        ),
        (
            r"during banner exchange|banner line \d+: |kex_exchange_identification: ",
            "what answers at {host} is no ssh server, or hangs up at once",
            "check `host` and its port; a relay that has seen too many failures bans an address for a while",
        ),
        (
            r"Bad configuration option: (?P<option>\S+)|(?:unsupported|Unsupported) option \"?(?P<other>\S+?)\"",
            "ssh does not know the option {option}{other}",
            "see `man ssh_config`, and options in [tunnel]",
        ),
        (
            r"command-line:? line \d+: (?P<why>.+)",
            "ssh can't read one of its options: {why}",
            "see `man ssh_config`, and options in [tunnel]",
        ),
        (
            r"Unable to negotiate with .*: (?P<why>.+?)\.",
            "this ssh and {host} have no way in common: {why}",
            "update the older of the two",
        ),
        (
            r"Timeout, server \S+ not responding",
            "{host} stopped answering: the network was cut, or this laptop slept",
            BY_HAND,
        ),
        (
            r"closed by remote host|Connection reset|Broken pipe|Connection closed|packet_write_wait",
            "{host} ended the connection",
            BY_HAND,
        ),
    )
]  # fmt: skip


def why_ended(host: str, code: int, lines: Sequence[str]) -> BridgeDownError:
    """In one line with a next step. Exit code 0 is an end like others."""
    known = _known(host, lines)
    if known is not None:
        return known
    return BridgeDownError(how_it_ended("ssh", code, lines), hint=BY_HAND.format(host=host))


def why_silent(host: str, waited_s: float, lines: Sequence[str]) -> BridgeDownError:
    known = _known(host, lines)
    if known is not None:
        return known
    return BridgeDownError(f"after {waited_s:g} s {host} has not answered", hint=BY_HAND.format(host=host))


def _known(host: str, lines: Sequence[str]) -> BridgeDownError | None:
    text = "\n".join(lines)
    for pattern, message, hint in _KNOWN:
        match = pattern.search(text)
        if match is not None:
            words = {name: value or "" for name, value in match.groupdict().items()} | {"host": host}
            return BridgeDownError(message.format(**words), hint=hint.format(**words))
    return None
