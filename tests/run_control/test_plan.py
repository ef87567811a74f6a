"""Plans: spec, price and checks of a launch, and what the bridge makes of the same line."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from bridge.ledger import Ledger
from bridge.project import PinRequest, ProjectView
from bridgehead import files, names
from bridgehead.errors import UsageError
from bridgehead.names import RunState
from bridgehead.records import ExitRecord, Heartbeat, StageSpec
from run_control import commands, config_keys, launching, paid_vms, pinning, plan, project_file
from run_control.checks import PASS, REFUSE, WARN
from run_control.money import Unpriced
from run_control.plan import Plan
from run_control.project import Project

TODAY = datetime.date(2026, 11, 30)
TOML = """\
[project]
name = "watch"

[payload]
include = ["*.py"]

{money}
[stages.train]
command = "python train.py"
{stage}

[stages.train.config]
seed = 7
groups = [1, 2]
"""
COLAB = '[money]\nprovider = "colab"\ngpu = "T4"\n'


def _project(folder: Path, money: str = "", stage: str = "", text: str = TOML) -> Project:
    (folder / names.PROJECT_FILE).write_text(text.format(money=money, stage=stage))
    (folder / "train.py").write_text("print(1)\n")
    return Project(folder)


def _plan(project: Project, **config: Any) -> Plan:
    whole = project_file.load_whole(project.root)
    request = launching.request_of(project, whole, "train", [f"{key}={value}" for key, value in config.items()])
    return plan.make(project.root, whole, request, today=TODAY)


def _states(made: Plan) -> dict[str, str]:
    return {check.name: check.state for check in made.checks}


def _pinned_view(project: Project) -> ProjectView:
    whole = project_file.load_whole(project.root)
    return dataclasses.replace(whole.view, pin=pinning.prepare(project.root, whole))


def test_a_project_that_says_nothing_about_money_starts_as_ever(tmp_path: Path) -> None:
    made = _plan(_project(tmp_path))
    assert made.refusal is None and _states(made)["price"] == PASS
    pins = made.pinned().pins
    assert (pins.rate, pins.unpriced, pins.budget_s) == ("", "", 0.0)
    assert made.spec is not None and pins.spec_id == made.spec.id and made.spec.seeds == {"seed": 7}


def _vm(project: Project, **told: Any) -> None:
    """A VM that is alive, and what its heartbeat tells."""
    project.make_private()
    ledger = Ledger(project.ledger)
    try:
        ledger.heartbeat(Heartbeat("vm-3fa9c1", "boot", time.time(), **told))
    finally:
        ledger.close()


def test_without_a_word_about_money_nothing_starts_on_a_vm_that_is_not_this_machine(tmp_path: Path) -> None:
    project = _project(tmp_path)
    _vm(project, hostname="5c1f", gpus=[{"name": "Tesla T4"}])
    made = _plan(project)
    assert made.refusal is not None and "vm-3fa9c1 (Tesla T4) is not this machine" in made.refusal.message
    assert 'provider = "colab"' in made.refusal.hint and '--unpriced "why"' in made.refusal.hint
    with pytest.raises(UsageError, match="names no provider"):
        commands.check(project, commands.order_run(project, "train", []))
    ledger = Ledger(project.ledger)
    try:
        lines = [(1, "run:train"), (2, "run:train unpriced=the%20lab%20pays")]
        hand_written, told = ledger.take(lines, _pinned_view(project))
        spec = ledger.spec_of(told.run_id)
    finally:
        ledger.close()
    assert hand_written.state == "rejected" and "is not this machine" in hand_written.reason
    assert spec is not None and "names no provider" in spec.pins.unpriced
    for stated in (COLAB, '[money]\nprovider = "local"\n'):
        assert _plan(_project(tmp_path, stated, "expected_hours = 1")).refusal is None


@pytest.mark.parametrize(
    "told", [{"hostname": socket.gethostname()}, {}, {"hostname": socket.gethostname(), "gpus": [{"name": 5}]}]
)
def test_a_vm_of_this_machine_is_nobodys_bill(tmp_path: Path, told: dict[str, Any]) -> None:
    project = _project(tmp_path)
    _vm(project, **told)
    assert _plan(project).refusal is None


def test_a_vm_that_is_gone_bills_nobody_and_one_without_a_gpu_is_named_alone(tmp_path: Path) -> None:
    project = _project(tmp_path)
    _vm(project, hostname="5c1f", gpus=[{}])
    assert paid_vms.elsewhere(tmp_path) == "vm-3fa9c1"
    ledger = Ledger(project.ledger)
    try:
        ledger.mark_vm_gone("vm-3fa9c1", "told so")
    finally:
        ledger.close()
    assert _plan(project).refusal is None


def test_the_price_is_rate_times_expected_hours(tmp_path: Path) -> None:
    made = _plan(_project(tmp_path, COLAB, "expected_hours = 2"))
    assert made.estimate is not None and str(made.estimate.total) == "2.14 CU"
    assert made.pinned().pins.rate == "1.07 CU" and made.refusal is None


def test_hours_are_guessed_from_the_last_run_that_is_done(tmp_path: Path) -> None:
    project = _project(tmp_path, COLAB)
    for number, state, hours in ((1, RunState.DONE, 4), (2, RunState.DONE, 3), (3, RunState.FAILED, 9)):
        run_id = f"train-000{number}-abcdef"
        folder = project.run(run_id)
        folder.mkdir(parents=True)
        record = ExitRecord(run_id, 1, state, started=1000.0, ended=1000.0 + hours * 3600)
        files.write_json(folder / names.EXIT, record.to_json())
    made = _plan(project)
    assert made.estimate is not None and made.estimate.hours == 3.0 and "train-0002" in made.estimate.hours_from


REFUSED = {
    "nobody knows how long": (COLAB, "", "how long it takes is not known"),
    "no figure": (COLAB.replace("T4", "H100"), "expected_hours = 1", "no figure for H100"),
    "over the total": (COLAB + 'max_total = "1 CU"\n', "expected_hours = 2", "2.14 CU is over max_total = 1 CU"),
    "a total of nothing": (COLAB + 'max_total = "0 CU"\n', "", "leaves it no time to run"),
    "over the stage's own total": (COLAB, 'expected_hours = 2\nmax_total = "2 CU"', "is over max_total = 2 CU"),
    "over the rate": (COLAB, 'expected_hours = 1\nmax_price_per_hour = "1 CU"', "over max_price_per_hour"),
    "over the hours": (COLAB, "expected_hours = 2\nmax_hours = 1", "over max_hours = 1"),
    "over the balance": (COLAB + 'balance = "2 CU"\n', "expected_hours = 2", "over balance"),
    "two units": (COLAB + 'max_total = "1 USD"\n', "expected_hours = 1", "two units"),
    "an unknown provider": ('[money]\nprovider = "colab2"\n', "expected_hours = 1", "did you mean colab"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_launch_is_refused(case: str, tmp_path: Path) -> None:
    money, stage, words = REFUSED[case]
    made = _plan(_project(tmp_path, money, stage))
    assert made.refusal is not None and words in f"{made.refusal.message} {made.refusal.hint}"
    with pytest.raises(UsageError):
        made.pinned()


def test_with_a_cap_and_a_rate_the_price_is_at_most_the_cap_and_the_run_is_stopped_there(tmp_path: Path) -> None:
    made = _plan(_project(tmp_path, COLAB + 'max_total = "10.7 CU"\n'))
    assert made.refusal is None and made.budget_s == 36_000.0
    assert made.estimate is not None and str(made.estimate.total) == "10.7 CU"


def test_a_cap_that_no_number_of_hours_gives_exactly_is_no_refusal(tmp_path: Path) -> None:
    for rate in ("360 USD", "0.7 USD", "3 USD", "7.77 USD"):
        made = _plan(_project(tmp_path, f'[money]\nprice_per_hour = "{rate}"\nmax_total = "2 USD"\n'))
        assert made.refusal is None and made.estimate is not None and not isinstance(made.estimate.total, Unpriced)
        assert str(made.estimate.total) == "2 USD"


def test_what_is_stored_and_sent_comes_out_of_the_cap(tmp_path: Path) -> None:
    money = '[money]\nprice_per_hour = "1 USD"\negress_per_gb = "0.5 USD"\nmax_total = "2 USD"\n'
    assert _plan(_project(tmp_path, money, "output_gb = 2")).budget_s == 3600.0
    for sent_gb in (4, 5):  # nothing is left to run for
        assert _plan(_project(tmp_path, money, f"output_gb = {sent_gb}")).refusal is not None


def test_an_unknown_price_is_let_through_with_a_reason_that_stays_in_the_spec(tmp_path: Path) -> None:
    project = _project(tmp_path, COLAB.replace("T4", "H100"))
    whole = project_file.load_whole(tmp_path)
    words = [launching.unpriced_word("the lab pays, 100 %")]
    made = plan.make(tmp_path, whole, launching.request_of(project, whole, "train", words), today=TODAY)
    assert made.refusal is None and _states(made)["price"] == WARN
    assert made.spec is not None and made.spec.resources.unpriced == "the lab pays, 100 %"
    assert "unpriced" not in made.stage.config


def test_nobody_is_refused_on_a_local_machine(tmp_path: Path) -> None:
    made = _plan(_project(tmp_path, '[money]\nprovider = "local"\n'))
    assert made.refusal is None and made.pinned().pins.unpriced == "local machine"


def test_other_code_is_another_spec(tmp_path: Path) -> None:
    project = _project(tmp_path)
    before = _plan(project).spec
    (tmp_path / "train.py").write_text("print(2)\n")
    after = _plan(project).spec
    assert before is not None and after is not None and before.id != after.id and before.code != after.code


def test_in_a_git_repository_commit_and_dirty_diff_are_in_the_spec(tmp_path: Path) -> None:
    project = _project(tmp_path)
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main")
    assert _code(project) == ("", "")

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q")
    assert _code(project) == ("", "")  # no commit yet: the payload's hash pins it
    git("add", "train.py", names.PROJECT_FILE)
    git("commit", "-qm", "one")
    clean = _code(project)
    assert clean == (git("rev-parse", "HEAD"), "")
    (tmp_path / "train.py").write_text("print(2)\n")
    assert _code(project)[0] == clean[0] and len(_code(project)[1]) == 64


def _code(project: Project) -> tuple[str, str]:
    spec = _plan(project).spec
    assert spec is not None
    return spec.code.commit, spec.code.dirty_sha256


DATA = '[data.clips]\nfingerprint = "{sha}"\n'


def test_a_fingerprint_is_pinned(tmp_path: Path) -> None:
    made = _plan(_project(tmp_path, DATA.format(sha="ab" * 32), 'data = "clips"'))
    assert made.spec is not None and made.spec.data.fingerprint == "ab" * 32 and _states(made)["data"] == PASS


def test_data_in_the_project_is_hashed_and_compared(tmp_path: Path) -> None:
    project = _project(tmp_path, '[data.clips]\npath = "pool"\n', 'data = "clips"')
    assert "missing" in str(_plan(project).refusal)
    (tmp_path / "pool").mkdir()
    assert "holds no file" in str(_plan(project).refusal)
    (tmp_path / "pool" / "a.bin").write_bytes(b"1")
    spec = _plan(project).spec
    assert spec is not None
    stated = f'[data.clips]\npath = "pool"\nfingerprint = "{spec.data.fingerprint}"\n'
    project = _project(tmp_path, stated, 'data = "clips"')
    assert _plan(project).refusal is None
    (tmp_path / "pool" / "a.bin").write_bytes(b"2")
    assert "is another" in str(_plan(project).refusal)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ('train_key = "groups"\nevaluation = [2, 9]\n', "2 of the evaluation set"),
        ('train_key = "groups"\nevaluation = ["1", "2"]\n', "1, 2 of"),
    ],
)
def test_train_and_evaluation_sets_may_not_overlap(data: str, words: str, tmp_path: Path) -> None:
    made = _plan(_project(tmp_path, f"[data.clips]\n{data}", 'data = "clips"'))
    assert made.refusal is not None and words in made.refusal.message
    assert _states(made)["data"] == REFUSE


def test_finetune_on_the_gates_own_subjects_is_refused_before_anything_starts(fresh: Project) -> None:
    whole = project_file.load_whole(fresh.root)
    for subjects, refused in (("[1,9]", True), ("[1,2]", False)):
        request = launching.request_of(fresh, whole, names.FINETUNE, [f"label_subjects={subjects}"])
        assert (plan.make(fresh.root, whole, request).refusal is not None) is refused


# --- the same by the bridge --------------------------------------------------------------------------------


def test_the_bridge_pins_what_it_takes_and_rejects_what_is_refused(tmp_path: Path) -> None:
    project = _project(tmp_path, COLAB + 'max_total = "3 CU"\n', "expected_hours = 2")
    project.make_private()
    ledger = Ledger(project.ledger)
    try:
        [good] = ledger.take([(1, "run:train groups=[3]")], _pinned_view(project))
        spec = ledger.spec_of(good.run_id)
        assert spec is not None and spec.pins.rate == "1.07 CU"
        planned = launching.plan_line(project, "train", ["groups=[3]"])
        assert planned.spec is not None and spec.pins.spec_id == planned.spec.id
        project = _project(tmp_path, COLAB + 'max_total = "1 CU"\n', "expected_hours = 2")
        [bad] = ledger.take([(2, "run:train groups=[3]")], _pinned_view(project))
        assert bad.state == "rejected" and "over max_total = 1 CU" in bad.reason
    finally:
        ledger.close()


def test_a_line_that_names_a_spec_runs_exactly_that(tmp_path: Path) -> None:
    project = _project(tmp_path)
    whole = project_file.load_whole(tmp_path)
    made = plan.make(tmp_path, whole, launching.request_of(project, whole, "train", ["groups=[5]"]))
    line = launching.line_of_spec(project, made)
    project.make_private()
    ledger = Ledger(project.ledger)
    try:
        [row] = ledger.take([(1, line)], _pinned_view(project))
        spec = ledger.spec_of(row.run_id)
        assert spec is not None and made.spec is not None and spec.pins.spec_id == made.spec.id
        assert spec.config == {"seed": 7, "groups": [5]} and spec.pins.exact
        (tmp_path / "train.py").write_text("print(3)\n")
        [row] = ledger.take([(2, line)], _pinned_view(project))
        assert row.state == "rejected" and "code.sha256" in row.reason and "not what it was" in row.reason
        [row] = ledger.take([(3, f"{line} groups=[6]")], _pinned_view(project))
        assert row.state == "rejected" and "nothing may stand beside it" in row.reason
        [row] = ledger.take([(4, "run:train spec=abcdefabcdef")], _pinned_view(project))
        assert row.state == "rejected" and "no run spec" in row.reason
    finally:
        ledger.close()


def test_a_spec_whose_parent_is_not_known_here_is_rejected(tmp_path: Path) -> None:
    project = _project(tmp_path)
    whole = project_file.load_whole(tmp_path)
    made = plan.make(tmp_path, whole, PinRequest(whole.view.stages["train"], {"base": "base-0001-abcdef"}))
    line = launching.line_of_spec(project, made)
    project.make_private()
    ledger = Ledger(project.ledger)
    try:
        [row] = ledger.take([(1, line)], _pinned_view(project))
        assert row.state == "rejected" and "base-0001-abcdef is not known here" in row.reason
    finally:
        ledger.close()


def test_an_edited_stored_spec_is_rejected(tmp_path: Path) -> None:
    project = _project(tmp_path)
    made = _plan(project)
    assert made.spec is not None
    path = pinning.store(tmp_path, made.spec)
    path.write_text(path.read_text().replace('"seed": 7', '"seed": 8').replace('"seed":7', '"seed":8'))
    whole = project_file.load_whole(tmp_path)
    with pytest.raises(UsageError, match="was edited"):
        pinning.prepare(tmp_path, whole)(PinRequest(StageSpec("train", "x"), {}, made.spec.id[:16]))


def test_a_misspelt_key_of_a_shipped_stage_is_refused_before_a_vm_sees_it(tmp_path: Path) -> None:
    text = '[project]\nname = "watch"\n[stages.train]\ncommand = "bridgehead:pretrain"\n{money}{stage}'
    project = _project(tmp_path, text=text)
    made = _plan(project, epoch=3)
    assert made.refusal is not None and made.refusal.hint == "did you mean epochs?"
    assert made.refusal.message == "config: stage train has no key 'epoch'"
    assert _plan(project, epochs=3).refusal is None
    project.make_private()
    with contextlib.closing(Ledger(project.ledger)) as ledger:
        [row] = ledger.take([(1, "run:train epoch=3")], _pinned_view(project))
        assert row.state == "rejected" and "epoch" in row.reason


@pytest.mark.parametrize(
    ("stage", "word", "told"),
    [
        ("pretrain", "epochs=ten", "epochs of stage train: 'ten' is not int"),
        ("pretrain", "epochs=true", "epochs of stage train: True is not int"),
        ("pretrain", "learning_rate=fast", "learning_rate of stage train: 'fast' is not float"),
        ("pretrain", "clips=1.5", "clips of stage train: 1.5 is not int | str"),
        ("finetune", "label_subjects=3", "label_subjects of stage train: 3 is not a list of integers"),
        ("finetune", 'label_subjects=["3"]', "label_subjects of stage train: ['3'] is not a list of integers"),
        ("gate", "criteria=[1]", "criteria of stage train: [1] is not a list of tables"),
    ],
)
def test_a_value_of_another_kind_is_refused_before_a_vm_sees_it(
    stage: str, word: str, told: str, tmp_path: Path
) -> None:
    head = f'[project]\nname = "watch"\n[stages.train]\ncommand = "bridgehead:{stage}"\n'
    project = _project(tmp_path, text=head + "{money}{stage}")
    key, _, value = word.partition("=")
    made = _plan(project, **{key: value})
    assert made.refusal is not None and made.refusal.message == f"config: {told}"
    (tmp_path / names.PROJECT_FILE).write_text(head + "[stages.train.config]\nthreads = 1.5\n")
    with pytest.raises(UsageError, match=r"bridgehead.toml:6: stages.train.config.threads: 1.5 is not int"):
        project_file.load(tmp_path)


@pytest.mark.parametrize("stage", names.SHIPPED_STAGES)
def test_every_kind_of_a_shipped_stages_config_can_be_read_without_torch(stage: str) -> None:
    for key in config_keys.of_shipped(f"{names.SHIPPED_COMMAND_PREFIX}{stage}"):
        assert config_keys.mistyped(f"{names.SHIPPED_COMMAND_PREFIX}{stage}", {key: object()}) is not None, key


def test_a_command_of_ones_own_may_be_given_any_key(tmp_path: Path) -> None:
    assert _plan(_project(tmp_path), epoch=3).refusal is None


def test_the_shipped_pipeline_says_why_its_data_is_not_pinned_before_it_runs(tmp_path: Path) -> None:
    text = '[project]\nname = "watch"\n[stages.train]\ncommand = "bridgehead:pretrain"\n{money}{stage}'
    told = {check.name: check for check in _plan(_project(tmp_path, text=text)).checks}["data"]
    assert told.state == WARN and "the VM makes the clips pool" in told.text and told.hint.startswith("nothing to do")
    own = {check.name: check for check in _plan(_project(tmp_path)).checks}["data"]
    assert own.state == WARN and "names no data" in own.text
