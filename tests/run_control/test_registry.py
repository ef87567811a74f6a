"""The registry as its commands show it: the gate is its only door, and each step has evidence of its own."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
from cli_process import Answer, in_process

from bridgehead import files, names
from bridgehead.names import RunState
from registry_support import GATE, TRAIN, Lab
from run_control.project import Project
from run_control.registry import promotion
from run_control.registry.catalog import State
from vm_daemons.storage.folder_store import FolderStore


@pytest.fixture
def lab(fresh: Project, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.chdir(fresh.root)
    return Lab(fresh)


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: str) -> Answer:
        return in_process(capsys, *words)

    return run


def test_a_run_that_the_gate_passed_is_registered_and_climbs(lab: Lab, say: Any) -> None:
    lab.train(clips=10)
    lab.judge()
    done = say("promote", TRAIN, "--to", "benchmarked", "--json")
    assert done.code == 0 and done.data["state"] == "benchmarked" and done.data["steps"] == ["candidate", "benchmarked"]
    [model] = say("models", "--json").data["models"]
    assert model["evidence"]["candidate"]["gate_run_id"] == GATE
    assert model["evidence"]["benchmarked"]["against"] == "baseline"
    assert [line["kind"] for line in model["history"]] == ["register", "advance", "advance"]
    shown = say("models")
    assert model["model"][:12] in shown.out and "benchmarked" in shown.out
    assert say("models", "show", TRAIN).code == 0 and say("models", "history").code == 0
    assert say("models", "verify", "--json").data["entries"] == 3


@pytest.mark.parametrize(
    ("judged", "message"),
    [
        (None, "no gate has judged"),
        ({"right": 0.5}, "says 'fail'"),
        ({"right": 0.5, "baseline": 0.3, "verdict": "undecided"}, "says 'undecided'"),
        ({"leaks": True}, "no clean leakage check of the candidate"),
        ({"leak_check": {"disjoint": True}}, "no clean leakage check"),
    ],
)
def test_nothing_comes_in_past_the_gate(lab: Lab, say: Any, judged: dict[str, Any] | None, message: str) -> None:
    lab.train()
    if judged is not None:
        lab.judge(**judged)
    answer = say("promote", TRAIN, "--json")
    assert answer.code == 9 and message in answer.json["error"]["message"] and answer.json["error"]["hint"]
    assert say("models", "--json").data["models"] == []


def test_a_pass_of_other_weights_is_no_pass(lab: Lab, say: Any) -> None:
    lab.train()
    lab.judge(candidate={"run_id": TRAIN, "weights_sha256": "0" * 64})
    assert "no gate has judged" in say("promote", TRAIN).err


def test_of_several_gates_the_newest_counts(lab: Lab, say: Any) -> None:
    lab.train()
    lab.judge()
    lab.judge(gate_id="gate-0009-bbbbbb", right=0.4)
    assert say("promote", TRAIN).code == 9


def test_a_run_that_failed_or_that_nobody_knows(lab: Lab, say: Any) -> None:
    lab.train(state=RunState.FAILED)
    assert say("promote", TRAIN).code == 2
    for command in ("promote", "lineage"):
        answer = say(command, "finetun-0002")
        assert answer.code == 6 and "neither a model nor a run: 'finetun-0002'" in answer.err and TRAIN in answer.err


def test_the_beginning_of_a_run_is_enough(lab: Lab, say: Any) -> None:
    lab.train()
    lab.judge()
    begin = TRAIN[: TRAIN.index("-", 9)]
    assert say("lineage", begin, "--json").data["run"]["run_id"] == TRAIN
    assert say("promote", begin, "--json").data["run_id"] == TRAIN
    assert say("lineage", begin, "--json").data["model"]
    assert say("demote", begin, "--to", "raw", "--reason", "a look", "--json").data["state"] == "raw"
    lab.train("finetune-0002-bbbbbb", seed=1)
    answer = say("promote", "finetune-0002-b", "--json")
    assert answer.code == 9 and "finetune-0002-bbbbbb" in answer.err


def test_no_step_can_be_left_out(lab: Lab, say: Any) -> None:
    lab.train()
    lab.judge()
    answer = say("promote", TRAIN, "--to", "deployed", "--target", "fleet", "--json")
    assert answer.code == 2 and "signature" in answer.json["error"]["message"]
    [model] = say("models", "--json").data["models"]
    assert model["state"] == "benchmarked"
    assert say("promote", TRAIN, "--to", "candidate").code == 2


def test_the_champion_moves_only_from_where_it_was_seen(lab: Lab, say: Any) -> None:
    lab.train()
    lab.judge()
    assert say("promote", TRAIN, "--to", "candidate", "--alias", "champion").code == 2  # not benchmarked yet
    assert say("promote", TRAIN, "--to", "benchmarked", "--alias", "champion", "--json").data["aliases"] == ["champion"]
    assert say("models", "show", "champion", "--json").data["model"]["run_id"] == TRAIN
    journal = lab.journal()
    known = journal.entries()
    stale = {"alias": "champion", "expected": ""}
    from run_control.registry import catalog

    assert "is at" in catalog.objection(catalog.replay(known), "alias", known[0].model, stale)


def test_against_a_champion_a_loss_is_told_slice_by_slice_and_stops_it(lab: Lab, say: Any) -> None:
    lab.train()
    lab.judge()
    say("promote", TRAIN, "--to", "benchmarked", "--alias", "champion")
    lab.train("finetune-0005-bbbbbb", seed=1)
    lab.judge("finetune-0005-bbbbbb", gate_id="gate-0006-bbbbbb", right=0.8)
    answer = say("promote", "finetune-0005-bbbbbb", "--to", "benchmarked", "--json")
    assert answer.code == 9 and "worse than the champion" in answer.json["error"]["message"]
    told = say("promote", "finetune-0005-bbbbbb", "--allow-regression", "it is half the size", "--json").data
    found = told["evidence"]["benchmarked"]
    assert found["allow_regression"] == "it is half the size" and "label PEN" in found["worse"]
    assert {row["slice"] for row in found["rows"]} == {"all", "group 9", "group 10", "label PEN", "label ABD"}


def test_models_that_were_judged_on_different_items_are_not_compared(lab: Lab, say: Any) -> None:
    lab.train()
    lab.judge()
    say("promote", TRAIN, "--to", "benchmarked", "--alias", "champion")
    lab.train("finetune-0005-bbbbbb", seed=1)
    lab.judge("finetune-0005-bbbbbb", gate_id="gate-0006-bbbbbb", evaluated="f" * 64)
    answer = say("promote", "finetune-0005-bbbbbb", "--to", "benchmarked", "--json")
    assert answer.code == 9 and "different items" in answer.json["error"]["message"]
    assert say("promote", "finetune-0005-bbbbbb", "--without-champion", "a new set").code == 0


def test_a_champion_whose_record_is_gone_is_said(lab: Lab, say: Any) -> None:
    lab.train()
    lab.judge()
    record = say("promote", TRAIN, "--to", "benchmarked", "--alias", "champion", "--json").data["evidence"]
    next(lab.project.drive.rglob(record["candidate"]["record"])).unlink()
    lab.train("finetune-0005-bbbbbb", seed=1)
    lab.judge("finetune-0005-bbbbbb", gate_id="gate-0006-bbbbbb", right=0.95)
    answer = say("promote", "finetune-0005-bbbbbb", "--to", "benchmarked", "--json")
    assert answer.code == 6 and "is gone" in answer.json["error"]["message"]


def test_a_demoted_champion_is_none_and_the_reason_stays(lab: Lab, say: Any) -> None:
    lab.train()
    lab.judge()
    say("promote", TRAIN, "--to", "benchmarked", "--alias", "champion")
    assert say("demote", "champion", "--to", "candidate").code == 2  # without a reason
    done = say("demote", "champion", "--to", "candidate", "--reason", "wrong on left wrists", "--json").data
    assert (done["state"], done["aliases"], list(done["evidence"])) == ("candidate", [], ["candidate"])
    assert done["history"][-1]["reason"] == "wrong on left wrists"
    assert say("models", "show", "champion").code == 6
    assert say("demote", TRAIN, "--to", "deployed", "--reason", "x").code == 2


def test_an_interrupted_promotion_goes_on_where_it_was(lab: Lab, say: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store fails at every single write in turn; asked for again, it ends as if nothing had been."""
    lab.train()
    lab.judge()
    put = FolderStore.put_bytes
    left = {"writes": 0}

    def failing(self: FolderStore, key: str, data: bytes) -> None:
        left["writes"] -= 1
        if left["writes"] == 0:
            raise KeyboardInterrupt
        put(self, key, data)

    monkeypatch.setattr(FolderStore, "put_bytes", failing)
    for write in range(1, 30):
        left["writes"] = write
        answer = say("promote", TRAIN, "--to", "benchmarked", "--json")
        if answer.code == 0:
            break
        assert answer.code == 130
        for claim in lab.project.drive.rglob("claims/*/*"):  # its writer is dead; a test need not wait for that
            claim.unlink()
    monkeypatch.setattr(FolderStore, "put_bytes", put)
    [model] = say("models", "--json").data["models"]
    assert model["state"] == "benchmarked"
    assert [line["kind"] for line in model["history"]] == ["register", "advance", "advance"]
    assert say("models", "verify").code == 0


def test_lineage_shows_runs_data_and_code(lab: Lab, say: Any) -> None:
    lab.train(clips=10)
    lab.judge()
    tree = say("lineage", GATE, "--json").data["run"]
    assert tree["parents"]["finetune"]["config"] == {"clips": 10}
    assert not tree["parents"]["finetune"]["parents"]["pretrain"]["known"]
    say("promote", TRAIN)
    shutil.rmtree(lab.project.run(TRAIN))
    shown = say("lineage", TRAIN)
    assert shown.code == 0 and "config: clips=10" in shown.out and f"data: {'p' * 12}" in shown.out


def test_a_circle_of_parents_is_told(lab: Lab, say: Any) -> None:
    lab.train()
    path = lab.project.run(TRAIN) / names.RUN_RECORD
    record = json.loads(path.read_text())
    record["inputs"] = {"pretrain": TRAIN}
    path.write_text(json.dumps(record))
    assert "its own ancestor" in say("lineage", TRAIN).err


def test_the_artifacts_lie_in_the_store_by_their_content(lab: Lab, say: Any) -> None:
    lab.train()
    lab.judge()
    model = say("promote", TRAIN, "--json").data
    [item] = model["artifacts"]
    assert files.sha256_file(next(lab.project.drive.rglob(f"objects/{item['sha256']}"))) == item["sha256"]


def test_with_no_store_in_reach_reading_works_and_writing_says_what_to_do(lab: Lab, say: Any) -> None:
    lab.train()
    lab.judge()
    say("promote", TRAIN)
    shutil.rmtree(lab.project.drive)
    text = (
        lab.project.file.read_text() + '\n[store]\nkind = "folder"\npath = "/nowhere/at/all"\nlaptop_path = "/gone"\n'
    )
    lab.project.file.write_text(text)
    answer = say("models", "--json")
    assert answer.code == 0 and len(answer.data["models"]) == 1 and "/gone" in answer.data["trouble"]
    assert say("promote", TRAIN).code == 13


def test_a_state_that_does_not_exist_and_a_bad_alias(lab: Lab, say: Any) -> None:
    lab.train()
    lab.judge()
    assert "did you mean candidate?" in say("promote", TRAIN, "--to", "candidat").err
    assert say("promote", TRAIN, "--to", "benchmarked", "--alias", "../x").code == 2


def test_a_wish_without_a_key_or_a_target_names_what_is_missing(lab: Lab) -> None:
    from bridgehead.errors import UsageError

    lab.train()
    lab.judge()
    with pytest.raises(UsageError, match="signature"):
        promotion.promote(lab.project, lab.journal(), TRAIN, promotion.Wish(State.DEPLOYABLE))


# --- deployable, deployed, handed on -------------------------------------------------------------------------


def signed(lab: Lab, say: Any, **export: Any) -> str:
    """The public key of a bundle that was signed by the commands."""
    lab.train()
    lab.judge()
    folder = lab.export(**export)
    key = lab.project.root / "release"
    public = say("bundle", "keygen", str(key), "--json").data["public_key"]
    assert say("bundle", "sign", str(folder), "--key", str(key), "--json").data["key_id"]
    assert say("bundle", "verify", str(folder), "--key", public, "--json").data["signature"] == "valid"
    for words in (("verify", public), ("sign", str(key))):
        twice = say("bundle", words[0], str(folder), "--key", words[1], "--key", words[1])
        assert twice.code == 2 and "--key is given 2 times" in twice.err
    return str(public)


def test_a_signed_bundle_makes_it_deployable_and_a_target_deployed(lab: Lab, say: Any) -> None:
    public = signed(lab, say)
    model = say("promote", TRAIN, "--to", "deployable", "--key", public, "--json").data
    found = model["evidence"]["deployable"]
    assert found["signature"] == "valid" and names.MODEL_ONNX in found["files"]
    assert say("promote", TRAIN).code == 2  # deployed to where?
    done = say("promote", TRAIN, "--target", "clinic tablets", "--alias", "champion", "--json").data
    assert (done["state"], done["aliases"]) == ("deployed", ["champion"])
    assert done["evidence"]["deployed"]["target"] == "clinic tablets"
    assert say("promote", TRAIN).code == 2  # there is no further step


def test_a_bundle_that_changed_after_it_was_signed_is_not_deployable(lab: Lab, say: Any) -> None:
    public = signed(lab, say)
    path = lab.project.run("export-0004-aaaaaa") / names.BUNDLE / "NOTICE"
    path.write_text("other words\n")
    assert say("promote", TRAIN, "--to", "deployable", "--key", public).code == 9
    assert say("models", "show", TRAIN, "--json").data["model"]["state"] == "benchmarked"


def test_a_bundle_whose_gate_judged_other_weights_is_not_its_own(lab: Lab, say: Any) -> None:
    public = signed(lab, say, judged="0" * 64)
    answer = say("promote", TRAIN, "--to", "deployable", "--key", public)
    assert answer.code == 9 and "other weights" in answer.err


def test_a_folder_as_the_hub_lays_it_out_comes_from_the_store_alone(lab: Lab, say: Any) -> None:
    public = signed(lab, say)
    assert say("models", "export", TRAIN, "--to", "hf", "out").code == 6
    say("promote", TRAIN, "--to", "benchmarked")
    assert "only what is deployable" in say("models", "export", TRAIN, "--to", "hf", "out").err
    say("promote", TRAIN, "--to", "deployable", "--key", public)
    shutil.rmtree(lab.project.inbox)
    assert say("models", "export", TRAIN, "--to", "hf", "out", "--json").code == 0
    out = lab.project.root / "out"
    config = json.loads((out / "config.json").read_text())
    assert config["id2label"] == {"0": "PEN", "1": "ABD"}
    assert (out / "README.md").read_text().startswith("---\nlibrary_name: onnx\n")
    assert (out / "onnx" / names.MODEL_ONNX).is_file() and (out / "preprocessor_config.json").is_file()
    assert say("bundle", "verify", "out/bundle", "--key", public).code == 0
    assert say("models", "export", TRAIN, "--to", "hf", "out").code == 2  # never into a folder with something in it


def test_without_mlflow_it_says_what_to_install(lab: Lab, say: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    public = signed(lab, say)
    say("promote", TRAIN, "--to", "deployable", "--key", public)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert "bridgehead[mlflow]" in say("models", "export", TRAIN, "--to", "mlflow", "sqlite:///x.db").err
    assert "there is no folder" in say("models", "export", TRAIN, "--to", "mlflow", "sqlite:////nowhere/x.db").err
    assert say("models", "export", TRAIN, "--to", "mlflo", "x").code == 2
