"""A named cloudflared tunnel: its token in no argument and no log, its route asserted, old versions, bad tokens."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge import tunnels
from bridge.tunnels.cloudflared import Cloudflared, Times
from bridge.tunnels.ingress import route_of
from bridge.tunnels.spec import TunnelSpec
from bridgehead.errors import BridgeDownError, UsageError
from cloudflare_edge import NAMED_HOST, TOKEN
from cloudflare_edge import stub as stub
from cloudflare_edge import token_file as token_file
from support import wait_until

TIMES = Times(
    ask_s=0.01, check_s=0.02, down_after_s=0.1, restart_s=5.0, route_s=0.2, pause_max_s=0.05, limited_s=0.05, stop_s=0.5
)
PORT = 8766
Make = Callable[..., Cloudflared]


def rule(service: str, host: str = NAMED_HOST, path: str | None = None) -> dict[str, Any]:
    return {"hostname": host, "path": path, "service": service, "originRequest": {}}


OURS = [rule(f"http://localhost:{PORT}"), {"service": "http_status:404"}]


def dashboard(stub: Path, *rules: dict[str, Any]) -> None:
    (stub / "dashboard.json").write_text(json.dumps(rules))


@pytest.fixture
def make(stub: Path, token_file: Path) -> Iterator[Make]:
    made = []
    dashboard(stub, *OURS)

    def start(mode: str = "good", *, protocol: str = "http2", times: Times = TIMES, **values: Any) -> Cloudflared:
        (stub / "mode").write_text(mode)
        spec = TunnelSpec("cloudflared", hostname=NAMED_HOST, token_file=str(token_file), protocol=protocol)
        tunnel = Cloudflared(spec, times=times, **values)
        made.append(tunnel)
        tunnel.start(PORT)
        return tunnel

    yield start
    for tunnel in made:
        tunnel.stop()


def started(stub: Path, life: int = 1) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((stub / f"start-{life}").read_text())
    return record


def test_its_address_is_the_users_own_host_name(make: Make) -> None:
    tunnel = make()
    assert tunnel.wait_url(10) == f"https://{NAMED_HOST}"
    assert tunnel.healthy() and tunnel.trouble() == ""


def test_it_is_started_with_the_file_and_without_a_configuration_of_the_user(make: Make, stub: Path) -> None:
    make(protocol="quic").wait_url(10)
    arguments = started(stub)["arguments"]
    options = dict(zip(arguments, arguments[1:], strict=False))
    assert arguments[0] == "tunnel" and "--no-autoupdate" in arguments and "--url" not in arguments
    assert Path(options["--config"]).read_bytes() == b"" and options["--metrics"].startswith("127.0.0.1:")
    assert arguments[arguments.index("run") :][1:3] == [
        "--protocol",
        "quic",
    ]  # run's own default would hide one before it
    assert options["--token-file"].endswith("token") and started(stub)["environment"] == []


@pytest.mark.parametrize("mode", ["good", "old", "careless"])
def test_the_token_is_in_no_argument_and_in_nothing_that_is_kept(make: Make, stub: Path, mode: str) -> None:
    tunnel = make(mode)
    tunnel.wait_url(10)
    assert TOKEN not in Path(f"/proc/{tunnel.pid}/cmdline").read_bytes()
    assert TOKEN.decode() not in "\n".join(tunnel.log_tail()) + repr(tunnel.__dict__)
    assert (TOKEN in Path(f"/proc/{tunnel.pid}/environ").read_bytes()) is (mode == "old")


def test_an_older_cloudflared_gets_it_in_its_environment(make: Make, stub: Path) -> None:
    make("old").wait_url(10)
    assert "--token-file" in started(stub, 1)["arguments"]
    assert "--token-file" not in started(stub, 2)["arguments"]
    assert started(stub, 2)["environment"] == ["TUNNEL_TOKEN"]


def test_a_token_of_another_tunnel_in_the_environment_is_not_passed_on(
    make: Make, stub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNNEL_TOKEN", "of another tunnel")
    make().wait_url(10)
    assert started(stub)["environment"] == []


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ([rule("http://localhost:9999")], "sends bridge.example.com to http://localhost:9999, and the bridge is at"),
        ([rule(f"https://localhost:{PORT}")], f"to https://localhost:{PORT}"),
        ([rule(f"http://localhost:{PORT}", "other.example.com"), {"service": "http_status:404"}], "to http_status:404"),
        ([rule("http://localhost:1", path="^/in/"), *OURS], "to http://localhost:1"),
    ],
)
def test_a_dashboard_that_leads_elsewhere_is_told(make: Make, stub: Path, rules: list[Any], words: str) -> None:
    dashboard(stub, *rules)
    with pytest.raises(BridgeDownError, match="dashboard") as caught:
        make().wait_url(10)
    assert words in caught.value.message and f"http://localhost:{PORT}" in caught.value.hint


def test_a_tunnel_without_routes_is_told(make: Make, stub: Path) -> None:
    (stub / "dashboard.json").unlink()
    with pytest.raises(BridgeDownError, match="no route for bridge.example.com"):
        make().wait_url(10)


def test_a_route_that_comes_a_moment_later_is_waited_for(make: Make, stub: Path) -> None:
    (stub / "dashboard.json").unlink()
    tunnel = make(times=Times(ask_s=0.01, route_s=60.0, stop_s=0.5))
    with pytest.raises(BridgeDownError):
        tunnel.wait_url(2.0)
    assert "no route" in tunnel.trouble()
    dashboard(stub, *OURS)
    assert tunnel.wait_url(20) == f"https://{NAMED_HOST}"


def test_a_route_that_is_changed_later_is_noticed_and_costs_no_restart(make: Make, stub: Path) -> None:
    tunnel = make()
    tunnel.wait_url(10)
    dashboard(stub, rule("http://localhost:9999"))
    wait_until(lambda: "http://localhost:9999" in tunnel.trouble())
    dashboard(stub, *OURS)
    wait_until(lambda: tunnel.trouble() == "")
    assert not (stub / "start-2").exists()


def test_a_restart_that_is_asked_for_keeps_the_address_and_tells_nobody(make: Make, stub: Path) -> None:
    heard: list[str] = []
    tunnel = make(on_new_url=heard.append)
    url = tunnel.wait_url(10)
    first = tunnel.pid
    tunnel.restart()
    wait_until(lambda: tunnel.pid != first and tunnel.healthy())
    assert tunnel.wait_url(0) == url and heard == []


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("bad-token", "is no token"),
        ("deleted", "does not accept the token"),
        ("unknown-flag", "does not know the option -no-autoupdate"),
    ],
)
def test_an_early_end_is_told_in_plain_words_with_a_next_step(make: Make, mode: str, words: str) -> None:
    with pytest.raises(BridgeDownError, match=words) as caught:
        make(mode).wait_url(10)
    assert caught.value.hint and TOKEN.decode() not in caught.value.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("cloudflared service install eyJhIjoi", "more than one word"),
        ("eyJhIjoi", "does not hold the token"),
        ("W10=", "does not hold the token"),
        ("\udcff", "does not hold the token"),
    ],
)
def test_a_token_file_that_holds_something_else_is_told_before_anything_starts(
    token_file: Path, text: str, words: str
) -> None:
    token_file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError, match=words) as caught:
        tunnels.make(TunnelSpec("cloudflared", hostname=NAMED_HOST, token_file=str(token_file)))
    assert "eyJhIjoi" not in caught.value.message + caught.value.hint


def test_a_token_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be read: No such file"):
        tunnels.make(TunnelSpec("cloudflared", hostname=NAMED_HOST, token_file=str(tmp_path / "none")))


def test_a_token_file_that_others_can_read_is_made_the_owners_alone(token_file: Path) -> None:
    token_file.chmod(0o644)
    tunnels.make(TunnelSpec("cloudflared", hostname=NAMED_HOST, token_file=str(token_file)))
    assert token_file.stat().st_mode & 0o777 == 0o600 if os.name == "posix" else True


def test_the_first_rule_that_fits_counts() -> None:
    answer = {"version": 3, "config": {"ingress": [rule("http://127.0.0.1:1", "*.example.org"), *OURS]}}
    assert route_of(answer, NAMED_HOST, PORT).ours
    assert not route_of(answer, "x.example.org", PORT).ours
    wild = {"version": 3, "config": {"ingress": [rule(f"http://127.0.0.1:{PORT}/", "*.example.com")]}}
    assert route_of(wild, NAMED_HOST, PORT).ours


@pytest.mark.parametrize("answer", [{}, {"config": None}, {"config": {"ingress": None}}, {"config": {"ingress": [1]}}])
def test_a_config_without_rules_leads_nowhere(answer: dict[str, Any]) -> None:
    route = route_of(answer, NAMED_HOST, PORT)
    assert not route.ours and route.service == "" and not route.told
