"""What a run costs, as its VM tells it: in the heartbeat, and in the cell's line of each minute."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest

from bridge_client import live_bridge
from bridgehead import files, names
from bridgehead.names import RunState
from bridgehead.records import Heartbeat, Pins, RunRecord, StageSpec, Status
from run_control import run_cost
from vm_daemons import cell, run_price
from vm_daemons.client import BridgeClient
from vm_daemons.home import VmHome
from vm_daemons.run_mirror import RunMirror
from vm_daemons.status_daemon import StatusDaemon
from vm_support import make_run, paired_home

HOUR_S = 3600.0
NOW = 1796011344.0
RUN = "pretrain-0001-abcdef"
PINS = Pins(rate="1.2 CU", budget_s=4 * HOUR_S)


def _status(state: RunState = RunState.RUNNING, **told: Any) -> Status:
    return Status(RUN, "pretrain", state, updated=NOW, **{"started": NOW - HOUR_S, "eta_s": 2 * HOUR_S, **told})


def _beat(home: VmHome, pins: Pins) -> Heartbeat:
    """What the status daemon would send of one run that began an hour ago and has two to go."""
    run_dir = _priced(home, pins)
    client = BridgeClient(home)
    daemon = StatusDaemon(home, client)
    mirror = RunMirror(client, run_dir, RunRecord.from_json(files.read_json(run_dir / names.RUN_RECORD)))
    mirror.status = _status(started=time.time() - HOUR_S)
    daemon._runs[RUN] = mirror
    return daemon._beat()


def _priced(home: VmHome, pins: Pins) -> Path:
    run_dir = make_run(home, RUN)
    record = RunRecord.from_json(files.read_json(run_dir / names.RUN_RECORD))
    record = dataclasses.replace(record, spec=dataclasses.replace(record.spec, pins=pins))
    files.write_json(run_dir / names.RUN_RECORD, record.to_json())
    return run_dir


def _amount(text: str) -> float:
    amount, unit = text.split()
    assert unit == "CU"
    return float(amount)


def test_the_heartbeat_of_a_priced_run_tells_its_cost(tmp_path: Path) -> None:
    [run] = _beat(paired_home(tmp_path / "vm"), PINS).runs
    cost = run["cost"]
    assert (cost["rate"], cost["to_finish"]) == ("1.2 CU", "2.4 CU")
    assert _amount(cost["so_far"]) == pytest.approx(1.2 * run["running_s"] / HOUR_S, abs=1e-6)
    assert cost["cap_left_s"] == 4 * HOUR_S - run["running_s"]


def test_the_heartbeat_of_an_unpriced_run_tells_none(tmp_path: Path) -> None:
    [run] = _beat(paired_home(tmp_path / "vm"), Pins(unpriced="local machine", budget_s=HOUR_S)).runs
    assert set(run) == {"run_id", "state", "attempt", "running_s"}


@pytest.mark.parametrize("pins", [PINS, Pins()])
def test_a_bridge_takes_a_heartbeat_with_the_cost_and_without(tmp_path: Path, pins: Pins) -> None:
    (tmp_path / "project").mkdir()
    with live_bridge(tmp_path / "project") as live:
        home = paired_home(tmp_path / "vm", live)
        beat = _beat(home, pins)
        BridgeClient(home).heartbeat(beat)
        [vm] = live.bridge.ledger.vms()
    assert vm.heartbeat["runs"] == beat.runs


def test_the_time_of_earlier_attempts_counts() -> None:
    cost = run_price.told(PINS, _status(earlier_s=HOUR_S), NOW)
    assert cost == {"rate": "1.2 CU", "so_far": "2.4 CU", "to_finish": "2.4 CU", "cap_left_s": 2 * HOUR_S}


def test_an_ended_run_has_nothing_to_finish_and_one_without_a_cap_no_time_left() -> None:
    cost = run_price.told(Pins(rate="1.2 CU"), _status(RunState.DONE, ended=NOW - HOUR_S / 2), NOW)
    assert cost == {"rate": "1.2 CU", "so_far": "0.6 CU", "to_finish": None, "cap_left_s": None}


def test_an_eta_that_is_no_time_ends_no_heartbeat() -> None:
    assert run_price.told(PINS, _status(eta_s=1e25), NOW)["to_finish"] is None


def test_vm_and_laptop_say_the_same() -> None:
    status, eta_s = _status(started=NOW - 1234.0), 777.7
    spec = json.dumps(StageSpec("pretrain", "python x", pins=PINS).to_json())
    laptop = run_cost.of(spec, "running", status, eta_s, NOW)
    vm = run_price.told(PINS, dataclasses.replace(status, eta_s=eta_s), NOW)
    assert laptop is not None
    assert {key: laptop[key] for key in ("rate", "so_far", "to_finish")} == {
        key: vm[key] for key in ("rate", "so_far", "to_finish")
    }


def _summary(home: VmHome, pins: Pins) -> str:
    run_dir = _priced(home, pins)
    status = _status(RunState.DONE, started=NOW - HOUR_S, ended=NOW)  # so that its cost stands still
    files.write_json(run_dir / names.STATUS, status.to_json())
    (run_dir / names.STATUS_LINE).write_text(f"{RUN} · done\n")
    return cell.summary(home)


def test_the_cells_line_tells_the_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(names.ENV_LOCAL_VM, "vm-under-test")
    assert f"{RUN} · done · cost 1.2 CU so far" in _summary(paired_home(tmp_path / "vm"), PINS)


def test_the_cells_line_says_nothing_of_a_run_without_a_price(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(names.ENV_LOCAL_VM, "vm-under-test")
    assert _summary(paired_home(tmp_path / "vm"), Pins(unpriced="local machine")).endswith(f"{RUN} · done")


def test_a_line_of_a_running_run_tells_what_is_left(tmp_path: Path) -> None:
    run_dir = _priced(paired_home(tmp_path / "vm"), PINS)
    files.write_json(run_dir / names.STATUS, _status().to_json())
    assert run_price.line(run_dir, NOW) == "cost 1.2 CU so far, 2.4 CU to finish"
    assert run_price.line(run_dir, NOW + 100.0) == "cost 1.23 CU so far, 2.4 CU to finish"


def test_records_that_cannot_be_read_say_nothing(tmp_path: Path) -> None:
    run_dir = _priced(paired_home(tmp_path / "vm"), PINS)
    (run_dir / names.STATUS).write_text("{")
    assert run_price.line(run_dir, NOW) == ""
