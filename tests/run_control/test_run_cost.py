"""What a run has cost and will cost, and when it is called stalled."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

import pytest
from project_support import NOW, VM, Seeded

from bridgehead import files, names
from bridgehead.names import Ack
from bridgehead.records import Heartbeat, Pins, StageSpec, Status
from run_control import money_view, run_cost, status_now, views

HOUR_S = 3600.0
PINS = Pins(rate="2 CU", estimate="8 CU", budget_s=4 * HOUR_S, spec={"resources": {"max_total": "8 CU"}})


def _cost(pins: Pins, eta_s: float | None = None, state: str = "running", **status: Any) -> dict[str, Any]:
    text = json.dumps(StageSpec("train", "python x", pins=pins).to_json())
    told = Status("train-0001-abcdef", "train", state, updated=NOW, **status)  # type: ignore[arg-type]
    found = run_cost.of(text, state, told, eta_s, NOW)
    assert found is not None
    return found


def test_so_far_is_the_time_that_it_ran_and_not_that_it_waited() -> None:
    cost = _cost(PINS, eta_s=HOUR_S, started=NOW - HOUR_S, earlier_s=HOUR_S / 2)
    assert (cost["so_far"], cost["to_finish"], cost["total"]) == ("3 CU", "2 CU", "5 CU")
    assert cost["running_s"] == 5400.0 and not cost["over_cap"] and cost["cap"] == "8 CU"
    assert _cost(PINS, started=0.0)["so_far"] == "0 CU"  # it is still in the queue


@pytest.mark.parametrize("absurd_s", [1e11, 1e30, 1e300])
def test_an_absurd_time_is_no_eta_and_nothing_breaks(absurd_s: float) -> None:
    cost = _cost(PINS, eta_s=absurd_s, started=NOW - HOUR_S)
    assert (cost["so_far"], cost["to_finish"], cost["total"]) == ("2 CU", None, None)
    ran = _cost(PINS, started=1.0, ended=absurd_s)
    assert run_cost.in_words(ran, ended=False) == "5555555.56 CU"


def test_a_run_that_will_pass_its_cap_is_told_while_it_runs() -> None:
    cost = _cost(PINS, eta_s=4 * HOUR_S, started=NOW - HOUR_S)
    assert cost["over_cap"] and "over its cap of 8 CU" in run_cost.in_words(cost, ended=False)


def test_an_ended_run_costs_what_it_cost() -> None:
    cost = _cost(PINS, eta_s=None, state="done", started=NOW - 9 * HOUR_S, ended=NOW - 8 * HOUR_S)
    assert cost["so_far"] == "2 CU" and cost["total"] is None and run_cost.in_words(cost, ended=True) == "2 CU"


def test_of_a_silent_vm_only_what_is_known_is_counted() -> None:
    told = Status("r", "train", "running", updated=NOW - HOUR_S, started=NOW - 2 * HOUR_S)  # type: ignore[arg-type]
    assert run_cost.seconds("running", told, NOW) == HOUR_S


def test_what_has_no_price_says_why_and_never_0() -> None:
    cost = _cost(Pins(unpriced="local machine"), eta_s=HOUR_S, started=NOW - HOUR_S)
    assert (cost["so_far"], cost["total"], cost["rate"]) == ("", None, "")
    assert run_cost.in_words(cost, ended=False) == "unpriced: local machine"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pins": {"rate": 3}}', '{"pins": null, "rate": 1}'])
def test_a_run_of_a_project_without_money_or_an_odd_record_has_no_cost(text: str) -> None:
    assert run_cost.of(text, "running", None, None, NOW) is None


@pytest.mark.parametrize(
    ("silent_s", "interval_s", "stalled"),
    [(130.0, 10.0, True), (110.0, 10.0, False), (130.0, 60.0, False), (9999.0, 0.0, False), (601.0, 60.0, True)],
)
def test_stalled_is_many_times_its_own_usual_interval(silent_s: float, interval_s: float, stalled: bool) -> None:
    told = Status(
        "r",
        "train",
        "running",
        updated=NOW,
        progress_at=NOW - silent_s,
        interval_s=interval_s,  # type: ignore[arg-type]
    )
    assert (run_cost.stalled_s("running", told, NOW) is not None) is stalled
    assert run_cost.stalled_s("saving" if not stalled else "done", told, NOW) is None


def test_status_shows_a_stalled_run_as_stalled_and_not_as_dead(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.ack(run_id, Ack.STARTED)
    seeded.status(run_id)
    status = views.read_status(seeded.project, run_id)
    assert status is not None
    told = dataclasses.replace(status, progress_at=NOW - 1000, interval_s=2.0)
    files.write_json(seeded.project.run(run_id) / names.STATUS, told.to_json())
    [view] = views.runs(seeded.project, now=NOW)
    assert view.state == "running" and view.stalled_s == 1000.0 and view.waits_for.startswith("stalled:")
    [view] = views.runs(seeded.project, now=NOW - 995)
    assert view.stalled_s is None and view.waits_for == ""


MONEY = '\n[money]\nprovider = "lab"\nprice_per_hour = "2 USD"\nbalance = "10 USD"\n'


def test_the_project_pays_for_vms_and_not_for_runs(seeded: Seeded) -> None:
    seeded.ledger.heartbeat(Heartbeat("vm-paid", "boot", NOW, started=NOW - 2 * HOUR_S))
    seeded.ledger.heartbeat(Heartbeat("vm-here", "boot", NOW, started=NOW - 9 * HOUR_S))
    (seeded.project.vms / "vm-here").mkdir(parents=True)
    (seeded.project.vms / VM).mkdir()
    [run_id] = seeded.take("run:pretrain")
    seeded.ack(run_id, Ack.STARTED)
    seeded.status(run_id)

    def cost() -> dict[str, Any] | None:
        return money_view.cost(
            seeded.project, views.runs(seeded.project, now=NOW), views.vms(seeded.project, now=NOW), NOW
        )

    assert cost() is None  # the project says nothing about money
    seeded.project.file.write_text(seeded.project.file.read_text() + MONEY)
    found = cost()
    assert found is not None
    assert (found["spent"], found["burn_per_h"], found["unit"], found["balance"]) == (4.0, 2.0, "USD", 10.0)
    assert found["dry_at"] == NOW + 3 * HOUR_S
    assert found["finish"] == pytest.approx([2.0 * 30 / HOUR_S] * 2)


def test_status_shows_what_the_panel_shows_of_the_balance(seeded: Seeded) -> None:
    assert status_now.look(seeded.project).data["money"] is None
    [run_id] = seeded.take("run:pretrain")
    seeded.ack(run_id, Ack.STARTED)
    seeded.status(run_id)
    seeded.project.file.write_text(seeded.project.file.read_text() + MONEY)
    now = status_now.look(seeded.project)
    told = money_view.cost(seeded.project, views.runs(seeded.project), views.vms(seeded.project), time.time())
    still = {"as_of": 0, "dry_at": 0}  # these move with the clock
    assert told is not None and now.data["money"] | still == told | still
    assert f"money: {money_view.in_words(now.data['money'])}" in now.after
    assert status_now.look(seeded.project, run_id).data["money"] is None
    later = {**now.data["money"], "spent": 7.0, "as_of": 1.0}
    moved = dataclasses.replace(now, data={**now.data, "money": later})
    assert moved.essence() == now.essence()  # else --watch would have news each second


@pytest.mark.parametrize(
    ("finish", "balance", "words"),
    [
        (None, None, "2 USD an hour now, 4 USD so far"),
        ([1.5, 1.5], 10.0, "2 USD an hour now, 4 USD so far, 1.5 USD to finish, of a balance of 10 USD"),
        (
            [1.5, 6.25],
            10.0,
            "2 USD an hour now, 4 USD so far, 1.5 to 6.25 USD to finish, of a balance of 10 USD,"
            " which does not last to the end of all that goes",
        ),
    ],
)
def test_the_money_in_words(finish: list[float] | None, balance: float | None, words: str) -> None:
    told = {"unit": "USD", "burn_per_h": 2.0, "spent": 4.0, "finish": finish, "balance": balance, "dry_at": None}
    assert money_view.in_words(told) == words
    assert money_view.in_words(None) == ""
