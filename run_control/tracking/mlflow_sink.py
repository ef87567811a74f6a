"""MLflow: one run for each of ours, in one experiment, found again by a tag; on a server, or in a database here.

What is told twice adds nothing: MLflow's database keeps one row for equal key, step, value and time, and the time is
the event's own.
"""

from __future__ import annotations

import os
import re
import zlib
from pathlib import Path
from typing import Any, Final

from run_control.tracking.flat import flat
from run_control.tracking.messages import Answer, Message, SinkError

_RUN_TAG: Final = "bridgehead.run_id"
_BATCH: Final = 1000  # metrics in one request; MLflow's own limit
_PARAMS: Final = 100
_VALUE_MAX: Final = 500  # characters of a parameter: the least that any of MLflow's stores takes
_NAME_MAX: Final = 240  # and a mark of 9 more; MLflow takes 250
_ODD = re.compile(r"[^A-Za-z0-9_\-./ ]")
_STATUS: Final = {"done": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
_RUN = "run"
# A server that does not answer is tried again by the follower, and not for minutes by MLflow.
_ENVIRONMENT: Final = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}


class MlflowSink:
    """place: {"run": MLflow's id of the run}."""

    def __init__(self, settings: dict[str, Any]) -> None:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        self._error: type[Exception] = MlflowException
        uri = settings["uri"] or os.environ.get("MLFLOW_TRACKING_URI", "") or settings["database"]
        self._client: Any = MlflowClient(tracking_uri=uri)
        self._local = (Path(settings["database"].partition(":///")[2]).parent / "mlflow-artifacts").as_uri()
        self._is_local = uri == settings["database"]
        self._name = str(settings["experiment"])
        self._experiment = ""

    def tell(self, message: Message) -> Answer:
        try:
            return self._tell(message)
        except self._error as error:
            raise SinkError(
                f"MLflow refused: {str(error).splitlines()[0]}", "is its address right, and the server up?"
            ) from None

    def close(self) -> None:
        """Every message was written whole."""

    def _tell(self, message: Message) -> Answer:
        run_id, is_new = self._run(message)
        if is_new and message.place:
            return Answer({_RUN: run_id}, behind=-1)  # somebody removed the one that it had
        if is_new or message.head_is_new:
            self._describe(run_id, message.head)
        created = float(message.head["created"])
        points = [
            (name, value, at or created, step) for step, _, at, found in message.points for name, value in found.items()
        ]
        self._metrics(run_id, points)
        if message.end is not None:
            self._end(run_id, message.end, created)
        return Answer({_RUN: run_id})

    def _run(self, message: Message) -> tuple[str, bool]:
        """MLflow's id of the run, and whether it was made just now."""
        known = str(message.place.get(_RUN, ""))
        if known and self._is_there(known):
            return known, False
        experiment = self._experiment_id()
        found = self._client.search_runs([experiment], f"tags.`{_RUN_TAG}` = '{message.run}'", max_results=1)
        if found:
            return str(found[0].info.run_id), False
        tags = {_RUN_TAG: message.run, "bridgehead.stage": message.head["stage"]}
        started = int(1000 * message.head["created"])
        made = self._client.create_run(experiment, start_time=started, tags=tags, run_name=message.run)
        return str(made.info.run_id), True

    def _is_there(self, run_id: str) -> bool:
        try:
            return bool(self._client.get_run(run_id).info.lifecycle_stage == "active")
        except self._error as error:
            if getattr(error, "error_code", "") == "RESOURCE_DOES_NOT_EXIST":
                return False
            raise

    def _experiment_id(self) -> str:
        if not self._experiment:
            found = self._client.get_experiment_by_name(self._name)
            place = self._local if self._is_local else None
            self._experiment = found.experiment_id if found else self._client.create_experiment(self._name, place)
        return self._experiment

    def _describe(self, run_id: str, head: dict[str, Any]) -> None:
        from mlflow.entities import Param, RunTag

        known = self._client.get_run(run_id).data.params  # one that is there can't be changed
        wanted = {_name(key): str(value)[:_VALUE_MAX] for key, value in flat(head["config"]).items()}
        params = [Param(key, value) for key, value in wanted.items() if key not in known]
        for start in range(0, len(params), _PARAMS):
            self._client.log_batch(run_id, params=params[start : start + _PARAMS])
        origin = {name: head[name] for name in ("spec_id", "code", "data") if head[name]}
        origin |= {"tags": ", ".join(head["tags"])} if head["tags"] else {}
        self._client.log_batch(run_id, tags=[RunTag(f"bridgehead.{name}", value) for name, value in origin.items()])

    def _metrics(self, run_id: str, points: list[tuple[str, float, float, int]]) -> None:
        """Name, value, seconds since 1970, step."""
        from mlflow.entities import Metric

        metrics = [Metric(_name(name), value, int(1000 * at), step) for name, value, at, step in points]
        for start in range(0, len(metrics), _BATCH):
            self._client.log_batch(run_id, metrics=metrics[start : start + _BATCH])

    def _end(self, run_id: str, end: dict[str, Any], created: float) -> None:
        """Results that are numbers become metrics, so that runs compare by them; all else becomes tags."""
        from mlflow.entities import RunTag

        results = {name: value for name, value in end["summary"].items() if name.startswith("results.")}
        numbers = {name: value for name, value in results.items() if not isinstance(value, str | bool)}
        self._metrics(run_id, [(name, float(value), created, 0) for name, value in numbers.items()])
        words = {name: value for name, value in results.items() if name not in numbers}
        told = {**flat({**end, "summary": {}}), **words}
        tags = {f"bridgehead.{name}": str(value)[:_VALUE_MAX] for name, value in told.items()}
        self._client.log_batch(run_id, tags=[RunTag(_name(name), value) for name, value in tags.items()][:_PARAMS])
        self._client.set_terminated(run_id, _STATUS.get(end["state"], "FAILED"))


def _name(name: str) -> str:
    """A name that MLflow takes; one that had to be changed keeps a mark of its own, so that no two become one."""
    plain = _ODD.sub("_", name).replace("..", "__").replace("//", "__").strip("/ .") or "_"
    return name if plain == name[:_NAME_MAX] else f"{plain[:_NAME_MAX]}_{zlib.crc32(name.encode()):08x}"
