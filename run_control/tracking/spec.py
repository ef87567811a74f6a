"""[tracking] as the follower uses it: which sinks there are, what each is told at its start, and what it needs."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any


class SinkKind(StrEnum):
    TENSORBOARD = "tensorboard"
    WANDB = "wandb"
    MLFLOW = "mlflow"


class WandbMode(StrEnum):
    ONLINE = "online"  # as it goes
    OFFLINE = "offline"  # one whole folder for each run that has ended, for `wandb sync`


NEEDS = {SinkKind.WANDB: "wandb", SinkKind.MLFLOW: "mlflow"}  # event files are written by ourselves


@dataclass(frozen=True)
class TrackingSpec:
    """The table, resolved; without a sink nothing is followed. Paths are absolute, and none of it is a secret."""

    sinks: tuple[SinkKind, ...] = ()
    timeout_s: float = 60.0  # what one message to a sink may take before its process is ended
    tensorboard_folder: Path = Path()
    wandb_mode: WandbMode = WandbMode.ONLINE
    wandb_project: str = ""
    wandb_entity: str = ""
    wandb_folder: Path = Path()
    mlflow_uri: str = ""  # "": what MLFLOW_TRACKING_URI says, else a database in the private folder
    mlflow_database: Path = Path()
    mlflow_experiment: str = ""

    def settings(self, kind: SinkKind) -> dict[str, Any]:
        """What the sink's process is told on its stdin."""
        if kind is SinkKind.TENSORBOARD:
            return {"folder": str(self.tensorboard_folder)}
        if kind is SinkKind.MLFLOW:
            database = f"sqlite:///{self.mlflow_database.as_posix()}"
            return {"uri": self.mlflow_uri, "database": database, "experiment": self.mlflow_experiment}
        return {
            "mode": str(self.wandb_mode),
            "project": self.wandb_project,
            "entity": self.wandb_entity,
            "folder": str(self.wandb_folder),
            "init_timeout_s": max(1.0, self.timeout_s / 3),
        }

    def whole(self, kind: SinkKind) -> bool:
        """Whether the sink gets a run in one piece, once it has ended, and not as it goes."""
        return kind is SinkKind.WANDB and self.wandb_mode is WandbMode.OFFLINE


def missing(kind: SinkKind) -> str:
    """The command that installs what the sink needs; "" when it is there."""
    package = NEEDS.get(kind, "")
    if not package or importlib.util.find_spec(package) is not None:
        return ""
    return f"{Path(sys.executable).name} -m pip install 'bridgehead[{package}]'"
