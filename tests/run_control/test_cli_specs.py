"""run --dry-run, diff, rerun and prices as a person meets them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_process import Answer, in_process

from bridge.ledger import Ledger
from bridgehead import files, names
from bridgehead.records import RunRecord
from run_control import init, pinning, project_file
from run_control.project import Project

Call = Callable[..., Answer]
TRAIN = '\n[stages.train]\ncommand = "python train.py"\nexpected_hours = 2\n\n[stages.train.config]\nseed = 1\n'


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made, _ = init.init(tmp_path / "watch")
    made.file.write_text(made.file.read_text() + TRAIN)
    (made.root / "train.py").write_text("print(1)\n")
    return made


@pytest.fixture
def ledger(project: Project) -> Iterator[Ledger]:
    opened = Ledger(project.ledger)
    yield opened
    opened.close()


@pytest.fixture
def bridgehead(capsys: pytest.CaptureFixture[str], project: Project) -> Call:
    return lambda *words: in_process(capsys, "-C", str(project.root), *words)


def _take(project: Project, ledger: Ledger, *lines: str) -> list[str]:
    """As the bridge does it."""
    whole = project_file.load_whole(project.root)
    view = dataclasses.replace(whole.view, pin=pinning.prepare(project.root, whole))
    return [row.run_id for row in ledger.take(list(enumerate(lines, 1)), view)]


def _charge(project: Project, text: str) -> None:
    project.file.write_text(f"{project.file.read_text()}\n[money]\n{text}\n")


def test_a_dry_run_tells_spec_price_and_checks(bridgehead: Call, project: Project) -> None:
    _charge(project, 'provider = "colab"\ngpu = "T4"')
    data = bridgehead("run", "train", "--dry-run", "--json").data
    assert data["price"]["total"] == "2.14 CU" and len(data["id"]) == 64 and data["refused"] == ""
    assert {check["name"] for check in data["checks"]} == {"code", "data", "price"}
    text = bridgehead("run", "train", "--dry-run").out
    assert "total: 2.14 CU" in text and "rate: 1.07 CU an hour" in text


def test_a_launch_that_is_refused_is_not_queued(bridgehead: Call, project: Project) -> None:
    _charge(project, 'provider = "colab"\ngpu = "H100"')
    before = project.queue.read_text()
    for words in (("run", "train"), ("run", "train", "--dry-run")):
        answer = bridgehead(*words)
        assert answer.code == 2 and "no figure for H100" in answer.err and '--unpriced "why"' in answer.err
    assert project.queue.read_text() == before
    assert bridgehead("run", "train", "--unpriced", "the lab pays").code == 0
    assert project.queue.read_text().endswith("run:train unpriced=the%20lab%20pays\n")
    assert bridgehead("run", "train", "--unpriced", " ").code == 2


def test_two_runs_of_one_spec_do_not_differ_and_others_do_by_their_leaves(
    bridgehead: Call, project: Project, ledger: Ledger
) -> None:
    one, two, three = _take(project, ledger, "run:train", "run:train", "run:train seed=2")
    assert bridgehead("diff", one, two, "--json").data["same"]
    found = bridgehead("diff", one, three, "--json").data["differences"]
    assert {"key": "config.seed", "first": "1", "second": "2"} in found
    assert {item["key"] for item in found} == {"config.seed", "seeds.seed"}
    assert "config.seed" in bridgehead("diff", one, three).out


def test_what_only_the_runs_know_is_compared_too(bridgehead: Call, project: Project, ledger: Ledger) -> None:
    ids = _take(project, ledger, "run:train", "run:train")
    for run_id, version in zip(ids, ("2.10", "2.11"), strict=True):
        spec = ledger.spec_of(run_id)
        assert spec is not None
        record = RunRecord(run_id, "train", "watch", "c" * 32, 1, "vm-1", 1.0, spec, fingerprint={"torch": version})
        project.run(run_id).mkdir(parents=True)
        files.write_json(project.run(run_id) / names.RUN_RECORD, record.to_json())
    found = bridgehead("diff", *ids, "--json").data["differences"]
    assert found == [{"key": "image.torch", "first": "2.10", "second": "2.11"}]


def test_a_rerun_queues_exactly_the_same_spec(bridgehead: Call, project: Project, ledger: Ledger) -> None:
    [run_id] = _take(project, ledger, "run:train seed=5")
    project.file.write_text(project.file.read_text().replace("seed = 1", "seed = 9"))  # of no concern to that run
    line = bridgehead("rerun", run_id, "--json").data["line"]
    [again] = _take(project, ledger, line)
    assert bridgehead("diff", run_id, again, "--json").data["same"]
    spec = ledger.spec_of(again)
    assert spec is not None and spec.config == {"seed": 5} and spec.pins.exact


def test_a_rerun_says_what_has_changed_and_queues_it_only_when_told(
    bridgehead: Call, project: Project, ledger: Ledger
) -> None:
    [run_id] = _take(project, ledger, "run:train")
    (project.root / "train.py").write_text("print(2)\n")
    answer = bridgehead("rerun", run_id)
    assert answer.code == 2 and "code.sha256" in answer.err and "--anyway" in answer.err
    line = bridgehead("rerun", run_id, "--anyway", "--json").data["line"]
    [again] = _take(project, ledger, line)
    found = bridgehead("diff", run_id, again, "--json").data["differences"]
    assert {item["key"] for item in found} == {"code.sha256", "parents"}


def test_a_run_without_a_spec_says_so(bridgehead: Call, project: Project, ledger: Ledger) -> None:
    [row] = ledger.take([(1, "run:train")], project_file.load(project.root))
    for words in (("rerun", row.run_id), ("diff", row.run_id, row.run_id)):
        answer = bridgehead(*words)
        assert answer.code == 2 and "without a run spec" in answer.err


def test_a_spec_file_is_run_by_its_name(bridgehead: Call, project: Project) -> None:
    (project.root / "arm.toml").write_text('stage = "train"\n[config]\nseed = 3\n')
    shown = bridgehead("run", "arm.toml", "--dry-run", "--json").data
    assert shown["spec"]["config"] == {"seed": 3} and not (project.root / names.SPECS_FOLDER).exists()
    queued = bridgehead("run", "arm.toml", "--json").data
    assert queued["line"] == shown["line"] == f"run:train spec={shown['id'][:16]}"
    assert bridgehead("run", "arm.toml", "seed=1").code == 2


def test_a_spec_file_in_yaml_is_the_same_run(bridgehead: Call, project: Project) -> None:
    (project.root / "arm.toml").write_text('stage = "train"\n[config]\nseed = 3\n')
    (project.root / "arm.yaml").write_text("stage: train\nconfig:\n  seed: 3\n")
    one = bridgehead("run", "arm.toml", "--dry-run", "--json").data
    other = bridgehead("run", "arm.yaml", "--json").data
    assert other["line"] == one["line"]


def test_a_spec_file_starts_unpriced_for_a_reason_and_on_the_vm_that_is_named(
    bridgehead: Call, project: Project
) -> None:
    _charge(project, 'provider = "colab"')
    (project.root / "arm.toml").write_text('stage = "train"\n[resources]\ngpu = "H900"\n')
    assert '--unpriced "why"' in bridgehead("run", "arm.toml").err
    assert bridgehead("run", "arm.toml", "--unpriced", " ").code == 2
    queued = bridgehead("run", "arm.toml", "--unpriced", "the lab pays", "--vm", "vm-1", "--json")
    assert queued.code == 0 and queued.data["line"].startswith("@vm-1 run:train spec=")
    [stored] = (project.root / names.SPECS_FOLDER).glob("*.json")
    assert "the lab pays" in stored.read_text()


def test_what_has_no_place_beside_a_spec_file_is_refused(bridgehead: Call, project: Project) -> None:
    (project.root / "arm.toml").write_text('stage = "train"\n')
    for words in (("--resume", "x"), ("--allow-code",)):
        assert bridgehead("run", "arm.toml", *words).code == 2
    (project.root / "arms").mkdir()
    (project.root / "arms" / "one.toml").write_text('stage = "train"\n')
    answer = bridgehead("run", "arms/")
    assert answer.code == 2 and "arms is a folder" in answer.err and "one.toml" in answer.err
    assert "did you mean one.toml?" in bridgehead("run", "arms/on.toml").err
    answer = bridgehead("run", "arms/y.json")
    assert answer.code == 2 and "a spec file is TOML or YAML" in answer.err and "arms/y.toml" in answer.err


def test_a_parent_is_a_run_that_was_and_the_nearest_is_named(
    bridgehead: Call, project: Project, ledger: Ledger
) -> None:
    [run_id] = _take(project, ledger, "run:train")
    arm = project.root / "arm.toml"
    arm.write_text(f'stage = "train"\nparents = ["{run_id[:-2]}zz"]\n')
    answer = bridgehead("run", "arm.toml")
    assert answer.code == 2 and "arm.toml:2: parents: no run" in answer.err and run_id in answer.err
    arm.write_text(f'stage = "train"\nparents = ["{run_id[:-2]}"]\n')
    line = bridgehead("run", "arm.toml", "--json").data["line"]
    [child] = _take(project, ledger, line)
    spec = ledger.spec_of(child)
    assert spec is not None and list(spec.pins.spec["parents"]) == [run_id]


def test_prices_have_age_and_source(bridgehead: Call) -> None:
    rows = bridgehead("prices", "--json").data["prices"]
    assert any(row["instance"] == "colab-t4" and row["price_per_hour"] == "1.07 CU" for row in rows)
    assert all(row["source"] and "days" in row["age"] for row in rows)
