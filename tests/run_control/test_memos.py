"""Post-mortems that the laptop writes, and the memos that come of them."""

from __future__ import annotations

import dataclasses
import errno
import os

import pytest
from cli_process import in_process
from project_support import NOW, VM, Seeded

from bridge.project import ProjectView
from bridgehead import files, names
from bridgehead.errors import NotFoundError, StillRunning, UsageError
from bridgehead.names import FailureClass, RunState
from run_control import memos, pinning, postmortems, project_file, views

LATER = NOW + 3600


def _fail(seeded: Seeded, log: str, code: int = 1, line: str = "run:pretrain") -> str:
    [run_id] = seeded.take(line)
    folder = seeded.project.run(run_id)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names.LOG).write_text(log)
    seeded.finish(run_id, RunState.FAILED, code)
    return run_id


def _fail_pinned(seeded: Seeded, view: ProjectView, number: int) -> str:
    """The same for a run that was pinned to its price, as the bridge pins it."""
    [row] = seeded.ledger.take([(number, "run:pretrain2")], view)
    seeded.ledger.deliver(VM, 0)
    folder = seeded.project.run(row.run_id)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names.LOG).write_text("Transport endpoint is not connected\n")
    seeded.finish(row.run_id, RunState.FAILED, 1)
    return row.run_id


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


def test_a_memo_tells_what_was_lost_in_money_too_where_the_run_had_a_price(seeded: Seeded) -> None:
    table = '\n[money]\nprovider = "lab"\nprice_per_hour = "30 USD"\n[stages.pretrain2]\ncommand = "true"\n'
    seeded.project.file.write_text(seeded.project.file.read_text() + table + "expected_hours = 1\n")
    whole = project_file.load_whole(seeded.project.root)
    pinned = dataclasses.replace(whole.view, pin=pinning.prepare(seeded.project.root, whole))
    for number in (1, 2):
        run_id = _fail_pinned(seeded, pinned, number)
        told = {"run_id": run_id, "stage": "pretrain2", "state": "failed", "vm_id": VM, "attempt": 1, "updated": NOW}
        times = {"started": NOW + 100, "ended": NOW + 301, "progress_at": NOW + 300, "step": 40, "total_steps": 100}
        kept = {"step": 30, "epoch": 0, "size_bytes": 1, "level": "mounted", "saved_at": NOW + 240, "at": NOW + 241}
        files.write_json(
            seeded.project.run(run_id) / names.STATUS, {"v": 1, **told, **times, "levels": {"mounted": kept}}
        )
    postmortems.settle(seeded.project, now=LATER)
    [memo] = memos.all_of(seeded.project)
    assert (memo["lost_s"], memo["lost_money"]) == (120.0, {"USD": "1 USD"})
    assert memos.row(memo, LATER)[3].endswith("(1 USD)")
    assert "USD) of work done again" in (seeded.project.root / "memos/mount_lost.md").read_text()


def test_a_memo_of_before_money_was_counted_is_read_as_ever(seeded: Seeded) -> None:
    _fail(seeded, "Transport endpoint is not connected\n")
    postmortems.settle(seeded.project, now=LATER)
    [memo] = memos.all_of(seeded.project)
    assert memo.pop("lost_money") == {} and "USD" not in memos.row(memo, LATER)[3]


def test_a_lost_vm_is_a_memo_and_the_next_good_end_is_what_helped(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.ledger.mark_vm_gone(VM, "dead")
    postmortems.settle(seeded.project, now=LATER)
    view = views.run(seeded.project, run_id)
    assert view.state == RunState.LOST
    done = memos.note(seeded.project, _done(view), {}, LATER)
    [memo] = memos.all_of(seeded.project)
    assert (done, memo["class"], memo["helped"][0]["by"]) == ("", "vm_lost", "record")


def _done(view: views.RunView, attempt: int = 2) -> views.RunView:
    return dataclasses.replace(view, state=RunState.DONE, attempt=attempt, vm_id="vm-other")


def _helped(seeded: Seeded, run_id: str) -> list[str]:
    """What the memo of the mount says after the good end of this run."""
    memos.note(seeded.project, _done(views.run(seeded.project, run_id), 1), {}, LATER + 60)
    [memo] = memos.all_of(seeded.project)
    return [item["what"] for item in memo["helped"]]


def test_only_a_later_run_of_the_same_stage_and_config_is_what_helped(seeded: Seeded) -> None:
    lines = ("run:pretrain seed=1", "run:pretrain seed=1", "run:pretrain seed=2", "run:finetune", "run:pretrain seed=1")
    earlier, failed, other_config, other_stage, same = seeded.take(*lines)
    folder = seeded.project.run(failed)
    folder.mkdir(parents=True)
    (folder / names.LOG).write_text("Transport endpoint is not connected\n")
    seeded.finish(failed, RunState.FAILED, 1)
    postmortems.settle(seeded.project, now=LATER)
    for run_id in (earlier, other_config, other_stage):
        assert _helped(seeded, run_id) == []
    [told] = _helped(seeded, same)
    assert told == f"{same}, same config, on another VM, ended well"
    assert _helped(seeded, same) == [told]


def test_a_run_that_had_begun_before_the_failure_has_not_helped(seeded: Seeded) -> None:
    failed, beside = seeded.take("run:pretrain", "run:pretrain")
    folder = seeded.project.run(failed)
    folder.mkdir(parents=True)
    (folder / names.LOG).write_text("Transport endpoint is not connected\n")
    seeded.finish(failed, RunState.FAILED, 1)
    postmortems.settle(seeded.project, now=LATER)
    status = {"v": 1, "run_id": beside, "stage": "pretrain", "state": "done", "vm_id": VM, "attempt": 1}
    seeded.project.run(beside).mkdir(parents=True)
    for started, found in ((NOW + 1, 0), (LATER + 1, 1)):
        said = {**status, "updated": LATER + 9, "started": started, "ended": LATER + 9}
        files.write_json(seeded.project.run(beside) / names.STATUS, said)
        assert len(_helped(seeded, beside)) == found


def test_a_memo_of_before_tells_its_configs_by_the_ledger(seeded: Seeded) -> None:
    failed, other_config, same = seeded.take("run:pretrain", "run:pretrain seed=2", "run:pretrain")
    view = dataclasses.replace(views.run(seeded.project, failed), state=RunState.FAILED)
    memos.note(seeded.project, view, {"verdict": {"class": "mount_lost"}}, LATER)
    path = seeded.project.root / "memos/mount_lost.json"
    old = files.read_json(path)
    assert isinstance(old, dict)
    for key in ("config_sha256", "seq"):
        del old["incidents"][0][key]
    files.write_json(path, old)
    assert _helped(seeded, other_config) == [] and len(_helped(seeded, same)) == 1


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


def _full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_on_a_full_disk_nothing_is_lost_and_nothing_counted_twice(
    seeded: Seeded, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = _fail(seeded, "Transport endpoint is not connected\n")
    for call in ("fsync", "open"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, _full)
            assert postmortems.settle(seeded.project, now=LATER) == []
    write = files.write_json
    with monkeypatch.context() as patch:  # room for all but the last word of what was counted
        patch.setattr(
            files, "write_json", lambda path, *rest: _full() if path.name.endswith("seen.json") else write(path, *rest)
        )
        assert postmortems.settle(seeded.project, now=LATER) == []
    assert postmortems.settle(seeded.project, now=LATER) == [run_id]
    [memo] = memos.all_of(seeded.project)
    assert memo["times"] == 1 and "1 times" in (seeded.project.root / "memos/mount_lost.md").read_text()


def test_a_run_whose_folder_takes_nothing_holds_up_no_other_one(seeded: Seeded) -> None:
    odd, good = seeded.take("run:pretrain", "run:finetune")
    for run_id in (odd, good):
        seeded.finish(run_id, RunState.FAILED, 1)
    seeded.project.run(odd).parent.mkdir(exist_ok=True)
    seeded.project.run(odd).write_text("a file where a folder belongs")
    assert postmortems.settle(seeded.project, now=LATER) == [good]
