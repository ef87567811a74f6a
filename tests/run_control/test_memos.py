"""Post-mortems that the laptop writes, and the memos that come of them."""

from __future__ import annotations

import pytest
from cli_process import in_process
from project_support import NOW, VM, Seeded

from bridgehead import files, names
from bridgehead.errors import NotFoundError, StillRunning, UsageError
from bridgehead.names import FailureClass, RunState
from run_control import memos, postmortems, views

LATER = NOW + 3600


def _fail(seeded: Seeded, log: str, code: int = 1, line: str = "run:pretrain") -> str:
    [run_id] = seeded.take(line)
    folder = seeded.project.run(run_id)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names.LOG).write_text(log)
    seeded.finish(run_id, RunState.FAILED, code)
    return run_id


def test_a_run_that_ended_without_a_word_of_its_vm_gets_one_from_the_laptop(seeded: Seeded) -> None:
    run_id = _fail(seeded, "OSError: [Errno 107] Transport endpoint is not connected\n")
    assert postmortems.settle(seeded.project, now=NOW + 1) == []  # the VM's own may be on its way
    assert postmortems.settle(seeded.project, now=LATER) == [run_id]
    record = files.read_json(seeded.project.run(run_id) / names.POSTMORTEM)
    assert record is not None and (record["written_by"], record["verdict"]["class"]) == ("laptop", "mount_lost")
    assert postmortems.settle(seeded.project, now=LATER) == []


def test_the_vms_own_is_kept(seeded: Seeded) -> None:
    run_id = _fail(seeded, "")
    own = {"written_by": "vm", "verdict": {"class": "gpu_oom"}, "end": {"attempt": 1}}
    files.write_json(seeded.project.run(run_id) / names.POSTMORTEM, own)
    assert postmortems.of(seeded.project, views.run(seeded.project, run_id)).record == own


def test_one_that_has_not_ended_has_none(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    with pytest.raises(StillRunning):
        postmortems.of(seeded.project, views.run(seeded.project, run_id))


def test_infrastructure_failures_are_counted_once_each_and_the_owners_own_are_not(seeded: Seeded) -> None:
    _fail(seeded, "Transport endpoint is not connected\n")
    _fail(seeded, "ls: /mnt/x: Stale file handle\n")
    _fail(seeded, "ValueError: mine\n")
    for _ in range(2):
        postmortems.settle(seeded.project, now=LATER)
    [memo] = memos.all_of(seeded.project)
    assert (memo["class"], memo["times"], len(memo["incidents"])) == ("mount_lost", 2, 2)
    assert "Stale" in memo["symptom"] and "2 times" in (seeded.project.root / "memos/mount_lost.md").read_text()


@pytest.mark.parametrize(("kept_step", "lost_s"), [(40, 0.0), (30, 60.0)])
def test_a_memo_tells_when_it_happened_and_what_was_lost_then_not_when_it_was_heard_of(
    seeded: Seeded, kept_step: int, lost_s: float
) -> None:
    run_id = _fail(seeded, "Transport endpoint is not connected\n")
    folder = seeded.project.run(run_id)
    told = {"run_id": run_id, "stage": "pretrain", "state": "failed", "vm_id": VM, "attempt": 1, "updated": NOW + 400}
    times = {"started": NOW + 100, "ended": NOW + 301, "progress_at": NOW + 300, "step": 40, "total_steps": 100}
    kept = {"step": kept_step, "epoch": 0, "size_bytes": 1, "level": "mounted", "saved_at": NOW + 240, "at": NOW + 241}
    files.write_json(folder / names.STATUS, {"v": 1, **told, **times, "levels": {"mounted": kept}})
    postmortems.settle(seeded.project, now=LATER)
    [memo] = memos.all_of(seeded.project)
    assert (memo["last"], memo["lost_s"]) == (NOW + 301, lost_s)


def test_a_lost_vm_is_a_memo_and_the_next_good_end_is_what_helped(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.ledger.mark_vm_gone(VM, "dead")
    postmortems.settle(seeded.project, now=LATER)
    view = views.run(seeded.project, run_id)
    assert view.state == RunState.LOST
    done = memos.note(seeded.project, _done(view), {}, LATER)
    [memo] = memos.all_of(seeded.project)
    assert (done, memo["class"], memo["helped"][0]["by"]) == ("", "vm_lost", "record")


def _done(view: views.RunView) -> views.RunView:
    import dataclasses

    return dataclasses.replace(view, state=RunState.DONE, attempt=2, vm_id="vm-other")


def test_a_launch_hears_of_those_that_apply(seeded: Seeded) -> None:
    _fail(seeded, "Transport endpoint is not connected\n")
    postmortems.settle(seeded.project, now=LATER)
    [quote] = memos.applying(seeded.project, stage="pretrain", now=LATER)
    assert quote.startswith("mount_lost 1x")
    assert memos.applying(seeded.project, classes=frozenset({FailureClass.AUTH}), now=LATER) == []
    assert memos.applying(seeded.project, stage="finetune", now=LATER) == []
    assert memos.applying(seeded.project, now=LATER + memos.APPLIES_S) == []


def test_what_helped_can_be_written_down_and_a_memo_that_a_person_broke_is_set_aside(seeded: Seeded) -> None:
    _fail(seeded, "Transport endpoint is not connected\n")
    postmortems.settle(seeded.project, now=LATER)
    memos.helped(seeded.project, "mount_lost", "a fresh runtime", LATER)
    assert "a fresh runtime" in (seeded.project.root / "memos/mount_lost.md").read_text()
    (seeded.project.root / "memos/mount_lost.json").write_text("{")
    assert memos.all_of(seeded.project) == []
    assert (seeded.project.root / "memos/mount_lost.unreadable.json").exists()
    with pytest.raises(NotFoundError):
        memos.find(seeded.project, "auth")
    with pytest.raises(UsageError):
        memos.find(seeded.project, "../x")


def test_the_commands(seeded: Seeded, capsys: pytest.CaptureFixture[str]) -> None:
    run_id = _fail(seeded, "Transport endpoint is not connected\n")
    place = ("-C", str(seeded.project.root))
    page = in_process(capsys, *place, "postmortem", run_id)
    assert page.code == 0 and page.out.startswith(f"# {run_id}, attempt 1: mount_lost")
    listed = in_process(capsys, *place, "memos", "--json")
    assert [memo["class"] for memo in listed.data["memos"]] == ["mount_lost"]
    told = in_process(capsys, *place, "memos", "mount_lost", "--helped", "mounted again")
    assert "mounted again" in told.out
    assert in_process(capsys, *place, "memos", "--helped", "x").code == 2
