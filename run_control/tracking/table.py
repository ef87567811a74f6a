"""[tracking] of bridgehead.toml: its keys, and that no secret stands in a file that may travel or be committed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from bridgehead import names
from bridgehead.queue_lines import nearest
from run_control.tracking.spec import SinkKind, TrackingSpec, WandbMode

_WANDB_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}\Z")
_MLFLOW_SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "file", "databricks")


def _sink(value: str) -> str:
    if value not in set(SinkKind):
        raise ValueError(f"no sink {value!r}; {nearest(value, SinkKind)}")
    return value


def _mode(value: str) -> str:
    if value not in set(WandbMode):
        raise ValueError(f"no mode {value!r}; {nearest(value, WandbMode)}")
    return value


def _wandb_name(value: str) -> str:
    if value and not _WANDB_NAME.match(value):
        raise ValueError("a name of letters, digits and ._-, such as the last part of the project's address")
    return value


def _folder(value: str) -> str:
    if not value.strip() or not value.isprintable():
        raise ValueError("the path of a folder")
    return value


def _line(value: str) -> str:
    if not value.isprintable() or value != value.strip():
        raise ValueError("a name on one line, without spaces around it")
    return value


def _uri(value: str) -> str:
    if not value or value == "databricks":
        return value
    try:
        parts = urlsplit(value)
        scheme = parts.scheme.partition("+")[0]
    except ValueError:
        raise ValueError("MLflow's tracking URI, such as https://mlflow.example.com") from None
    if parts.username or parts.password or parts.query:
        raise ValueError(
            "this URI may hold a password: keep it out of this file, and set MLFLOW_TRACKING_URI where `bridgehead up`"
            " runs (MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD or MLFLOW_TRACKING_TOKEN for a server)"
        )
    if scheme not in _MLFLOW_SCHEMES or not value.isprintable():
        raise ValueError("MLflow's tracking URI, such as https://mlflow.example.com or sqlite:////home/me/mlflow.db")
    return value


class TrackingTable(BaseModel):
    """The table as it is written. Keys of a sink that is not among `sinks` may stay in it."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    sinks: list[Annotated[str, AfterValidator(_sink)]] = Field(default_factory=list)
    timeout_s: Annotated[float, Field(ge=1, le=3600)] = 60.0
    tensorboard_folder: Annotated[str, AfterValidator(_folder)] = f"{names.PRIVATE_FOLDER}/tensorboard"
    wandb_mode: Annotated[str, AfterValidator(_mode)] = WandbMode.ONLINE
    wandb_project: Annotated[str, AfterValidator(_wandb_name)] = ""
    wandb_entity: Annotated[str, AfterValidator(_wandb_name)] = ""
    wandb_folder: Annotated[str, AfterValidator(_folder)] = names.PRIVATE_FOLDER
    mlflow_uri: Annotated[str, AfterValidator(_uri)] = ""
    mlflow_experiment: Annotated[str, AfterValidator(_line)] = ""

    def spec(self, root: Path, project: str) -> TrackingSpec:
        """For the follower; paths relative to `root`, the project folder, become absolute; a name is the project's."""
        home = root.absolute()
        return TrackingSpec(
            sinks=tuple(dict.fromkeys(SinkKind(item) for item in self.sinks)),
            timeout_s=self.timeout_s,
            tensorboard_folder=home / Path(self.tensorboard_folder).expanduser(),
            wandb_mode=WandbMode(self.wandb_mode),
            wandb_project=self.wandb_project or project,
            wandb_entity=self.wandb_entity,
            wandb_folder=home / Path(self.wandb_folder).expanduser(),
            mlflow_uri=_from(home, self.mlflow_uri),
            mlflow_database=home / names.PRIVATE_FOLDER / "mlflow.db",
            mlflow_experiment=self.mlflow_experiment or project,
        )


def _from(home: Path, uri: str) -> str:
    """sqlite:///path is relative to where it is used, and that is the project folder."""
    kind, slashes, path = uri.partition(":///")
    if not slashes or kind.partition("+")[0] != "sqlite" or path.startswith("/") or ":" in path[:2]:
        return uri
    return f"{kind}:///{(home / path).as_posix()}"
