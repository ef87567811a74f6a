"""MLflow's own package and a database of its own: what it holds of a run, once, whatever died on the way."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from cli_process import in_process
from project_support import Seeded
from tracking_rig import AT, end, progress, silent_server

from bridgehead.names import RunState
from registry_support import TRAIN, Lab
from run_control import query
from run_control.project import Project
from run_control.tracking import follower
from run_control.tracking.messages import Message
from run_control.tracking.mlflow_sink import MlflowSink, _name
from run_control.tracking.spec import SinkKind, TrackingSpec

pytest.importorskip("mlflow", reason="mlflow (extra mlflow) is not installed")
pytestmark = [
    pytest.mark.timeout(600),  # its import and its first database take 10 s, and more on a busy machine
    pytest.mark.filterwarnings("ignore"),
]
HEAD = {
    "run_id": "r-1", "stage": "pretrain", "project": "watch", "created": AT, "spec_id": "5" * 64, "code": "",
    "data": "", "tags": ["night", "b"], "config": {"lr": 0.1, "net": {"depth": 2}, "note": "x" * 9000},
}  # fmt: skip
END = {"state": "failed", "failure_class": "gpu_oom", "cost": 1.5, "cost_unit": "CU", "exit_code": 1}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One database for all tests here: to make one takes its time."""
    folder = tmp_path_factory.mktemp("mlflow")
    return TrackingSpec(mlflow_database=folder / "m.db", mlflow_experiment="watch").settings(SinkKind.MLFLOW)


@pytest.fixture(scope="module")
def sink(settings: dict[str, Any]) -> MlflowSink:
    return MlflowSink(settings)


def _points(*steps: int, metric: str = "loss") -> list[tuple[int, int, float, dict[str, float]]]:
    return [(step, 0, AT + step, {metric: 1.0 / step}) for step in steps]


def _history(sink: MlflowSink, place: dict[str, Any], metric: str = "loss") -> list[tuple[int, float]]:
    return [(item.step, item.value) for item in sink._client.get_metric_history(place["run"], metric)]


def _tell(sink: MlflowSink, run: str, place: dict[str, Any], **more: Any) -> Any:
    return sink.tell(Message(run, {**HEAD, "run_id": run}, place, **more))


def test_a_run_has_its_name_config_tags_metrics_and_end(sink: MlflowSink) -> None:
    place = _tell(sink, "r-1", {}, points=_points(1, 2)).place
    summary = {"loss": 0.5, "results.accuracy": 0.75, "results.verdict": "pass"}
    _tell(sink, "r-1", place, head_is_new=False, points=_points(4), end={**END, "summary": summary})
    run = sink._client.get_run(place["run"])
    assert run.info.run_name == "r-1" and run.info.status == "FAILED" and run.info.start_time == int(AT * 1000)
    assert run.data.params["lr"] == "0.1" and run.data.params["net.depth"] == "2"
    assert run.data.tags["bridgehead.tags"] == "night, b" and run.data.tags["bridgehead.spec_id"] == "5" * 64
    assert run.data.tags["bridgehead.failure_class"] == "gpu_oom" and run.data.tags["bridgehead.cost"] == "1.5"
    assert run.data.tags["bridgehead.results.verdict"] == "pass"
    assert run.data.metrics == {"loss": 0.25, "results.accuracy": 0.75}
    assert _history(sink, place) == [(1, 1.0), (2, 0.5), (4, 0.25)]


def test_what_is_told_twice_is_there_once(sink: MlflowSink, settings: dict[str, Any]) -> None:
    """As after a follower that died between the sink's yes and its own note."""
    first = _tell(sink, "r-2", {}, points=_points(1, 2, 3)).place
    again = _tell(MlflowSink(settings), "r-2", {}, points=_points(1, 2, 3)).place
    assert again == first and _history(sink, first) == [(1, 1.0), (2, 0.5), (3, 1 / 3)]


def test_a_run_that_somebody_deleted_there_is_told_anew(sink: MlflowSink) -> None:
    place = _tell(sink, "r-3", {}, points=_points(1)).place
    sink._client.delete_run(place["run"])
    answer = _tell(sink, "r-3", place, points=_points(2))
    assert answer.behind == -1 and answer.place != place
    place = _tell(sink, "r-3", answer.place, points=_points(1, 2)).place
    assert [step for step, _ in _history(sink, place)] == [1, 2]


def test_names_that_it_does_not_take_stay_apart(sink: MlflowSink) -> None:
    odd = {"loss@5": 1.0, "loss#5": 2.0, "../x": 3.0, "val/loss": 4.0, "größe": 5.0, "x" * 400: 6.0}
    assert len({_name(name) for name in odd}) == len(odd) and _name("val/loss") == "val/loss"
    place = _tell(sink, "r-4", {}, points=[(1, 0, AT, odd)]).place
    assert sorted(sink._client.get_run(place["run"]).data.metrics.values()) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_many_points_come_in_batches_that_it_takes(sink: MlflowSink) -> None:
    place = _tell(sink, "r-5", {}, points=_points(*range(1, 1502))).place
    assert sink._client.get_run(place["run"]).data.metrics["loss"] == 1 / 1501


def test_the_follower_and_query_say_the_same(seeded: Seeded, settings: dict[str, Any]) -> None:
    project = seeded.project
    uri = settings["database"]
    project.file.write_text(project.file.read_text() + f'\n[tracking]\nsinks = ["mlflow"]\nmlflow_uri = "{uri}"\n')
    [run_id] = seeded.take("run:pretrain seed=7")
    for step in (1, 2, 4, 4, 7):
        progress(project.run(run_id), step, attempt=1 + (step > 2), loss=1.0 / step)
    seeded.status(run_id, step=7)
    end(seeded, run_id, RunState.DONE, accuracy=0.9)
    for points in (4, 0):
        [feeder] = follower.once(project)
        assert not feeder.standing.trouble and feeder.standing.points == points
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(project.root.name)
    [found] = client.search_runs([experiment.experiment_id], f"tags.`bridgehead.run_id` = '{run_id}'")
    [row] = [row for row in query.rows(project) if row["run_id"] == run_id]
    assert found.info.run_name == run_id and found.info.status == "FINISHED"
    assert found.data.metrics["results.accuracy"] == row["results.accuracy"] == 0.9
    assert float(found.data.tags["bridgehead.hours"]) == row["hours"]
    assert [point.step for point in client.get_metric_history(found.info.run_id, "loss")] == [1, 2, 4, 7]
    assert math.isclose(found.data.metrics["loss"], 1 / 7)


def test_a_server_that_never_answers_holds_up_nobody(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    project = seeded.project
    project.file.write_text(project.file.read_text() + '\n[tracking]\nsinks = ["mlflow"]\ntimeout_s = 1\n')
    [run_id] = seeded.take("run:pretrain")
    progress(project.run(run_id), 1, loss=1.0)
    with silent_server() as url:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
        [feeder] = follower.once(project)
    assert "no answer for 1 s" in feeder.standing.trouble and feeder.standing.points == 0


def test_a_deployable_model_becomes_a_version_and_only_one(
    fresh: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.chdir(tmp_path)
    lab = Lab(fresh)
    lab.train()
    lab.judge()
    folder, key = lab.export(), tmp_path / "release"
    where = ("-C", str(fresh.root))
    public = in_process(capsys, *where, "bundle", "keygen", str(key), "--json").data["public_key"]
    in_process(capsys, *where, "bundle", "sign", str(folder), "--key", str(key))
    promote = (*where, "promote", TRAIN, "--to", "deployable", "--key", str(public), "--alias", "champion", "--json")
    model = in_process(capsys, *promote).data
    uri = f"sqlite:///{tmp_path / 'registry.db'}"
    versions = [
        in_process(capsys, *where, "models", "export", TRAIN, "--to", "mlflow", uri, "--json").data["version"]
        for _ in range(2)
    ]
    assert versions == ["1", "1"]
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    [version] = client.search_model_versions(f"name='{model['name']}'")
    assert version.tags["bridgehead.model"] == model["model"] and version.status == "READY"
    assert client.get_model_version_by_alias(model["name"], "champion").version in (1, "1")
    bundle = Path(client.download_artifacts(version.run_id, "bundle", str(tmp_path)))
    assert in_process(capsys, "bundle", "verify", str(bundle), "--key", str(public)).code == 0
    assert len(client.search_runs(["1"])) == 1  # a second export of the same model makes no second run
    assert not (tmp_path / "mlruns").exists() and not (fresh.root / "mlruns").exists()
