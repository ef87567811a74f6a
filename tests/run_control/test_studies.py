"""A study from its question to its decision, with a ledger in the place of a bridge and a VM."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_process import Answer, in_process
from project_support import VM, Seeded

from bridgehead import files, names
from bridgehead.errors import UsageError
from bridgehead.names import RunState
from registry_support import Lab
from run_control import bridge_control, pricing, project_file, yaml_file
from run_control.project import Project
from run_control.studies import conductor, figures, study_file
from run_control.studies import tracker as tracking
from run_control.studies.tracker import Tracker

STUDY = """\
v: 1
question: Does it help?
hypothesis: It does.
stages: [finetune, gate]
control: plain
arms:
  plain: {finetune: {method: plain}}
  lp-ft: {finetune: {method: lp-ft}}
  probe: {finetune: {method: probe}}
grid: {finetune.seed: [0, 1]}
metric: {name: accuracy, min_effect: 0.01}
parallel: 2
"""
GOOD = {"plain": 0.7, "lp-ft": 0.8, "probe": 0.5}


FILES = {
    "plain.toml": 'stage = "finetune"\ntags = ["first"]\n\n[config]\nmethod = "plain"\n',
    "lp-ft.yaml": "stage: finetune\nconfig: {method: lp-ft}\n",
    "gate.yml": "version: 1\nstage: gate\nconfig: {min_effect: 0.03}\n",
}
OF_FILES = STUDY.replace("{finetune: {method: plain}}", "plain.toml").replace(
    "{finetune: {method: lp-ft}}", "[lp-ft.yaml, gate.yml]"
)


class Bench:
    """Plays bridge and VM: takes what stands in queue.txt, and lets runs end with results."""

    def __init__(self, seeded: Seeded) -> None:
        self.seeded, self.project, self.lab = seeded, seeded.project, Lab(seeded.project)
        self.folder = self.project.root / study_file.FOLDER / "lp"
        self.folder.mkdir(parents=True)
        self.taken = 0
        self.write(STUDY)
        seeded.take("run:pretrain")

    def write(self, text: str) -> None:
        (self.folder / study_file.STUDY).write_text(text)

    def lines(self) -> list[str]:
        text = self.project.queue.read_text()
        return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]

    def take(self) -> list[str]:
        """What the bridge does at its next look."""
        fresh = self.lines()[self.taken :]
        self.taken += len(fresh)
        return self.seeded.take(*fresh) if fresh else []

    def work(self, values: dict[str, float] = GOOD) -> int:
        """Every finetune and gate that was taken ends; how many did."""
        ended = 0
        for row in self.seeded.ledger.commands():
            if row.ended or row.stage not in (names.FINETUNE, names.GATE):
                continue
            self.seeded.ledger.deliver(VM, 0)
            if row.stage == names.FINETUNE:
                self.lab.train(row.run_id, seed=row.seq)
                self.seeded.finish(row.run_id, RunState.DONE)
            else:
                arm = self._arm(row.inputs[names.FINETUNE])
                self.lab.judge(row.inputs[names.FINETUNE], gate_id=row.run_id, right=values[arm], baseline=0.3)
                self.seeded.finish(row.run_id, RunState.DONE)
            ended += 1
        return ended

    def _arm(self, finetune: str) -> str:
        text = self.seeded.ledger.find_run(finetune).text
        return {"plain": "plain", "lp-ft": "lp-ft", "probe": "probe"}[text.split("method=")[1].split()[0]]

    def round(self) -> Tracker:
        study = study_file.load(self.folder)
        return conductor.start(self.project, self.folder, study, wait=False)

    def to_the_end(self, values: dict[str, float] = GOOD) -> Tracker:
        for _ in range(20):
            found = self.round()
            if found.state in (tracking.DONE, conductor.STOPPED):
                return found
            self.take()
            self.work(values)
        raise AssertionError("the study does not end")


@pytest.fixture
def bench(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(bridge_control, "find", lambda project: object())
    monkeypatch.setattr(figures, "RESAMPLES", 300)
    monkeypatch.chdir(seeded.project.root)
    yield Bench(seeded)


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: str) -> Answer:
        return in_process(capsys, *words)

    return run


def test_from_question_to_decision(bench: Bench, say: Any) -> None:
    planned = say("study", "plan", "lp", "--json").data
    assert planned["runs"] == 12
    assert [cell["id"] for cell in planned["tracker"]["cells"]][:3] == ["plain-1", "lp-ft-1", "probe-1"]
    assert bench.to_the_end().spent["runs"] == 12
    assert len(bench.lines()) == 12
    figures = say("study", "analyse", "lp", "--json").data["figures"]
    assert {item["arm"]: item["verdict"] for item in figures["against"]} == {"lp-ft": "pass", "probe": "fail"}
    decided = say("study", "decide", "lp", "--json").data["decision"]
    assert (decided["decision"], decided["arm"]) == ("adopt", "lp-ft")
    assert decided["evidence"]["against"][0]["interval"][0] > 0.01
    written, _ = yaml_file.load(bench.folder / study_file.DECISION)
    assert written["decision"] == "adopt" and written["tracker_sha256"] == tracking.read(bench.folder).sha256
    assert "<svg" in (bench.folder / study_file.PLOT).read_text()
    assert say("study", "status", "lp").code == 0


def test_a_full_disk_leaves_the_tracker_and_the_decision_that_stood(
    bench: Bench, say: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    say("study", "plan", "lp")
    bench.to_the_end()
    say("study", "analyse", "lp")
    assert say("study", "decide", "lp").code == 0
    before = {path.name: path.read_bytes() for path in bench.folder.iterdir()}

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write = files.write_atomic
    for spared in ("none", f"{study_file.DECISION}.before"):

        def some(path: Path, *rest: Any, spared: str = spared) -> None:
            return write(path, *rest) if path.name == spared else full()

        with monkeypatch.context() as patch:
            patch.setattr(files, "write_atomic", some)
            answer = say("study", "decide", "lp", "--again")
        assert answer.code != 0 and "make room" in answer.err
        assert {path.name: path.read_bytes() for path in bench.folder.iterdir() if path.name in before} == before
    assert say("study", "decide", "lp", "--again").code == 0


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_any_write_it_goes_on_and_queues_nothing_twice(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Dies before and after the tracker and the queue are written; the bridge takes lines when it likes."""
    chance = random.Random(seed)
    save, append = tracking.save, conductor.queue_writer.append

    class Death(Exception):
        pass

    def perhaps(act: Any) -> Any:
        def wrapped(*given: Any) -> Any:
            if chance.random() < 0.25:
                raise Death
            made = act(*given)
            if chance.random() < 0.25:
                raise Death
            return made

        return wrapped

    tracking.plan(bench.folder, study_file.load(bench.folder))
    monkeypatch.setattr(tracking, "save", perhaps(save))
    monkeypatch.setattr(conductor.queue_writer, "append", perhaps(append))
    for _ in range(300):
        try:
            if bench.round().state == tracking.DONE:
                break
        except Death:
            pass
        if chance.random() < 0.6:
            bench.take()
        if chance.random() < 0.6:
            bench.work()
    found = tracking.read(bench.folder)
    runs = [run.run_id for cell in found.cells for run in cell.runs]
    assert found.state == tracking.DONE and len(bench.lines()) == 12 and len(set(runs)) == 12 and all(runs)
    for cell in found.cells:
        assert bench.seeded.ledger.find_run(cell.runs[1].run_id).inputs[names.FINETUNE] == cell.runs[0].run_id


def test_a_gate_that_says_no_is_an_answer_and_no_failure(bench: Bench) -> None:
    tracking.plan(bench.folder, study_file.load(bench.folder))
    found = bench.to_the_end({**GOOD, "probe": 0.2})
    outcomes = {cell.arm: cell.outcome["verdict"] for cell in found.cells}
    assert found.state == tracking.DONE and outcomes == {"plain": "pass", "lp-ft": "pass", "probe": "fail"}


def test_the_budget_ends_it_between_arms_and_more_of_it_goes_on(bench: Bench, say: Any) -> None:
    bench.write(STUDY + "budget: {runs: 6}\n")
    say("study", "plan", "lp")
    found = bench.to_the_end()
    assert found.state == conductor.STOPPED and found.why.startswith("budget: 6 of 6 runs")
    assert say("study", "start", "lp", "--json").code == 3
    bench.write(STUDY + "budget: {runs: 12}\n")
    assert say("study", "start", "lp").code == 2  # edited in the middle
    assert say("study", "plan", "lp", "--again").code == 0
    assert bench.to_the_end().state == tracking.DONE and len(bench.lines()) == 12


def test_hours_count_what_runs_took_and_not_the_queue(bench: Bench, say: Any) -> None:
    bench.write(STUDY + "budget: {hours: 0.05}\n")  # each run of the bench takes a minute
    say("study", "plan", "lp")
    found = bench.to_the_end()
    assert found.state == conductor.STOPPED and found.why.startswith("budget: 0.0667 of 0.05 hours")


def test_a_budget_in_money_needs_a_price_and_a_unit(bench: Bench, say: Any) -> None:
    bench.write(STUDY + "budget: {cost: '5'}\n")
    assert "says no unit" in say("study", "plan", "lp").err
    bench.write(STUDY + "budget: {cost: 5 USD}\n")
    say("study", "plan", "lp")
    found = bench.to_the_end()
    assert found.state == conductor.STOPPED and "nobody knows what finetune-" in found.why
    for spent, why in (("2 USD", ""), ("1.00 USD", ""), ("2.50 USD", "5 USD are spent")):
        for run in (run for cell in found.cells for run in cell.runs):
            run.cost = spent if run.state == RunState.DONE else ""
        done = sum(bool(run.cost) for cell in found.cells for run in cell.runs)
        told = conductor.why_no_more(study_file.load(bench.folder), found)
        assert bool(told) is (done * float(spent.split()[0]) >= 5), told
        assert why in told or not told


def test_arms_that_fail_end_it(bench: Bench, say: Any) -> None:
    bench.write(STUDY + "stop: {failures: 1}\n")
    say("study", "plan", "lp")
    bench.round()
    for run_id in bench.take():
        bench.seeded.ledger.deliver(VM, 0)
        bench.seeded.finish(run_id, RunState.FAILED, 1)
    bench.round()
    found = bench.round()
    assert found.state == conductor.STOPPED and found.why.startswith("stop rule: plain-1")
    answer = say("study", "analyse", "lp")
    assert answer.code == 6 and "no arm has ended" in answer.err


def test_an_edited_study_keeps_the_arms_that_did_not_change(bench: Bench, say: Any) -> None:
    say("study", "plan", "lp")
    bench.to_the_end()
    bench.write(STUDY.replace("{method: probe}", "{method: probe, probe_epochs: 30}"))
    for step in ("start", "status", "analyse", "decide"):
        answer = say("study", step, "lp")
        assert answer.code == 2 and "edited since" in answer.err
    assert say("study", "plan", "lp").code == 2
    tracker = say("study", "plan", "lp", "--again", "--json").data["tracker"]
    assert [cell["state"] for cell in tracker["cells"]] == ["done", "done", "planned"] * 2
    assert [cell["arm"] for cell in tracker["dropped"]] == ["probe", "probe"] and tracker["spent"]["runs"] == 12
    bench.to_the_end()
    assert len(bench.lines()) == 16


def test_a_study_that_is_edited_while_it_is_followed_queues_nothing_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = study_file.load(bench.folder)
    tracking.plan(bench.folder, study)

    def edit(pause_s: float) -> None:
        bench.write(STUDY.replace("parallel: 2", "parallel: 6"))

    monkeypatch.setattr(conductor.time, "sleep", edit)
    with pytest.raises(UsageError, match="edited while it was under way"):
        conductor.start(bench.project, bench.folder, study, wait=True)
    assert len(bench.lines()) == 4


def test_who_only_looks_writes_nothing_while_the_study_is_conducted(bench: Bench, say: Any) -> None:
    """Else it could write over what `start` has noted a moment ago, and a line would be queued twice."""
    study = study_file.load(bench.folder)
    tracking.plan(bench.folder, study)
    bench.round()
    bench.take()
    before = (bench.folder / study_file.TRACKER).read_bytes()
    with conductor.alone(bench.project, bench.folder):
        shown = say("study", "status", "lp", "--json").data["tracker"]
        assert all(run["run_id"] for run in shown["cells"][0]["runs"])
        assert (bench.folder / study_file.TRACKER).read_bytes() == before
    say("study", "status", "lp")
    assert (bench.folder / study_file.TRACKER).read_bytes() != before


def test_words_around_the_generated_parts_stay_and_inside_they_are_refused(bench: Bench, say: Any) -> None:
    say("study", "plan", "lp")
    bench.to_the_end()
    say("study", "analyse", "lp")
    path = bench.folder / study_file.ANALYSIS
    text = path.read_text().replace("this is kept.", "this is kept.\n\nSeed 1 was lucky.") + "\nA last word.\n"
    path.write_text(text)
    assert say("study", "analyse", "lp").code == 0 and path.read_text() == text
    path.write_text(text.replace("| lp-ft | 2 |", "| lp-ft | 9 |"))
    answer = say("study", "decide", "lp")
    assert answer.code == 2 and "analysis.md does not say" in answer.err and "study analyse lp" in answer.err
    assert say("study", "analyse", "lp").code == 0 and path.read_text() == text
    path.write_text(text.replace("<!-- end of: arms -->\n", ""))
    answer = say("study", "analyse", "lp")
    assert answer.code == 2 and "marker does not fit" in answer.err


def test_records_that_changed_after_the_analysis_stop_the_decision(bench: Bench, say: Any) -> None:
    say("study", "plan", "lp")
    found = bench.to_the_end()
    say("study", "analyse", "lp")
    path = bench.project.run(found.cells[1].runs[1].run_id) / names.RESULTS
    path.write_text(path.read_text().replace("0.8", "0.9"))
    assert "does not say what" in say("study", "decide", "lp").err


def test_a_decision_against_the_evidence_needs_a_reason_and_one_is_never_replaced_in_silence(
    bench: Bench, say: Any
) -> None:
    say("study", "plan", "lp")
    bench.to_the_end()
    assert say("study", "decide", "lp").code == 6  # nothing was analysed
    say("study", "analyse", "lp")
    answer = say("study", "decide", "lp", "adopt", "--arm", "probe")
    assert answer.code == 2 and "the evidence suggests adopt lp-ft" in answer.err
    told = say("study", "decide", "lp", "adopt", "--arm", "probe", "--because", "it is a tenth of the price", "--json")
    assert told.data["decision"]["suggested"]["arm"] == "lp-ft"
    assert say("study", "decide", "lp").code == 2
    assert say("study", "decide", "lp", "--again").code == 0
    assert (bench.folder / f"{study_file.DECISION}.before").exists()
    assert say("study", "decide", "lp", "adopt", "--arm", "plain", "--again").code == 2
    assert "did you mean adopt?" in say("study", "decide", "lp", "adop", "--again").err


def test_a_difference_that_the_interval_does_not_tell_is_repeated(bench: Bench, say: Any) -> None:
    say("study", "plan", "lp")
    bench.to_the_end({"plain": 0.7, "lp-ft": 0.7, "probe": 0.7})
    say("study", "analyse", "lp")
    decided = say("study", "decide", "lp", "--json").data["decision"]
    assert (decided["decision"], decided["arm"]) == ("reject", "")  # ties everywhere: it does tell


def test_arms_that_were_judged_on_different_items_are_not_compared(bench: Bench, say: Any) -> None:
    say("study", "plan", "lp")
    found = bench.to_the_end()
    path = bench.project.run(found.cells[1].runs[1].run_id) / names.RESULTS
    path.write_text(path.read_text().replace("e" * 64, "f" * 64))
    answer = say("study", "analyse", "lp")
    assert answer.code == 9 and "different items" in answer.err


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (("control: plain", "control: plian"), "did you mean plain?"),
        (("question:", "qestion:"), "study.yaml:2: qestion: unknown key"),
        (("min_effect: 0.01", "min_efect: 0.01"), "metric.min_efect: unknown key"),
        (("min_effect: 0.01", "min_effect: -1"), "metric.min_effect"),
        (("min_effect: 0.01", "min_effect: 0.01, margin: 0.1"), "give one"),
        (("v: 1", "v: 2"), "version 2"),
        (("finetune.seed", "finetun.seed"), "grid"),
        (("plain: {finetune", "plain: {finetun"), "did you mean finetune?"),
        (("parallel: 2", "parallel: 2\nparallel: 3"), "study.yaml:13: parallel is given twice"),
        (("parallel: 2", "parallel: two"), "parallel"),
        (("It does.", "&x It does."), "anchors are not used"),
        (("[0, 1]", "[0, 1"), "not YAML"),
        (("finetune.seed: [0, 1]", "finetune.weights: ['a b']"), "a space in it"),
        (("control: plain", "control: zz"), "study.yaml:5: control: 'zz' is no arm"),
        (("stages: [finetune, gate]", "stages: [finetune, gat]"), "study.yaml:4: stages: no stage 'gat'"),
        (("name: accuracy", "name: accuracy, direction: up"), "study.yaml:11: metric.direction: should be 'higher'"),
        (("parallel: 2", "budget: {runs: -1}"), "study.yaml:12: budget.runs: should be greater"),
        (("  probe: {", "  lp-ft: {"), "study.yaml:9: lp-ft is given twice"),
        (("[0, 1]", "[1, 1, 1]"), "study.yaml:10: grid.finetune.seed: 1 is given 3 times"),
        (("[0, 1]", "[1, 1.0]"), "study.yaml:10: grid.finetune.seed: 1 is given 2 times"),
        (("method: probe", "method: plain"), "study.yaml:9: arms.probe: the same runs as arm plain"),
        (("finetune.seed", "finetune.method"), "study.yaml:8: arms.lp-ft: the same runs as arm plain once the grid"),
        (("finetune.seed", "finetune.sed"), "study.yaml:10: grid.finetune.sed: the config of stage finetune"),
        (("method: probe", "methd: probe"), "did you mean method?"),
        ((STUDY, ""), "study.yaml:1: the file is empty"),
        ((STUDY, "- a"), "study.yaml:1: not a table of keys"),
    ],
)
def test_mistakes_name_file_line_and_key(bench: Bench, say: Any, edit: tuple[str, str], message: str) -> None:
    bench.write(STUDY.replace(*edit))
    answer = say("study", "plan", "lp")
    assert answer.code == 2, answer
    assert message in answer.err and "next: " in answer.err
    assert "Traceback" not in answer.err and not (bench.folder / study_file.TRACKER).exists()


def test_keys_are_checked_where_the_stage_names_some(bench: Bench, say: Any) -> None:
    stage = '\n[stages.mine]\ncommand = "python mine.py"\n'
    bench.project.file.write_text(bench.project.file.read_text() + stage)
    bench.write(STUDY.replace("[finetune, gate]", "[finetune, mine]").replace("finetune.seed", "mine.sed"))
    assert say("study", "plan", "lp").code == 0  # its program alone knows them
    bench.project.file.write_text(bench.project.file.read_text() + "[stages.mine.config]\nseed = 1\n")
    answer = say("study", "plan", "lp", "--again")
    assert answer.code == 2 and "did you mean seed?" in answer.err and "[stages.mine.config]" in answer.err


def test_the_plan_says_which_arms_the_budget_leaves_out(bench: Bench, say: Any) -> None:
    bench.write(STUDY + "budget: {runs: 5}\n")
    answer = say("study", "plan", "lp", "--json")
    assert answer.data["beyond_budget"] == ["probe-1", "plain-2", "lp-ft-2", "probe-2"]
    answer = say("study", "plan", "lp", "--again")
    assert "the budget allows 5: will not be queued: probe-1, plain-2" in answer.err and "budget.runs" in answer.err
    bench.write(STUDY)
    assert say("study", "plan", "lp", "--again", "--json").data["beyond_budget"] == []


@pytest.mark.parametrize("torn", ["", "v: 1\ncells: [", "v: 1\nstudy: lp\n", "v: 9\n", "v: x\n"])
def test_a_tracker_that_can_not_be_read_is_said_with_what_helps(bench: Bench, say: Any, torn: str) -> None:
    say("study", "plan", "lp")
    (bench.folder / study_file.TRACKER).write_text(torn)
    for words in (("plan", "lp", "--again"), ("status", "lp")):
        answer = say("study", *words)
        assert answer.code == 2 and "tracker.yaml" in answer.err and "next: " in answer.err


def test_a_study_that_is_not_there_and_names_that_can_not_be(bench: Bench, say: Any) -> None:
    assert say("study", "plan", "lpx").code == 6
    assert say("study", "new", "../x").code == 2
    assert say("study", "new", "lp").code == 2
    assert say("study", "start", "lp").code == 6  # not planned
    assert say("study", "new", "second").code == 0 and say("study", "plan", "second").code == 0


def test_without_a_bridge_nothing_is_queued(bench: Bench, say: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    say("study", "plan", "lp")
    monkeypatch.setattr(bridge_control, "find", lambda project: None)
    assert say("study", "start", "lp").code == 11 and bench.lines() == []


def test_a_stage_that_the_project_lacks(bench: Bench, say: Any) -> None:
    bench.write(STUDY.replace("finetune", "tune"))
    answer = say("study", "plan", "lp")
    assert answer.code == 2 and "no stage 'tune'" in answer.err


def test_the_template_for_a_project_of_ones_own(fresh: Project, say: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(fresh.root)
    fresh.file.write_text('[project]\nname = "mine"\n[stages.fit]\ncommand = "python fit.py"\n')
    assert say("study", "new", "mine").code == 0
    assert study_file.load(fresh.root / "studies" / "mine").stages == ["fit"]
    assert project_file.load(fresh.root).stages.keys() == {"fit"}


# --- YAML ------------------------------------------------------------------------------------------------------


def test_scalars_are_what_people_mean(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: no\nb: 1e-3\nc: 2024-01-01\nd: 010\ne: 'true'\nf: true\ng: ~\nh: 0x1f\ni: .nan\nj: on\n")
    value, lines = yaml_file.load(path)
    assert value == {
        "a": "no", "b": 0.001, "c": "2024-01-01", "d": 10, "e": "true", "f": True, "g": None, "h": "0x1f",
        "i": ".nan", "j": "on",
    }  # fmt: skip
    assert lines[("c",)] == 3


@pytest.mark.parametrize(
    "value", ["no", "1e-3", "12", "", "null", "True", "a: b", "x\ny", "2024-01-01", "1_000", "- a", "#"]
)
def test_text_comes_back_as_text(tmp_path: Path, value: str) -> None:
    yaml_file.save(tmp_path / "x.yaml", {"k": value, "l": [value]})
    assert yaml_file.load(tmp_path / "x.yaml")[0] == {"k": value, "l": [value]}


def test_an_arm_whose_results_can_t_be_compared_fails_before_the_others_are_paid_for(bench: Bench) -> None:
    tracking.plan(bench.folder, study_file.load(bench.folder))
    bench.round()
    bench.take()
    for stage, results in ((names.FINETUNE, {}), (names.GATE, {"accuracy": 0.9})):
        for row in bench.seeded.ledger.commands():
            if row.stage == stage and not row.ended:
                bench.seeded.ledger.deliver(VM, 0)
                bench.project.run(row.run_id).mkdir(parents=True, exist_ok=True)
                files.write_json(bench.project.run(row.run_id) / names.RESULTS, results)
                bench.seeded.finish(row.run_id, RunState.DONE)
    failed = [cell for cell in bench.round().cells if cell.state == tracking.FAILED]
    assert failed and all("holds no cells; a gate writes them" in cell.why for cell in failed)


# --- arms that are spec files ---------------------------------------------------------------------------------


def _write(bench: Bench, text: str = OF_FILES, **changed: str) -> None:
    bench.write(text)
    for name, content in {**FILES, **changed}.items():
        (bench.folder / name).write_text(content)


def test_an_arm_may_be_spec_files_and_runs_as_if_it_were_written_out(bench: Bench) -> None:
    _write(bench)
    study = study_file.load(bench.folder)
    written_out = OF_FILES.replace("plain.toml", "{finetune: {method: plain}}").replace(
        "[lp-ft.yaml, gate.yml]", "{finetune: {method: lp-ft}, gate: {min_effect: 0.03}}"
    )
    bench.write(written_out)
    assert study == study_file.load(bench.folder) and study.sha256 == study_file.load(bench.folder).sha256
    config = study_file.cells(study)[1].config
    assert study_file.lines_of(config) == ["run:finetune method=lp-ft seed=0", "run:gate min_effect=0.03"]


def test_a_spec_file_that_changes_is_an_edited_study(bench: Bench) -> None:
    _write(bench)
    before = study_file.load(bench.folder).sha256
    (bench.folder / "plain.toml").write_text("# a word of mine\n" + FILES["plain.toml"])
    assert study_file.load(bench.folder).sha256 == before
    (bench.folder / "plain.toml").write_text(FILES["plain.toml"].replace('"plain"', '"probe2"'))
    assert study_file.load(bench.folder).sha256 != before


def test_why_a_spec_file_may_have_no_price_and_where_it_begins_go_into_the_line(bench: Bench) -> None:
    more = 'resume = "finetune-0002-abcdef"\n' + FILES["plain.toml"] + '[resources]\nunpriced = "the lab  pays"\n'
    _write(bench, **{"plain.toml": more})
    line = study_file.lines_of(study_file.cells(study_file.load(bench.folder))[0].config)[0]
    assert line == "run:finetune method=plain resume=finetune-0002-abcdef unpriced=the%20lab%20pays seed=0"


CAPPED = '[resources]\nmax_total = "3 CU"\n'
WRONG_FILES = {
    "a cap": ({"plain.toml": FILES["plain.toml"] + CAPPED}, r"plain.toml:7: resources.max_total: all arms"),
    "data": ({"lp-ft.yaml": FILES["lp-ft.yaml"] + "data: clips\n"}, r"lp-ft.yaml:3: data: all arms"),
    "parents": ({"lp-ft.yaml": FILES["lp-ft.yaml"] + "parents: [base.toml]\n"}, r"lp-ft.yaml:3: parents: all arms"),
    "a misspelt key": ({"lp-ft.yaml": "stage: finetune\nconfg: {}\n"}, r"lp-ft.yaml:2: confg: unknown key"),
    "an empty file": ({"gate.yml": ""}, r"gate.yml:1: the file is empty"),
    "one stage twice": ({"gate.yml": FILES["lp-ft.yaml"]}, r"two spec files of stage finetune"),
    "a stage of no study": ({"plain.toml": 'stage = "export"\n'}, r"study.yaml:7: arms.plain.export: 'export' is none"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_FILES)
def test_a_spec_file_that_is_no_arm_is_told_with_file_and_line(case: str, bench: Bench) -> None:
    changed, message = WRONG_FILES[case]
    _write(bench, **changed)
    with pytest.raises(UsageError, match=message) as caught:
        study_file.load(bench.folder)
    assert caught.value.hint and caught.value.message.startswith("study.yaml:")


@pytest.mark.parametrize(
    ("arm", "message"),
    [("nowhere.toml", "no spec file"), ("plain", "no spec file's name")]
    + [(neither, "arms.plain") for neither in ("[]", "[1]", "5", "[plain.toml, 5]")],
)
def test_an_arm_that_is_neither_config_nor_spec_file(arm: str, message: str, bench: Bench) -> None:
    _write(bench, OF_FILES.replace("plain: plain.toml", f"plain: {arm}"))
    with pytest.raises(UsageError, match=message) as caught:
        study_file.load(bench.folder)
    assert caught.value.message.startswith("study.yaml:7: ")


def test_a_study_of_spec_files_runs_through(bench: Bench) -> None:
    _write(bench, **{"gate.yml": "stage: gate\nconfig: {}\n"})
    tracking.plan(bench.folder, study_file.load(bench.folder))
    assert bench.to_the_end().state == tracking.DONE


@pytest.mark.parametrize(
    ("edit", "where"),
    [
        (("{finetune: {method: lp-ft}}", "{finetune: {method: lp-ft, batch: many}}"), "arms.lp-ft.finetune.batch"),
        (("finetune.seed: [0, 1]", "finetune.seed: [0, 0.5]"), "grid.finetune.seed"),
        (("stages:", "before: {pretrain: {epochs: ten}}\nstages:"), "before.pretrain.epochs"),
    ],
)
def test_a_value_of_another_kind_is_told_when_the_study_is_planned(
    edit: tuple[str, str], where: str, bench: Bench, say: Any
) -> None:
    bench.write(STUDY.replace(*edit))
    answer = say("study", "plan", "lp")
    assert answer.code == 2 and where in answer.err and "is not int" in answer.err


@pytest.mark.parametrize("name", ["plain.toml", "lp-ft.yaml", study_file.STUDY])
def test_a_pipe_in_the_place_of_a_file_is_told_and_not_read_for_ever(name: str, bench: Bench) -> None:
    _write(bench)
    (bench.folder / name).unlink()
    os.mkfifo(bench.folder / name)
    with pytest.raises(UsageError, match=f"{name} is a pipe or a device"):
        study_file.load(bench.folder)


def test_a_device_in_the_place_of_the_project_file_or_of_its_prices(bench: Bench) -> None:
    root = bench.project.root
    (root / pricing.PRICES_FILE).symlink_to("/dev/zero")
    with pytest.raises(UsageError, match=r"prices.csv is a pipe or a device"):
        pricing.catalogue(root)
    (root / names.PROJECT_FILE).unlink()
    (root / names.PROJECT_FILE).symlink_to("/dev/zero")
    with pytest.raises(UsageError, match=r"bridgehead.toml is a pipe or a device"):
        project_file.load(root)
