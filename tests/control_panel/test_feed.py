"""The feed: from a real ledger, real files in in/ and a real bridge to the panel's model."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from project_support import NOW, VM, Seeded

from bridge_client import Uploader, live_bridge
from bridgehead import files, names
from bridgehead.names import Ack, FailureClass, RunState
from bridgehead.records import AckRecord, Heartbeat
from control_panel import feed
from control_panel.actions import Actions
from control_panel.engine import Engine
from control_panel.feed import Feed
from control_panel.model import PanelModel, fold
from run_control import project_file
from run_control.project import Project
from support import wait_until

GIB = 2**30


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


class Rig:
    """A feed that is looked with by hand, at a time of the test's own."""

    def __init__(self, project: Project) -> None:
        self.clock = Clock()
        self.model = PanelModel(gen="g", clock=self.clock)
        self.feed = Feed(project, self.model, clock=self.clock)

    def look(self, after_s: float = 1.0) -> dict[str, Any]:
        self.clock.now += after_s
        self.feed.look()
        return self.model.snapshot()


@pytest.fixture
def rig(fresh: Project) -> Iterator[Rig]:
    made = Rig(fresh)
    yield made
    made.feed.close()


def _say(seeded: Seeded, run_id: str, *events: dict[str, Any]) -> None:
    folder = seeded.project.run(run_id)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / names.PROGRESS).open("a") as handle:
        handle.writelines(json.dumps({"attempt": 1, "event": "progress", **event}) + "\n" for event in events)


def _log(seeded: Seeded, run_id: str, text: str) -> None:
    folder = seeded.project.run(run_id)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / names.LOG).open("a") as handle:
        handle.write(text)


def _started(seeded: Seeded) -> str:
    [run_id] = seeded.take("run:pretrain")
    seeded.ack(run_id, Ack.STARTED)
    return run_id


def test_a_new_project_says_what_to_do_first(rig: Rig, fresh: Project) -> None:
    taken = rig.look()
    assert (taken["runs"], taken["vms"], taken["alerts"]) == ([], [], [])
    assert taken["bridge"]["state"] == "unknown" and "bridgehead up" in taken["next"]["text"]
    assert [stage["name"] for stage in taken["stages"]][:1] == ["pretrain"] and taken["can"] == {"sh": True}
    assert taken["project"] == "watch"


def test_after_the_bridge_comes_the_cell_and_then_a_run(fresh: Project) -> None:
    model = PanelModel(gen="g")
    feed = Feed(fresh, model, bridge=lambda: {"state": "up", "url": "http://127.0.0.1:1"})
    feed.look()
    assert model.snapshot()["next"]["action"] == "pair"
    made = Seeded(fresh)
    shown = {"text": "Run pretrain.", "action": "run pretrain"}
    wait_until(lambda: feed.look() and model.snapshot()["next"] == shown, what="the next step")
    feed.close()
    made.ledger.close()


def test_a_run_is_shown_with_its_curve_its_log_and_its_checkpoints(seeded: Seeded, rig: Rig) -> None:
    run_id = _started(seeded)
    level = {"step": 5, "level": "confirmed", "at": NOW - 100, "saved_at": NOW - 103}
    seeded.status(run_id, levels={"confirmed": level})
    _say(
        seeded,
        run_id,
        {"at": NOW, "step": 1, "metrics": {"loss": 2.0}},
        {"at": NOW + 1, "step": 2, "metrics": {"loss": 1.5}},
    )
    _log(seeded, run_id, "epoch 1\n 10%\r 20%")
    taken = rig.look()
    [run] = taken["runs"]
    assert (run["id"], run["state"], run["step"], run["total_steps"], run["vm"]) == (run_id, "running", 7, 10, VM)
    assert run["checkpoint"]["confirmed"] == {"step": 5, "age_s": 100.0, "at": NOW - 100}
    assert run["at_risk"] == {"level": "confirmed", "seconds": 100.0, "steps": 2}
    assert taken["series"][run_id]["loss"] == [[1, 2.0], [2, 1.5]]
    assert [line["text"] for line in taken["log"]] == ["epoch 1"] and run["bar"] == " 20%"
    assert taken["log"][0]["run"] == run_id and taken["log"][0]["vm"] == VM


def test_a_run_that_was_asked_to_stop_names_the_first_line_that_did(seeded: Seeded, rig: Rig) -> None:
    run_id = _started(seeded)
    assert rig.look()["runs"][0]["stopped_by"] is None
    project = project_file.load(seeded.project.root)
    seeded.ledger.take([(2, "stop:pretrain"), (3, f"stop:{run_id}")], project)
    assert rig.look()["runs"][0]["stopped_by"] == 2


def test_a_run_that_never_began_is_on_no_vm(seeded: Seeded, rig: Rig) -> None:
    first, second = seeded.take("run:pretrain", "run:finetune")
    seeded.finish(first, RunState.FAILED, 1)
    row = seeded.ledger.find_run(second)
    end = AckRecord(VM, Ack.FINISHED, row.attempt, state=RunState.FAILED, failure_class=FailureClass.UPSTREAM)
    seeded.ledger.ack(row.id, end)
    _log(seeded, second, "--- failed: what it comes after did not succeed\n")  # as a VM does
    taken = rig.look()
    assert [run["vm"] for run in taken["runs"]] == [VM, ""]
    assert [line["began"] for line in taken["queue"]] == [True, False]


def test_while_nothing_happens_nothing_is_told(seeded: Seeded, rig: Rig) -> None:
    run_id = _started(seeded)
    seeded.status(run_id)
    rig.look()
    seq = rig.model.seq
    for _ in range(3):
        rig.look(0.2)
    assert rig.model.seq == seq


def test_a_resumed_attempt_has_no_eta_until_it_is_warm(seeded: Seeded, rig: Rig) -> None:
    run_id = _started(seeded)
    old = [{"at": NOW - 9000 + step * 10, "step": step, "total_steps": 2000} for step in range(0, 500, 5)]
    _say(seeded, run_id, *old)
    seeded.ledger.mark_vm_gone(VM, "dead")
    seeded.ledger.heartbeat(Heartbeat("vm-next", "boot", NOW))
    seeded.ledger.deliver("vm-next", 0)
    folder = seeded.project.run(run_id)
    status = {"v": 1, "run_id": run_id, "stage": "pretrain", "state": "running", "vm_id": "vm-next", "attempt": 2}
    files.write_json(folder / names.STATUS, {**status, "step": 410, "total_steps": 2000, "updated": NOW})
    _say(seeded, run_id, {"event": "resumed", "at": NOW, "step": 400, "attempt": 2})
    _say(seeded, run_id, *[{"at": NOW + n, "step": 400 + n, "total_steps": 2000, "attempt": 2} for n in range(1, 11)])
    [run] = rig.look()["runs"]
    assert (run["attempt"], run["eta_s"], run["rate_per_s"]) == (2, None, None)
    assert run["resumed"] == [[2, 400]]
    _say(seeded, run_id, *[{"at": NOW + n, "step": 400 + n, "total_steps": 2000, "attempt": 2} for n in range(11, 200)])
    [run] = rig.look()["runs"]
    assert run["rate_per_s"] == 1.0 and run["eta_s"][0] < 1401 < run["eta_s"][1]


def test_a_vm_is_shown_with_its_gauges(seeded: Seeded, rig: Rig) -> None:
    gpu = {"name": "Tesla T4", "memory_total_mb": 15_360, "memory_used_mb": 1024, "use": 0.97}
    seeded.ledger.heartbeat(
        Heartbeat(
            VM, "boot", NOW, memory_total_bytes=12 * GIB, memory_free_bytes=8 * GIB, disk_total_bytes=100 * GIB,
            disk_free_bytes=60 * GIB, gpus=[gpu], store={"ok": True, "free_bytes": 5 * GIB}, cell_age_s=3.0,
            lifetime={"age_s": 3600, "cap_s": 43_200.0},
        )
    )  # fmt: skip
    [vm] = rig.look()["vms"]
    assert (vm["id"], vm["state"], vm["accelerator"], vm["kept_alive_by"]) == (VM, "live", "Tesla T4", "cell")
    assert (vm["up_s"], vm["cap_s"], vm["seen_s"]) == (3600.0, 43_200.0, 0.0)
    assert vm["gauges"]["gpu"] == {"use": 0.97}
    assert vm["gauges"]["gpu_memory"] == {"used": GIB, "total": 15 * GIB}
    assert vm["gauges"]["ram"] == {"used": 4 * GIB, "total": 12 * GIB}
    assert vm["gauges"]["disk"] == {"used": 40 * GIB, "total": 100 * GIB}
    assert vm["gauges"]["store"] == {"free": 5 * GIB}


def test_what_the_vms_have_cost_is_shown_where_the_project_says_a_price(seeded: Seeded, rig: Rig) -> None:
    seeded.ledger.heartbeat(Heartbeat("vm-paid", "boot", NOW, started=NOW - 7200))
    assert rig.look()["cost"] is None
    money = '\n[money]\nprovider = "lab"\nprice_per_hour = "2 USD"\nbalance = "10 USD"\n'
    seeded.project.file.write_text(seeded.project.file.read_text() + money)
    cost = rig.look(after_s=60)["cost"]
    assert (cost["unit"], cost["balance"]) == ("USD", 10.0) and 4.0 <= cost["spent"] < 6.0


def test_an_odd_heartbeat_is_shown_without_what_it_lacks(seeded: Seeded, rig: Rig) -> None:
    with seeded.ledger._write() as db:
        odd = {"gpus": ["x", {"use": None}], "store": [], "lifetime": "?", "memory_total_bytes": "many"}
        db.execute("UPDATE vms SET heartbeat = ?", (json.dumps(odd),))
    [vm] = rig.look()["vms"]
    assert vm["gauges"] == {"gpu": {"use": None}}


def test_what_it_made_is_listed_and_the_bundle_waits_for_its_check(seeded: Seeded, rig: Rig) -> None:
    run_id = _started(seeded)
    folder = seeded.project.run(run_id)
    (folder / names.ARTIFACTS / "deep").mkdir(parents=True)
    (folder / names.ARTIFACTS / names.ENCODER_WEIGHTS).write_bytes(b"12345")
    (folder / names.ARTIFACTS / "deep" / "plot.png").write_bytes(b"1")
    (folder / names.BUNDLE).mkdir()
    (folder / names.BUNDLE / names.MODEL_ONNX).write_bytes(b"123")
    files.write_json(folder / names.RESULTS, {"verdict": "pass"})
    taken = rig.look()
    told = {item["path"]: (item["kind"], item["hash_state"]) for item in taken["artifacts"]}
    assert told["bundle"] == ("bundle", "arriving")
    assert told["artifacts/encoder.pt"] == ("encoder", "verified")
    assert told["artifacts/deep/plot.png"] == ("other", "verified")
    assert told[names.RESULTS] == ("results", "verified") and taken["runs"][0]["verdict"] == "pass"
    (folder / names.BUNDLE / names.BUNDLE_MANIFEST).write_text("")
    told = {item["path"]: item["hash_state"] for item in rig.look()["artifacts"]}
    assert told["bundle"] == "unchecked"


def test_an_alert_keeps_the_time_at_which_it_was_first_seen(seeded: Seeded, rig: Rig) -> None:
    run_id = _started(seeded)
    seeded.finish(run_id, RunState.FAILED, 3)
    first = {alert["key"]: alert for alert in rig.look()["alerts"]}[f"failed:{run_id}:1"]
    later = {alert["key"]: alert for alert in rig.look(30.0)["alerts"]}[f"failed:{run_id}:1"]
    assert first == later and first["next"]


def test_a_post_mortem_says_more_than_the_ledger(seeded: Seeded, rig: Rig) -> None:
    run_id = _started(seeded)
    seeded.finish(run_id, RunState.FAILED, 1)
    seeded.project.run(run_id).mkdir(parents=True)
    [run] = rig.look()["runs"]
    assert run["next"]
    verdict = {"class": "gpu_oom", "detail": "tried to allocate 2 GiB", "hint": "", "next_step": "a smaller batch"}
    record = {"end": {"attempt": 1}, "verdict": verdict}
    files.write_json(seeded.project.run(run_id) / names.POSTMORTEM, record)
    [run] = rig.look()["runs"]
    assert (run["failure"], run["next"]) == ("gpu_oom", "a smaller batch")
    files.write_json(seeded.project.run(run_id) / names.POSTMORTEM, {**record, "end": {"attempt": 9}})
    assert rig.look()["runs"][0]["failure"] != "gpu_oom"


def test_the_parts_of_a_kernels_panel_are_joined(fresh: Project) -> None:
    engine = Engine(fresh)
    try:
        assert engine.model.snapshot()["stages"]
        assert engine.act({"id": "p" * 8, "verb": "run", "args": {"stage": "pretrain"}})["state"] == "sent"
        wait_until(lambda: engine.model.snapshot()["queue"], 20, what="the press in the model")
    finally:
        engine.close()


def test_a_mistake_in_the_project_file_is_told_and_goes_when_it_is_mended(rig: Rig, fresh: Project) -> None:
    good = fresh.file.read_text()
    rig.look()
    fresh.file.write_text(good + "\nnonsense = [\n")
    broken = rig.look()
    assert broken["alerts"][0]["key"] == "project-file" and broken["stages"]  # those of before
    assert broken["next"]["text"].startswith("Mend the project file: bridgehead.toml:")
    assert broken["can"] == {"sh": False, "why": "bridgehead.toml can't be read: mend it first"}
    fresh.file.write_text(good)
    taken = rig.look()
    assert taken["alerts"] == [] and taken["stages"]


def test_a_ledger_that_was_moved_away_is_let_go_and_a_new_one_taken_up(seeded: Seeded, rig: Rig) -> None:
    _started(seeded)
    assert len(rig.look()["runs"]) == 1
    seeded.ledger.close()
    for path in seeded.project.private.glob(f"{names.LEDGER_FILE}*"):
        path.rename(path.with_name("old-" + path.name))
    assert rig.look()["runs"] == []
    fresh_one = Seeded(seeded.project)
    fresh_one.take("run:pretrain", "run:pretrain seed=2")
    assert len(rig.look()["runs"]) == 2
    fresh_one.ledger.close()


def test_a_damaged_ledger_is_told_and_stops_nothing(rig: Rig, fresh: Project) -> None:
    fresh.ledger.write_bytes(b"this is no database" * 100)
    taken = rig.look()
    assert "can't be read" in taken["bridge"]["trouble"] and taken["stages"]


def test_ten_thousand_lines_a_second_are_kept_up_with(seeded: Seeded, rig: Rig) -> None:
    run_id = _started(seeded)
    rig.look()
    for turn in range(10):  # two seconds of it
        _log(seeded, run_id, "".join(f"line {turn} {number}\n" for number in range(2000)))
        rig.look(0.2)
        told = rig.model.delta(rig.model.seq - 1)
        assert told is not None and told["lines"][-1]["text"] == f"line {turn} 1999"
    assert len((seeded.project.run(run_id) / names.LOG).read_text().splitlines()) == 20_000


def test_twenty_runs_on_five_vms(seeded: Seeded, rig: Rig) -> None:
    for number in range(5):
        seeded.ledger.heartbeat(Heartbeat(f"vm-{number}", "boot", NOW))
    for run_id in seeded.take(*[f"run:pretrain seed={number}" for number in range(20)]):
        seeded.status(run_id)
        _say(seeded, run_id, *[{"at": NOW + n, "step": n, "metrics": {"loss": 1.0, "auc": 0.5}} for n in range(300)])
        _log(seeded, run_id, "a line\n" * 50)
    taken = rig.look()
    assert (len(taken["runs"]), len(taken["vms"]), len(taken["log"])) == (20, 6, 1000)
    assert len(json.dumps(taken)) < 500_000


def test_a_real_bridge_and_a_line_written_into_queue_txt(fresh: Project) -> None:
    with live_bridge(fresh.root, load_project=project_file.loader(fresh.root)) as live:
        model, actions = PanelModel(), Actions(fresh)
        feed = Feed(fresh, model, sent=actions.sent, bridge=lambda: {"state": "up"})
        feed.start()
        view = model.snapshot()
        try:
            with fresh.queue.open("a") as handle:
                handle.write("run:pretrain epochs=2\n")
            row = wait_until(lambda: live.bridge.ledger.commands(), 20, what="the line to be taken")[0]
            live.bridge.ledger.deliver(VM, 0)
            Uploader(live.client(), row.run_id, names.STATUS).put(_status(row.run_id))
            log = Uploader(live.client(), row.run_id, names.LOG)
            log.open("g1")
            log.patch("g1", 0, b"hello from the VM\n\x1b[31mred\x1b[0m\n")
            wait_until(lambda: len(model.snapshot()["log"]) == 2, 20, what="the log to be shown")
            wait_until(lambda: model.snapshot()["runs"] and model.snapshot()["vms"], 20, what="run and VM to be shown")
            told = model.delta(view["seq"])
            assert told is not None
            view = fold(view, told)
            assert [line["text"] for line in view["log"]] == ["hello from the VM", "red"]
            assert [(line["n"], line["line"]) for line in view["queue"]] == [(1, "run:pretrain epochs=2")]
            assert view["runs"][0]["id"] == row.run_id and view["vms"][0]["id"] == VM
            _assert_no_secret(view, live.bridge.keys.current()[1])
        finally:
            feed.close()


def test_a_press_is_seen_from_sent_to_taken_under_its_own_id(fresh: Project) -> None:
    with live_bridge(fresh.root, load_project=project_file.loader(fresh.root)):
        model, actions = PanelModel(), Actions(fresh)
        feed = Feed(fresh, model, sent=actions.sent, bridge=lambda: {"state": "up"})
        feed.start()
        try:
            answer = actions.act({"id": "press-0001", "verb": "run", "args": {"stage": "pretrain", "overrides": {}}})
            assert answer["state"] in ("sent", "taken") and answer["line"] == "run:pretrain"

            def taken() -> bool:
                told = [(line["id"], line["n"], line["state"]) for line in model.snapshot()["queue"]]
                return told == [("press-0001", 1, "taken")]

            wait_until(taken, 20, what="the line's fate")
        finally:
            feed.close()


def test_closing_ends_the_thread(fresh: Project) -> None:
    feed = Feed(fresh, PanelModel())
    feed.start()
    feed.start()
    assert [thread.name for thread in threading.enumerate()].count("bridgehead-panel-feed") == 1
    feed.close()
    assert "bridgehead-panel-feed" not in [thread.name for thread in threading.enumerate()]


def _status(run_id: str) -> bytes:
    status = {"v": 1, "run_id": run_id, "stage": "pretrain", "state": "running", "vm_id": VM, "updated": time.time()}
    return json.dumps(status).encode()


def _assert_no_secret(told: dict[str, Any], key: bytes) -> None:
    text = json.dumps(told)
    assert key.hex() not in text and "bh1.ey" not in text


def test_between_two_whole_looks_a_log_line_costs_no_view_of_any_run(
    rig: Rig, seeded: Seeded, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = _started(seeded)
    rig.look()
    asked: list[float] = []
    runs = rig.feed._view.runs
    monkeypatch.setattr(rig.feed._view, "runs", lambda now: asked.append(now) or runs(now))
    _log(seeded, run_id, "one more line\n")
    assert [line["text"] for line in rig.look(after_s=0.2)["log"]] == ["one more line"]
    assert asked == []
    rig.look(after_s=1.0)
    assert len(asked) == 1


def test_a_look_makes_nothing_anew_of_a_run_that_it_knows(
    seeded: Seeded, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    _started(seeded)
    rig.look()
    made: list[str] = []
    monkeypatch.setattr(feed, "RunFiles", lambda folder, run: made.append(run))
    assert rig.look()["runs"] and made == []


def test_a_burst_of_the_ledger_is_shown_once_and_none_of_it_is_forgotten(seeded: Seeded, rig: Rig) -> None:
    run_id = _started(seeded)
    rig.look()
    seeded.ack(run_id, Ack.FINISHED, RunState.DONE, 0)
    assert rig.look(after_s=0.1)["runs"][0]["state"] != "done"
    assert rig.look(after_s=0.35)["runs"][0]["state"] == "done"


def test_a_clock_that_was_set_back_holds_nothing_up(seeded: Seeded, rig: Rig) -> None:
    run_id = _started(seeded)
    rig.look()
    seeded.ack(run_id, Ack.FINISHED, RunState.DONE, 0)
    assert rig.look(after_s=-3600.0)["runs"][0]["state"] == "done"
