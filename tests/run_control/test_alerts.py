"""What needs a person, and that it is told under one key with a next step."""

from __future__ import annotations

from typing import Any

from project_support import NOW, VM, Seeded

from bridgehead import files, names
from bridgehead.names import Ack, FailureClass, RunState
from bridgehead.records import AckRecord, Heartbeat
from run_control import alerts, project_file, views
from run_control.alerts import AlertView
from run_control.bridge_control import LiveBridge

LIVE = LiveBridge(1, 1, 8766, "https://x.example", "", "cloudflared", "connected", NOW - 60, "")


def _alerts(seeded: Seeded, now: float = NOW, live: LiveBridge | None = LIVE, **more: Any) -> dict[str, AlertView]:
    found = alerts.alerts(
        views.runs(seeded.project, now=now), views.vms(seeded.project, now=now), live, now=now, **more
    )
    assert len({alert.key for alert in found}) == len(found)
    assert all(alert.next and alert.text for alert in found)
    return {alert.key: alert for alert in found}


def _running(seeded: Seeded) -> str:
    [run_id] = seeded.take("run:pretrain")
    seeded.ack(run_id, Ack.STARTED)
    return run_id


def _saved(level: str, ago_s: float) -> dict[str, Any]:
    return {level: {"step": 5, "level": level, "at": NOW - ago_s, "saved_at": NOW - ago_s}}


def test_all_well_is_no_alert(seeded: Seeded) -> None:
    run_id = _running(seeded)
    seeded.status(run_id, levels=_saved("confirmed", 60))
    assert _alerts(seeded) == {}


def test_a_dead_store(seeded: Seeded) -> None:
    run_id = _running(seeded)
    seeded.status(run_id, levels=_saved("confirmed", 60))
    seeded.ledger.heartbeat(Heartbeat(VM, "boot", NOW, store={"ok": False, "error": "Transport endpoint"}))
    found = _alerts(seeded)[f"store:{VM}"]
    assert found.level == "bad" and "Transport endpoint" in found.text and "checkpoints stay on the VM" in found.text


def test_a_sign_in_that_ended_is_told_though_the_store_takes_everything(seeded: Seeded) -> None:
    run_id = _running(seeded)
    seeded.status(run_id, levels=_saved("mounted", 60))
    trouble = "nothing can be confirmed: Google Drive refuses the credentials: expired or revoked → sign in again"
    seeded.ledger.heartbeat(Heartbeat(VM, "boot", NOW, store={"ok": True, "error": trouble}))
    found = _alerts(seeded)[f"unproven:{VM}"]
    assert found.level == "warn" and "expired or revoked" in found.text and "bootstrap cell" in found.next
    assert views.vm_row(views.vms(seeded.project, now=NOW)[0])[-1] == "ok, nothing confirmed"


def test_a_store_that_will_get_too_small_is_told_before_it_is_full(seeded: Seeded) -> None:
    warning = "4 checkpoints of 2.00 GiB need 8.00 GiB; the store has 3.00 GiB free"
    for store, told in (({"ok": True}, False), ({"ok": True, "warning": warning}, True)):
        seeded.ledger.heartbeat(Heartbeat(VM, "boot", NOW, store=store))
        assert (f"room:{VM}" in _alerts(seeded)) is told
    found = _alerts(seeded)[f"room:{VM}"]
    assert found.level == "warn" and warning in found.text and "quota_gb" in found.next


def test_a_trash_that_takes_more_than_is_left_is_told(seeded: Seeded) -> None:
    for trash_bytes, free_bytes, told in ((2**20, 0, False), (2**31, 2**32, False), (2**33, 2**32, True)):
        store = {"ok": True, "trash_bytes": trash_bytes, "free_bytes": free_bytes}
        seeded.ledger.heartbeat(Heartbeat(VM, "boot", NOW, store=store))
        assert (f"trash:{VM}" in _alerts(seeded)) is told
    assert "8.0 GiB lie in the trash" in _alerts(seeded)[f"trash:{VM}"].text
    assert views.vm_row(views.vms(seeded.project, now=NOW)[0])[-1] == "ok, 8.0 GiB in its trash"


def test_a_vm_that_nobody_keeps_is_told_before_it_is_taken_away(seeded: Seeded) -> None:
    run_id = _running(seeded)
    seeded.status(run_id, levels=_saved("confirmed", 60))
    for age_s, level in ((20.0, None), (200.0, "bad")):
        seeded.ledger.heartbeat(Heartbeat(VM, "boot", NOW, store={"ok": True}, cell_age_s=age_s))
        found = _alerts(seeded).get(f"cell:{VM}")
        assert (found.level if found else None) == level
    assert found is not None and "3m20s" in found.text and run_id in found.text
    seeded.finish(run_id, RunState.DONE)
    assert _alerts(seeded)[f"cell:{VM}"].level == "warn"


def test_a_vm_without_a_store(seeded: Seeded) -> None:
    seeded.ledger.heartbeat(Heartbeat(VM, "boot", NOW))
    assert _alerts(seeded)[f"no-store:{VM}"].level == "warn"


def test_a_heartbeat_that_is_gone_while_a_run_goes(seeded: Seeded) -> None:
    run_id = _running(seeded)
    seeded.status(run_id, levels=_saved("confirmed", 60))
    assert f"silent:{VM}" not in _alerts(seeded, NOW + 20)
    assert "1m00s" in _alerts(seeded, NOW + 60)[f"silent:{VM}"].text


def test_an_idle_vm_that_went_away_needs_nobody(seeded: Seeded) -> None:
    assert _alerts(seeded, NOW + 3600) == {}


def test_half_an_hour_that_a_death_would_cost(seeded: Seeded) -> None:
    run_id = _running(seeded)
    seeded.status(run_id, levels=_saved("confirmed", 1700))
    assert _alerts(seeded) == {}
    seeded.status(run_id, levels=_saved("confirmed", 1900))
    assert "31m40s of work since the last confirmed" in _alerts(seeded)[f"unconfirmed:{run_id}"].text


def test_half_an_hour_with_nothing_in_the_store(seeded: Seeded) -> None:
    run_id = _running(seeded)
    seeded.status(run_id, levels=_saved("local", 10))
    assert f"unconfirmed:{run_id}" not in _alerts(seeded)
    later = NOW + 1900
    seeded.ledger._clock = lambda: later
    seeded.beat()
    assert "no checkpoint is in the store" in _alerts(seeded, later)[f"unconfirmed:{run_id}"].text


def test_no_bridge_and_no_tunnel(seeded: Seeded) -> None:
    run_id = _running(seeded)
    seeded.status(run_id, levels=_saved("confirmed", 60))
    assert _alerts(seeded, live=None)["bridge-down"].next == "bridgehead up"
    assert _alerts(seeded, live=None, bridge_up=True) == {}
    down = LiveBridge(1, 1, 8766, "https://x.example", "", "cloudflared", "down", NOW - 90, "no route")
    assert "no route" in _alerts(seeded, live=down)["tunnel-down"].text


def test_without_a_bridge_runs_on_a_vm_go_on_and_others_wait(seeded: Seeded) -> None:
    rows = seeded.ledger.take([(1, "run:pretrain")], project_file.load(seeded.project.root))
    assert _alerts(seeded, live=None)["bridge-down"].text == "no bridge is running; 1 run waits for it"
    seeded.ledger.deliver(VM, 0)
    seeded.ack(rows[0].run_id, Ack.STARTED)
    text = _alerts(seeded, live=None)["bridge-down"].text
    assert text == "no bridge is running; 1 run goes on on its VM, and nothing of it arrives"


def test_a_failed_run_until_its_stage_is_run_again(seeded: Seeded) -> None:
    run_id = _running(seeded)
    row = seeded.ledger.find_run(run_id)
    failed = AckRecord(VM, Ack.FINISHED, 1, "CUDA out of memory", 1, RunState.FAILED, FailureClass.USER_ERROR)
    seeded.ledger.ack(row.id, failed)
    found = _alerts(seeded)[f"failed:{run_id}:1"]
    assert "CUDA out of memory" in found.text and "mend the code" in found.next
    seeded.take("run:pretrain epochs=2")
    assert f"failed:{run_id}:1" not in _alerts(seeded)


def test_a_run_that_says_it_runs_and_makes_no_progress(seeded: Seeded) -> None:
    run_id = _running(seeded)
    seeded.status(run_id, levels=_saved("confirmed", 60))
    path = seeded.project.run(run_id) / names.STATUS
    status = files.read_json(path)
    files.write_json(path, {**status, "progress_at": NOW - 700, "interval_s": 5.0})
    found = _alerts(seeded)[f"stalled:{run_id}:1"]
    assert "11m40s" in found.text and f"bridgehead stop {run_id}" in found.next
    files.write_json(path, {**status, "progress_at": NOW - 700, "interval_s": 90.0})
    assert _alerts(seeded) == {}  # it is slow by nature


def test_the_bad_comes_first(seeded: Seeded) -> None:
    run_id = _running(seeded)
    seeded.status(run_id, levels=_saved("confirmed", 1900))
    levels = [alert.level for alert in _alerts(seeded, live=None).values()]
    assert levels == ["bad", "warn"]


def test_a_vm_that_could_not_export_is_told_long_before_the_export(seeded: Seeded) -> None:
    run_id = _running(seeded)
    seeded.status(run_id, levels=_saved("confirmed", 60))
    trial = {"what": "onnx can't be imported", "hint": 'add "onnx" to [vm] requirements', "at": NOW}
    seeded.ledger.heartbeat(Heartbeat(VM, "boot", NOW, store={"ok": True}, export_trial=trial))
    found = _alerts(seeded)[f"export:{VM}"]
    assert found.level == "warn" and found.is_news
    assert found.text == f"{VM} can't export: onnx can't be imported" and 'add "onnx"' in found.next
    for odd in ({}, {"what": 3}, {"hint": "x"}):
        seeded.ledger.heartbeat(Heartbeat(VM, "boot", NOW, store={"ok": True}, export_trial=odd))
        assert _alerts(seeded) == {}
