"""What to do next: by the mistake, the bridge, the VMs, and how the newest run of each stage has ended."""

from __future__ import annotations

from typing import Any

import pytest

from control_panel.shapes import Run, Vm, VmState
from control_panel.what_next import is_loopback, next_step

STAGES = [{"name": "finetune", "after": [], "command": "x"}, {"name": "gate", "after": ["finetune"], "command": "y"}]
UP = {"state": "up", "url": "https://a.example"}


def _next(*runs: Run, **more: Any) -> dict[str, str]:
    asked = {"bridge": UP, "vms": [Vm("vm-1", VmState.LIVE)], "mistake": "", **more}
    return next_step(asked["bridge"], asked["vms"], runs, STAGES, [], asked["mistake"])


@pytest.mark.parametrize("verdict", ["undecided", "fail"])
def test_after_a_gate_that_did_not_pass_something_has_to_change(verdict: str) -> None:
    gate = Run("gate-01", "gate", state="failed", verdict=verdict, verdict_why="accuracy +0.010 [-0.004, +0.020]")
    told = _next(Run("finetune-01", "finetune", state="done"), gate)
    assert f"The gate said {verdict}" in told["text"] and "accuracy +0.010" in told["text"]
    assert "train longer or change something" in told["text"] and told["action"] == "run finetune"


def test_once_it_was_trained_anew_the_gate_is_run_again() -> None:
    before = Run("gate-01", "gate", state="failed", verdict="fail")
    told = _next(Run("f-1", "finetune", state="done"), before, Run("f-2", "finetune", state="done"))
    assert told == {"text": "Run gate.", "action": "run gate"}


def test_a_failed_run_says_what_to_do_before_it_is_run_again() -> None:
    told = _next(Run("f-1", "finetune", state="failed", failure="gpu_oom", next="a smaller batch"))
    assert told == {"text": "f-1 failed (gpu_oom): a smaller batch; then run finetune again.", "action": "run finetune"}


def test_a_stopped_run_can_be_resumed_where_it_has_a_checkpoint() -> None:
    assert "resume" not in _next(Run("f-1", "finetune", state="stopped"))["text"]
    saved = {"local": None, "mounted": {"step": 1, "age_s": 2.0, "at": 0.0}, "confirmed": None}
    assert "resume it" in _next(Run("f-1", "finetune", state="stopped", checkpoint=saved))["text"]


def test_a_bridge_without_a_tunnel_is_for_this_machine_only() -> None:
    told = _next(vms=[], bridge={"state": "up", "url": "http://127.0.0.1:8766"})
    assert told["action"] == "pair" and "--tunnel cloudflared" in told["text"] and "--runtime local" in told["text"]
    assert "Colab" in _next(vms=[])["text"] and "tunnel" not in _next(vms=[])["text"]


@pytest.mark.parametrize(
    ("url", "local"),
    [("http://127.0.0.1:8766", True), ("http://localhost:1", True), ("http://[::1]:1", True), ("https://a.b", False)],
)
def test_addresses_that_only_this_machine_gets_to(url: str, local: bool) -> None:
    assert is_loopback(url) is local


def test_a_mistake_in_the_project_file_comes_first() -> None:
    told = _next(mistake="bridgehead.toml, line 3: no value", bridge={"state": "down"})
    assert told == {"text": "Mend the project file: bridgehead.toml, line 3: no value", "action": ""}
