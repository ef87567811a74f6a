"""How long a VM lives: the cap, the phases before it, its age, and what the heartbeat tells of it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bridgehead import files, names, processes
from bridgehead.names import CheckpointLevel, StoreKind
from bridgehead.records import VmRules
from vm_daemons import daemons, lifetime
from vm_daemons.home import VmHome
from vm_daemons.lifetime import Outlook, Phase
from vm_support import end_run, make_run, paired_home

RUN = "pretrain-0001-abcdef"
HOUR_S = 3600.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VmHome:
    monkeypatch.setenv(names.ENV_LOCAL_VM, "vm-under-test")
    home = paired_home(tmp_path / "vm")
    home.update_record(store=str(tmp_path / "drive"))
    return home


@pytest.mark.parametrize(
    ("left_s", "phase"),
    [
        (HOUR_S, Phase.OPEN),
        (1201.0, Phase.OPEN),
        (1200.0, Phase.SAVING),
        (601.0, Phase.SAVING),
        (600.0, Phase.HANDING_OVER),
        (-5.0, Phase.HANDING_OVER),
    ],
)
def test_the_phase_follows_from_the_time_that_is_left(left_s: float, phase: Phase) -> None:
    seen = lifetime.judge(VmRules(cap_h=24.0), "colab", 24 * HOUR_S - left_s, now=1000.0)
    assert seen.phase is phase
    assert (seen.cap_s, seen.ends_at, seen.left_s) == (24 * HOUR_S, 1000.0 + left_s, left_s)


@pytest.mark.parametrize(("where", "cap_h"), [("colab", 12.0), ("kaggle", 12.0), ("local", 0.0), ("", 0.0)])
def test_without_a_setting_the_cap_is_what_is_usual_there(where: str, cap_h: float) -> None:
    assert lifetime.judge(VmRules(), where, 60.0).cap_s == cap_h * HOUR_S


def test_without_a_cap_there_is_no_end(home: VmHome) -> None:
    seen = lifetime.judge(VmRules(), "local", 1000 * HOUR_S)
    assert (seen.phase, seen.left_s, seen.ends_at) == (Phase.OPEN, float("inf"), 0.0)


def test_a_cap_that_has_passed_at_the_start_is_said_and_nothing_starts() -> None:
    seen = lifetime.judge(VmRules(cap_h=1.0), "local", 2 * HOUR_S)
    assert seen.phase is not Phase.OPEN and "has passed" in seen.note


def test_a_vm_that_outlives_a_cap_that_was_only_assumed_has_none() -> None:
    seen = lifetime.judge(VmRules(), "colab", 13 * HOUR_S)
    assert (seen.phase, seen.cap_s) == (Phase.OPEN, 0.0) and "outlived" in seen.note


def test_without_a_store_nothing_is_handed_over_and_that_is_said() -> None:
    seen = lifetime.judge(VmRules(cap_h=1.0), "local", 0.99 * HOUR_S, stored=False)
    assert seen.phase is Phase.OPEN and "no durable store" in seen.note


def test_more_time_to_save_than_half_of_the_cap_is_cut_and_said() -> None:
    seen = lifetime.judge(VmRules(cap_h=0.5, save_before_cap_s=7200.0), "local", 10.0)
    assert seen.phase is Phase.OPEN and "15m00s is used" in seen.note


@pytest.mark.parametrize("kind", [StoreKind.DRIVE, StoreKind.S3, StoreKind.FOLDER])
def test_a_store_that_is_not_mounted_is_one_too(kind: StoreKind) -> None:
    assert lifetime.has_store({"store": "", "store_spec": {"kind": str(kind)}})
    assert not lifetime.has_store({"store": "", "store_spec": {"kind": "mount"}})


@pytest.mark.parametrize("damaged", [None, 7, {"cap_h": "twelve"}, {"v": 99}])
def test_rules_that_can_not_be_read_are_the_default(damaged: object) -> None:
    assert lifetime.rules({"vm_rules": damaged}) == VmRules()


# --- age ---------------------------------------------------------------------------------------------


def test_the_age_does_not_follow_the_time_of_day(home: VmHome, monkeypatch: pytest.MonkeyPatch) -> None:
    record = {**home.record(), "boot_id": processes.boot_id(), "started_clock_s": lifetime.boot_clock_s() - 100.0}
    monkeypatch.setattr(time, "time", lambda: 5.0)
    assert lifetime.vm_age_s(record) == pytest.approx(100.0, abs=30.0)


def test_a_record_of_another_boot_counts_by_the_time_of_day(home: VmHome) -> None:
    record = {"boot_id": "another", "started_clock_s": 1.0, "started": time.time() - 500.0}
    assert lifetime.vm_age_s(record) == pytest.approx(500.0, abs=30.0)


def test_in_a_container_the_age_is_that_of_its_first_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The uptime is the host's, which may be weeks."""
    monkeypatch.delenv(names.ENV_LOCAL_VM, raising=False)
    ticks = os.sysconf("SC_CLK_TCK")
    monkeypatch.setattr(processes, "start_ticks", lambda pid: int((lifetime.boot_clock_s() - 40.0) * ticks))
    assert lifetime.vm_age_s({}) == pytest.approx(40.0, abs=5.0)


# --- one run -----------------------------------------------------------------------------------------


def test_a_save_is_asked_for_once_per_attempt(home: VmHome) -> None:
    run_dir = make_run(home, RUN)
    lifetime.ask_to_save(run_dir, 1)
    (run_dir / names.SAVE_REQUEST).unlink()  # as the stage does after its commit
    lifetime.ask_to_save(run_dir, 1)
    assert not (run_dir / names.SAVE_REQUEST).exists()


def test_a_hand_over_of_an_earlier_attempt_says_nothing_of_this_one(home: VmHome) -> None:
    run_dir = make_run(home, RUN, attempt=2)
    lifetime.begin_handover(run_dir, 1)
    assert not lifetime.is_handing_over(run_dir, 2)


def test_a_hand_over_that_was_called_off_is_none(home: VmHome) -> None:
    run_dir = make_run(home, RUN)
    assert not lifetime.cancel_handover(run_dir, 1)
    lifetime.begin_handover(run_dir, 1)
    assert lifetime.cancel_handover(run_dir, 1)
    lifetime.end_handover(run_dir, 1)
    assert not lifetime.is_handed_over(run_dir, 1)


def _levels(run_dir: Path, confirmed_by: str = "", **steps: int) -> None:
    told = {level: {"step": step} for level, step in steps.items()}
    files.write_json(run_dir / names.CHECKPOINT_LEVELS, {"levels": told, "confirmed_by": confirmed_by})


def test_a_run_is_given_away_only_once_its_newest_checkpoint_is_in_the_store(home: VmHome) -> None:
    run_dir = make_run(home, RUN)
    (run_dir / names.CHECKPOINTS / "step-000000000030").mkdir(parents=True)
    lifetime.begin_handover(run_dir, 1)
    far = Outlook(0.0, cap_s=HOUR_S)
    assert lifetime.handovers(home, far) == ([RUN], [])
    lifetime.end_handover(run_dir, 1)
    assert lifetime.handovers(home, far) == ([RUN], [])
    _levels(run_dir, local=30, mounted=20)
    assert lifetime.handovers(home, far) == ([RUN], [])
    _levels(run_dir, local=30, mounted=30)
    assert lifetime.handovers(home, far) == ([], [RUN])


def test_where_the_store_can_confirm_that_is_waited_for_until_the_last_moment(home: VmHome) -> None:
    run_dir = make_run(home, RUN)
    (run_dir / names.CHECKPOINTS / "step-000000000030").mkdir(parents=True)
    lifetime.begin_handover(run_dir, 1)
    lifetime.end_handover(run_dir, 1)
    _levels(run_dir, "drive", mounted=30, **{CheckpointLevel.CONFIRMED: 20})
    assert lifetime.handovers(home, Outlook(0.0, cap_s=HOUR_S)) == ([RUN], [])
    assert lifetime.handovers(home, Outlook(HOUR_S - 30, cap_s=HOUR_S)) == ([], [RUN])


def test_a_run_that_ended_after_all_is_given_to_nobody(home: VmHome) -> None:
    run_dir = make_run(home, RUN)
    lifetime.begin_handover(run_dir, 1)
    end_run(run_dir)
    assert lifetime.handovers(home, Outlook(0.0)) == ([], [])


# --- the heartbeat --------------------------------------------------------------------------------------


def test_the_heartbeat_tells_age_cap_and_end(home: VmHome) -> None:
    home.update_record(vm_rules={"cap_h": 10.0})
    told = lifetime.snapshot(home)
    assert told["cap_s"] == 36_000.0 and told["starts_runs"]
    assert told["ends_at"] == pytest.approx(time.time() + 36_000.0 - told["age_s"], abs=60.0)


def test_without_a_cap_the_end_is_not_known(home: VmHome) -> None:
    told = lifetime.snapshot(home)
    assert (told["cap_s"], told["ends_at"]) == (None, None)


def test_the_heartbeat_tells_what_the_cell_wrote_as_long_as_it_beats(home: VmHome) -> None:
    files.write_json(home.state / names.VM_LIFETIME, {"stays_because": "x runs", "releases_at": None})
    (home.state / daemons.CELL_MARK).touch()
    assert lifetime.snapshot(home)["stays_because"] == "x runs"
    os.utime(home.state / daemons.CELL_MARK, (1.0, 1.0))
    assert "the cell does not run" in lifetime.snapshot(home)["stays_because"]


def test_a_damaged_record_of_the_cell_does_not_end_heartbeats(home: VmHome) -> None:
    (home.state / names.VM_LIFETIME).write_text("[")
    (home.state / daemons.CELL_MARK).touch()
    assert lifetime.snapshot(home)["stays_because"] == ""
