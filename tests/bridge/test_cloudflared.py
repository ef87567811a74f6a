"""The cloudflared tunnel against a stub that replays what the real one was seen to write and answer."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge import tunnels
from bridge.tunnels.cloudflared import Cloudflared, Times
from bridge.tunnels.spec import TunnelSpec
from bridgehead.errors import BridgeDownError, UsageError
from cloudflare_edge import stub as stub
from support import wait_until

TIMES = Times(ask_s=0.01, check_s=0.02, down_after_s=0.1, restart_s=5.0, pause_max_s=0.05, stop_s=0.5)
PORT = 8766
QUICK = TunnelSpec("cloudflared")


Make = Callable[..., Cloudflared]


@pytest.fixture
def make(stub: Path) -> Iterator[Make]:
    made = []

    def start(mode: str = "good", *, spec: TunnelSpec = QUICK, times: Times = TIMES, **values: Any) -> Cloudflared:
        (stub / "mode").write_text(mode)
        tunnel = Cloudflared(spec, times=times, **values)
        made.append(tunnel)
        tunnel.start(PORT)
        return tunnel

    yield start
    for tunnel in made:
        tunnel.stop()


def pid(tunnel: Cloudflared) -> int:
    assert tunnel._process is not None
    return tunnel._process._popen.pid


def started(stub: Path, life: int = 1) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((stub / f"start-{life}").read_text())
    return record


def test_the_address_comes_from_the_metrics_server_once_connected(make: Make) -> None:
    tunnel = make()
    assert tunnel.wait_url(10) == "https://alpha-beta-gamma-1.trycloudflare.com"
    assert tunnel.wait_url(0) == "https://alpha-beta-gamma-1.trycloudflare.com"
    assert tunnel.healthy()
    assert any("Registered tunnel connection" in line for line in tunnel.log_tail())


def test_it_is_started_so_that_no_configuration_of_the_user_takes_over(
    make: Make, stub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNNEL_TOKEN", "of another tunnel")
    make().wait_url(10)
    arguments = started(stub)["arguments"]
    options = dict(zip(arguments, arguments[1:], strict=False))
    assert arguments[0] == "tunnel" and "--no-autoupdate" in arguments
    assert options["--url"] == f"http://127.0.0.1:{PORT}" and options["--protocol"] == "http2"
    assert options["--metrics"].startswith("127.0.0.1:") and Path(options["--config"]).read_bytes() == b""
    assert started(stub)["environment"] == []


def test_a_route_to_somewhere_else_is_an_error(make: Make) -> None:
    with pytest.raises(BridgeDownError, match="127.0.0.1:9999") as caught:
        make("hijacked").wait_url(10)
    assert "config.yml" in caught.value.hint


def test_a_name_without_a_connection_is_no_address(make: Make, stub: Path) -> None:
    (stub / "down").touch()
    with pytest.raises(BridgeDownError, match="no connection"):
        make().wait_url(1.0)


def test_a_program_that_says_nothing_is_given_up_after_the_time(make: Make) -> None:
    with pytest.raises(BridgeDownError, match="has got no name"):
        make("silent").wait_url(0.3)


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("no-network", "no network, or DNS"),
        ("rate-limited", "too many were asked for"),
        ("error-page", "not a tunnel"),
        ("refused", "refused to make"),
        ("edge-dns", "edge can't be looked up"),
        ("api-refuses", "can't reach api.trycloudflare.com"),
        ("metrics-taken", "took the port"),
        ("bad-yaml", "configuration file"),
        ("unknown-flag", "does not know the option -no-autoupdate"),
        ("crash", "exit code 2: 2026-11-29T10:00:00Z panic"),
    ],
)
def test_an_early_end_is_told_in_plain_words_with_a_next_step(make: Make, mode: str, words: str) -> None:
    with pytest.raises(BridgeDownError, match=words) as caught:
        make(mode).wait_url(10)
    assert caught.value.hint


def test_an_edge_that_refuses_is_told_and_its_flood_of_lines_is_bounded(make: Make) -> None:
    tunnel = make("edge-refused")
    wait_until(lambda: len(tunnel.log_tail()) == 200)
    with pytest.raises(BridgeDownError, match="connect to Cloudflare's edge") as caught:
        tunnel.wait_url(0.1)
    assert "7844" in caught.value.hint
    assert max(map(len, tunnel.log_tail())) <= 500


@pytest.mark.parametrize(
    ("mode", "words", "step"),
    [("blocked", "own check found no way out", "7844"), ("quic-blocked", "over QUIC", 'protocol = "http2"')],
)
def test_a_network_that_blocks_it_is_told_while_it_tries(make: Make, mode: str, words: str, step: str) -> None:
    tunnel = make(mode)
    wait_until(lambda: any("SUMMARY" in line or "WRN" in line for line in tunnel.log_tail()))
    with pytest.raises(BridgeDownError, match=words) as caught:
        tunnel.wait_url(0.1)
    assert step in caught.value.hint


def test_a_metrics_port_that_was_taken_is_tried_again_with_another(make: Make, stub: Path) -> None:
    assert make("metrics-taken-once").wait_url(10) == "https://alpha-beta-gamma-2.trycloudflare.com"
    ports = [
        started(stub, life)["arguments"][started(stub, life)["arguments"].index("--metrics") + 1] for life in (1, 2)
    ]
    assert ports[0] != ports[1]


def test_cloudflare_is_asked_less_often_when_it_says_that_it_was_too_much(make: Make, stub: Path) -> None:
    tunnel = make(times=dataclasses.replace(TIMES, limited_s=3600.0))
    tunnel.wait_url(10)
    (stub / "mode").write_text("rate-limited")
    tunnel.restart()
    wait_until(lambda: "too many" in tunnel.trouble())
    with pytest.raises(AssertionError):
        wait_until((stub / "start-3").exists, 1.0)


def test_a_restart_that_is_asked_for_brings_a_new_address(make: Make) -> None:
    heard: list[str] = []
    tunnel = make(on_new_url=heard.append)
    tunnel.wait_url(10)
    tunnel.restart()
    wait_until(lambda: heard == ["https://alpha-beta-gamma-2.trycloudflare.com"])


def test_after_a_sleep_it_is_given_time_to_connect_again(
    make: Make, stub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[bool] = []
    monkeypatch.setattr("bridge.tunnels.sleep.SleepWatch.woke", lambda self, planned_s: not slept.append(True))
    tunnel = make()
    tunnel.wait_url(10)
    (stub / "down").touch()
    wait_until(lambda: len(slept) > 20)
    assert not (stub / "start-2").exists()


def test_a_program_that_is_not_installed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BridgeDownError, match="not on your PATH"):
        Cloudflared(QUICK).start(PORT)


def test_one_that_dies_is_restarted_and_its_new_address_reported(make: Make) -> None:
    heard: list[str] = []
    tunnel = make(on_new_url=heard.append)
    tunnel.wait_url(10)
    os.kill(pid(tunnel), signal.SIGKILL)
    wait_until(lambda: heard == ["https://alpha-beta-gamma-2.trycloudflare.com"])
    assert tunnel.wait_url(0) == heard[0] and tunnel.healthy()


def test_one_that_stays_without_a_connection_is_restarted(make: Make, stub: Path) -> None:
    heard: list[str] = []
    tunnel = make(on_new_url=heard.append)
    tunnel.wait_url(10)
    (stub / "down").touch()
    wait_until(lambda: (stub / "start-2").exists())
    assert not tunnel.healthy()
    (stub / "down").unlink()
    wait_until(lambda: heard)
    assert tunnel.healthy()


def test_a_short_cut_costs_no_address(make: Make, stub: Path) -> None:
    tunnel = make(times=dataclasses.replace(TIMES, down_after_s=60.0))
    tunnel.wait_url(10)
    (stub / "down").touch()
    wait_until(lambda: not tunnel.healthy())
    (stub / "down").unlink()
    wait_until(tunnel.healthy)
    assert not (stub / "start-2").exists()


def test_failed_restarts_are_tried_again_and_an_owner_that_fails_does_not_end_the_watch(make: Make, stub: Path) -> None:
    def fail(url: str) -> None:
        raise OSError("no room on the disk")

    tunnel = make(on_new_url=fail)
    first = tunnel.wait_url(10)
    (stub / "mode").write_text("no-network")
    os.kill(pid(tunnel), signal.SIGKILL)
    wait_until(lambda: (stub / "start-3").exists())
    (stub / "mode").write_text("good")
    second = wait_until(lambda: (url := tunnel.wait_url(0)) != first and url)
    os.kill(pid(tunnel), signal.SIGKILL)
    wait_until(lambda: tunnel.wait_url(0) not in (first, second))


@pytest.mark.parametrize("mode", ["good", "patient", "stubborn"])
def test_stopping_leaves_no_process_and_no_file(make: Make, stub: Path, mode: str) -> None:
    tunnel = make(mode)
    tunnel.wait_url(10)
    number, arguments = pid(tunnel), started(stub)["arguments"]
    tunnel.stop()
    tunnel.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)
    assert not Path(arguments[arguments.index("--config") + 1]).exists()
    assert not tunnel.healthy()


def test_stopping_while_it_restarts_ends_the_watch(make: Make, stub: Path) -> None:
    tunnel = make()
    tunnel.wait_url(10)
    (stub / "down").touch()
    wait_until(lambda: (stub / "start-2").exists())
    tunnel.stop()
    assert tunnel._watchdog is not None and not tunnel._watchdog.is_alive()
    with pytest.raises(ProcessLookupError):
        os.kill(pid(tunnel), 0)


def test_tunnels_are_made_by_kind_and_the_nearest_one_is_offered() -> None:
    none = tunnels.make(TunnelSpec())
    none.start(1234)
    assert none.wait_url(0) == "http://127.0.0.1:1234" and none.healthy()
    none.stop()
    assert not none.healthy()
    assert tunnels.make(QUICK).name == "cloudflared"
    with pytest.raises(UsageError) as caught:
        tunnels.make(TunnelSpec("cloudflare"))
    assert caught.value.hint == "did you mean cloudflared?"
