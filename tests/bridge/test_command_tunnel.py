"""The command tunnel, with small Python programs as stand-ins for ngrok, frp and the like."""

from __future__ import annotations

import http.client
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from bridge.tunnels import public_url
from bridge.tunnels.command import CommandTunnel
from bridge.tunnels.process import Times
from bridge.tunnels.spec import TunnelSpec
from bridge_client import LiveBridge
from bridgehead import names, processes
from bridgehead.errors import BridgeDownError, UsageError
from support import wait_until

TIMES = Times(ask_s=0.01, check_s=0.02, restart_s=10.0, pause_s=0.02, pause_max_s=0.1, stop_s=0.5)
WAIT_S = 100.0
PORT = 8766
NGROK = r'msg="started tunnel" .* url=(https://\S+)'
QUICK = r"https://[a-z-]+\.trycloudflare\.com"
STAY = "import signal; signal.pause()"
# A stand-in that really leads somewhere: it listens, passes bytes on, and prints its address as bore does.
_FORWARDER = """\
import socket, sys, threading
def pump(a, b):
    while data := a.recv(65536): b.sendall(data)
    b.shutdown(socket.SHUT_WR)
listener = socket.create_server(("127.0.0.1", 0))
print(f"INFO bore_cli::client: listening at 127.0.0.1:{listener.getsockname()[1]}", flush=True)
while True:
    here, _ = listener.accept()
    there = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    for pair in ((here, there), (there, here)):
        threading.Thread(target=pump, args=pair, daemon=True).start()
"""

Make = Callable[..., CommandTunnel]


def printing(*lines: str, then: str = STAY) -> tuple[str, ...]:
    code = "".join(f"print({line!r}, flush=True)\n" for line in lines) + then
    return (sys.executable, "-c", code)


@pytest.fixture
def make() -> Iterator[Make]:
    made = []

    def start(command: tuple[str, ...], *, on_new_url: Any = None, **values: Any) -> CommandTunnel:
        spec = TunnelSpec(kind="command", command=command, **values)
        tunnel = CommandTunnel(spec, on_new_url=on_new_url, times=TIMES)
        made.append(tunnel)
        tunnel.start(PORT)
        return tunnel

    yield start
    for tunnel in made:
        tunnel.stop()


def test_requests_pass_through_a_program_of_the_users(live: LiveBridge) -> None:
    spec = TunnelSpec(
        kind="command",
        command=(sys.executable, "-c", _FORWARDER, "{port}"),
        url="http://127.0.0.1:{port}",
        url_pattern=r"listening at \S+:(\d+)",
    )
    tunnel = CommandTunnel(spec, times=TIMES)
    tunnel.start(live.bridge.port)
    try:
        port = urlsplit(tunnel.wait_url(WAIT_S)).port
        assert port != live.bridge.port and tunnel.healthy()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        connection.request("GET", names.HEALTH_PATH)
        assert connection.getresponse().read() == b"ok"
        connection.close()
    finally:
        tunnel.stop()


@pytest.mark.parametrize(
    ("pattern", "lines", "url"),
    [
        (
            NGROK,
            [
                "t=2026 lvl=info msg=\"no configuration paths supplied\"",
                "t=2026 lvl=info msg=\"client session established\" obj=tunnels.session err=nil",
                "t=2026 lvl=info msg=\"started tunnel\" obj=tunnels name=command_line"
                " addr=http://localhost:8766 url=https://1a2b.ngrok-free.app",
            ],
            "https://1a2b.ngrok-free.app",
        ),
        (
            r"https://[a-z0-9]+-\d+\.[a-z0-9.]*devtunnels\.ms",
            [
                "Connect via browser: https://abc.usw2.devtunnels.ms:8766, https://abc-8766.usw2.devtunnels.ms",
                "Inspect network activity: https://abc-8766-inspect.usw2.devtunnels.ms",
            ],
            "https://abc-8766.usw2.devtunnels.ms",
        ),
        (
            r"https://[a-z0-9.-]+\.ts\.net(?::\d+)?",
            ["Available on the internet:", "", "https://host.tail1234.ts.net/", "|-- proxy http://127.0.0.1:8766"],
            "https://host.tail1234.ts.net",
        ),
        (
            r"https://[a-z0-9]+\.share\.zrok\.io",
            ['{"level":"info","msg":"access your zrok share at the following endpoints:","error":null}',
             '{"msg":" https://x9y8.share.zrok.io"}'],
            "https://x9y8.share.zrok.io",
        ),
        (r"https?://\S+", ["\x1b[32mhttps://a.example.org\x1b[0m."], "https://a.example.org"),
        (r"https?://\S+", ["http://localhost:8766 -> https://a.example.org:8443/"], "https://a.example.org:8443"),
        (r"https?://\S+", ["https://a.example.org -> http://127.0.0.1:8766"], "https://a.example.org"),
        (QUICK, ["INF |  https://my-failed-error.trycloudflare.com   |"], "https://my-failed-error.trycloudflare.com"),
    ],
    ids=["ngrok", "devtunnel", "tailscale", "zrok", "coloured", "behind our own", "before our own", "an odd name"],
)  # fmt: skip
def test_the_address_is_found_in_what_the_program_prints(make: Make, pattern: str, lines: list[str], url: str) -> None:
    assert make(printing(*lines), url_pattern=pattern).wait_url(WAIT_S) == url


@pytest.mark.parametrize(
    "line",
    [
        'failed to request quick Tunnel: Post "https://api.trycloudflare.com/tunnel": dial tcp: lookup failed',
        'Post "https://api.trycloudflare.com/tunnel" took long',
        "ERR can not reach https://api.trycloudflare.com",
        '2026 lvl=eror msg="session closed" url=https://api.trycloudflare.com',
        "https://api.trycloudflare.com: connection refused",
        "see https://docs.trycloudflare.com?from=cli",
        "xhttps://api.trycloudflare.com",
    ],
)
def test_an_api_in_an_error_line_is_not_taken_for_the_tunnel(make: Make, line: str) -> None:
    """Pain 6: a program that could not get a tunnel names the address that it asked."""
    good = "https://real-name.trycloudflare.com"
    assert make(printing(line, f"|  {good}  |", line), url_pattern=QUICK).wait_url(WAIT_S) == good
    with pytest.raises(BridgeDownError):
        make(printing(line), url_pattern=QUICK).wait_url(0.5)


def test_an_address_that_stands_in_an_error_line_alone_is_told(make: Make) -> None:
    tunnel = make(printing("warning: error 7, yet https://a.example.org"), url_pattern=r"https://\S+")
    with pytest.raises(BridgeDownError, match="names an error: warning: error 7") as caught:
        tunnel.wait_url(1.0)
    assert "url_pattern" in caught.value.hint


def test_a_pattern_that_matches_nothing_is_told_with_the_last_line(make: Make) -> None:
    with pytest.raises(BridgeDownError, match="last: hello") as caught:
        make(printing("hello"), url_pattern="https://x").wait_url(1.0)
    assert "whole http or https address" in caught.value.hint


def test_an_early_end_is_an_error_whatever_its_code(make: Make) -> None:
    with pytest.raises(BridgeDownError, match="exit code 0: in the background") as caught:
        make(printing("in the background", then=""), url_pattern="https://x").wait_url(WAIT_S)
    assert "foreground" in caught.value.hint
    with pytest.raises(BridgeDownError, match="exit code 3"):
        make(printing(then="raise SystemExit(3)"), url="https://bridge.example.org").wait_url(WAIT_S)


def test_a_fixed_address_is_told_once_the_program_has_started(make: Make) -> None:
    tunnel = make(printing(), url="https://bridge.example.org/")
    assert tunnel.wait_url(WAIT_S) == "https://bridge.example.org"
    assert tunnel.healthy()


def test_a_program_that_dies_is_started_again_and_its_new_address_reported(make: Make) -> None:
    heard: list[str] = []
    code = "import os; print(f'https://n{os.getpid()}.example.org', flush=True)\n" + STAY
    tunnel = make((sys.executable, "-c", code), url_pattern=r"https://\S+", on_new_url=heard.append)
    tunnel.wait_url(WAIT_S)
    before = tunnel.pid
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: heard, WAIT_S)
    assert heard == [f"https://n{tunnel.pid}.example.org"] and tunnel.pid != before


def test_a_program_that_prints_another_address_is_believed(make: Make, tmp_path: Path) -> None:
    heard: list[str] = []
    go = tmp_path / "go"
    wait = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    then = wait + "print('your url is: https://two.example.org', flush=True)\n" + STAY
    tunnel = make(
        printing("your url is: https://one.example.org", then=then),
        url_pattern=r"your url is: (\S+)",
        on_new_url=heard.append,
    )
    assert tunnel.wait_url(WAIT_S) == "https://one.example.org"
    go.touch()
    wait_until(lambda: heard == ["https://two.example.org"], WAIT_S)


def test_the_address_is_read_from_a_file_and_read_again_when_it_changes(make: Make, tmp_path: Path) -> None:
    heard: list[str] = []
    file = tmp_path / "url"
    code = f"open({str(file)!r}, 'w').write('https://one.example.org\\n')\n" + STAY
    tunnel = make((sys.executable, "-c", code), url_file=str(file), on_new_url=heard.append)
    assert tunnel.wait_url(WAIT_S) == "https://one.example.org"
    file.write_text("https://tw")  # not whole yet, and for a moment it stands there
    file.write_text("nonsense")
    file.write_text("https://two.example.org")
    wait_until(lambda: heard and heard[-1] == "https://two.example.org", WAIT_S)


def test_a_file_from_an_earlier_life_says_nothing(make: Make, tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("https://old.example.org")
    with pytest.raises(BridgeDownError, match="has written no address into"):
        make(printing(), url_file=str(file)).wait_url(0.5)


def test_a_pattern_looks_into_the_file(make: Make, tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    code = f"""open({str(file)!r}, 'w').write('{{"api": "https://api.example.org/v1", "url": "https://x.example.org"}}')\n"""
    tunnel = make((sys.executable, "-c", code + STAY), url_file=str(file), url_pattern=r'"url": "([^"]+)"')
    assert tunnel.wait_url(WAIT_S) == "https://x.example.org"


def test_the_bridges_port_is_put_into_the_command(make: Make) -> None:
    code = "import sys; print(f'https://p{sys.argv[1]}.example.org', flush=True)\n" + STAY
    tunnel = make((sys.executable, "-c", code, "{port}"), url_pattern=r"https://\S+")
    assert tunnel.wait_url(WAIT_S) == f"https://p{PORT}.example.org"


def test_stopping_leaves_no_process(make: Make) -> None:
    tunnel = make(printing("https://a.example.org"), url_pattern=r"https://\S+")
    tunnel.wait_url(WAIT_S)
    pid, start = tunnel.pid, processes.start_ticks(tunnel.pid)
    tunnel.stop()
    tunnel.stop()
    assert not processes.is_alive(pid, start) and not tunnel.healthy()


def test_a_token_in_the_command_is_not_in_the_log(make: Make) -> None:
    code = "import sys; print('ERR bad token', sys.argv[2], flush=True); raise SystemExit(1)"
    tunnel = make((sys.executable, "-c", code, "--authtoken", "tok-123456"), url_pattern=r"https://\S+")
    with pytest.raises(BridgeDownError) as caught:
        tunnel.wait_url(WAIT_S)
    assert "tok-123456" not in caught.value.in_one_line() + "".join(tunnel.log_tail())


def test_a_program_that_is_not_here_is_told(make: Make) -> None:
    with pytest.raises(BridgeDownError, match="no-such-program is not on your PATH"):
        make(("no-such-program",), url="https://x.example.org")


@pytest.mark.parametrize(
    "values",
    [
        {"command": ()},
        {"command": (" ",)},
        {"url": ""},
        {"url": "x.example.org"},
        {"url": "https://x/?q=1"},
        {"url": "https://me:pw@x"},
        {"url": "https://x:99999"},
        {"url": "https://x.example.org/base"},
        {"url": "https://" + "x" * 400},
        {"url_pattern": "("},
    ],
)
def test_a_tunnel_that_cant_be_meant_is_refused_when_it_is_made(values: dict[str, Any]) -> None:
    good: dict[str, Any] = {"kind": "command", "command": ("true",), "url": "https://x.example.org"}
    with pytest.raises(UsageError) as caught:
        CommandTunnel(TunnelSpec(**{**good, **values}))
    assert caught.value.hint


def test_loopback_has_many_names() -> None:
    assert all(map(public_url.is_loopback, ("localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]", "LOCALHOST.")))
    assert not any(map(public_url.is_loopback, ("relay", "10.0.0.1", "0.0.0.0", "localhost.example.org")))


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}", "http://localhost:{port}/", "http://0.0.0.0:8766"])
def test_the_bridges_own_address_as_url_is_refused_before_the_program_starts(make: Make, url: str) -> None:
    with pytest.raises(BridgeDownError, match="the bridge's own address") as caught:
        make(printing("never run"), url=url)
    assert 'kind = "none"' in caught.value.hint


def test_a_program_that_tells_nothing_but_the_bridges_own_address_is_told_so(make: Make, tmp_path: Path) -> None:
    line = f"listening on http://127.0.0.1:{PORT}"
    tunnel = make(printing(line), url_pattern=r"https?://\S+")
    wait_until(tunnel.log_tail, WAIT_S)
    with pytest.raises(BridgeDownError, match=f"no address but http://127.0.0.1:{PORT}, which is this bridge's own"):
        tunnel.wait_url(0.3)
    file = tmp_path / "url"
    code = f"open({str(file)!r}, 'w').write('http://localhost:{PORT}')\n{STAY}"
    tunnel = make((sys.executable, "-c", code), url_file=str(file))
    wait_until(lambda: file.exists() and file.read_text(), WAIT_S)
    with pytest.raises(BridgeDownError, match="which is this bridge's own"):
        tunnel.wait_url(0.5)
