"""Queries over all runs: what a person types, and what it must refuse."""

from __future__ import annotations

from typing import Any

import pytest
from cli_process import Answer, in_process
from project_support import Seeded

from bridgehead.errors import UsageError
from bridgehead.names import RunState
from registry_support import Lab
from run_control import query
from run_control.project import Project


@pytest.fixture
def say(seeded: Seeded, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(seeded.project.root)
    lab = Lab(seeded.project)
    seeded.take("run:pretrain")
    for number in range(3):
        [run_id] = seeded.take(f"run:finetune seed={number}")
        if number < 2:
            lab.train(run_id, seed=number, clips=100 * (number + 1))
            seeded.finish(run_id, RunState.DONE)

    def run(*words: str) -> Answer:
        return in_process(capsys, *words)

    return run


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 4),
        ("stage=finetune", 3),
        ("stage!=finetune", 1),
        ("stage~fine", 3),
        ("accuracy>=0.8", 2),
        ("config.clips<150", 1),
        ("clips=100 stage=finetune", 1),
        ("results.accuracy<0.5", 0),
        ("stage=finetune limit 2", 2),
        ("hours>0", 2),
    ],
)
def test_terms_narrow_the_runs(say: Any, text: str, count: int) -> None:
    assert len(say("query", text, "--json").data["runs"]) == count


def test_order_puts_what_has_no_value_last_either_way(say: Any) -> None:
    for direction, first in (("asc", 100), ("desc", 200)):
        found = say("query", f"stage=finetune order by clips {direction}", "--json").data["runs"]
        assert [row.get("config.clips") for row in found][0] == first and "config.clips" not in found[-1]


def test_csv_has_the_names_that_were_asked_about(say: Any) -> None:
    lines = say("query", "stage=finetune clips>0 order by clips", "--csv").out.splitlines()
    assert lines[0] == "run_id,state,stage,clips" and len(lines) == 3 and lines[1].endswith(",finetune,100")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stage", "not a term"),
        ("stag=finetune", "did you mean stage?"),
        ("class=oom", "did you mean failure_class?"),
        ("stage<3", "is text here"),
        ("clips>many", "is none"),
        ("clips>nan", "is none"),
        ("order by", "order by takes one name"),
        ("order by clips sideways", "order by takes one name"),
        ("limit x", "is no number from 1"),
        ("'stage=x", "do not pair"),
    ],
)
def test_a_query_that_can_not_be_read_says_where(say: Any, text: str, message: str) -> None:
    answer = say("query", text)
    assert answer.code == 2 and message in answer.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("loss<", "loss is a number, and '' is none"),
        ("loss<abc", "loss is a number, and 'abc' is none"),
        ("stge=x", "did you mean stage?"),
        ("order by hurs", "did you mean hours?"),
        ("lerning_rate=0.1", "did you mean learning_rate?"),
    ],
)
def test_a_mistake_is_refused_before_there_is_any_run(
    fresh: Project, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    answer = in_process(capsys, "-C", str(fresh.root), "query", text)
    assert answer.code == 2 and message in answer.err


@pytest.mark.parametrize("text", ["", "loss<0.4", "config.seed=1 order by cost", "epochs=40 epoch>3 results.auc>0.9"])
def test_what_may_be_a_name_finds_nothing_before_there_is_any_run(
    fresh: Project, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    answer = in_process(capsys, "-C", str(fresh.root), "query", text, "--json")
    assert (answer.code, answer.data["runs"]) == (0, [])


def test_an_unpriced_run_costs_nothing_that_could_be_compared(say: Any) -> None:
    assert say("query", "cost=0", "--json").data["runs"] == []


def test_a_flat_row_is_never_deeper_than_it_says() -> None:
    nested: dict[str, Any] = {"a": {"b": {"c": {"d": 1}}}, "x": [1], "y": True}
    assert query._flat("results", nested, 1) == {"results.y": True}
    with pytest.raises(UsageError):
        query.parse("a")
