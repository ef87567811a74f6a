"""[tracking]: what it allows, and that no secret may stand in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridgehead import names
from bridgehead.errors import ProjectError
from run_control import project_file
from run_control.tracking.spec import SinkKind, TrackingSpec

HEAD = '[project]\nname = "watch"\n[tracking]\n'


def _spec(folder: Path, text: str) -> TrackingSpec:
    (folder / names.PROJECT_FILE).write_text(HEAD + text)
    return project_file.tracking(folder)[1]


def test_without_the_table_there_are_no_sinks(tmp_path: Path) -> None:
    assert _spec(tmp_path, "").sinks == ()


def test_names_default_to_the_projects_and_all_lies_in_the_private_folder(tmp_path: Path) -> None:
    spec = _spec(tmp_path, 'sinks = ["wandb", "mlflow", "tensorboard", "wandb"]\n')
    assert spec.sinks == (SinkKind.WANDB, SinkKind.MLFLOW, SinkKind.TENSORBOARD)
    assert spec.wandb_project == spec.mlflow_experiment == "watch"
    private = tmp_path / names.PRIVATE_FOLDER
    assert spec.tensorboard_folder == private / "tensorboard" and spec.mlflow_database == private / "mlflow.db"


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("sqlite:///runs.db", "sqlite:///{root}/runs.db"),
        ("sqlite:////abs/runs.db", "sqlite:////abs/runs.db"),
        ("https://mlflow.example.com", "https://mlflow.example.com"),
        ("", ""),
    ],
)
def test_a_relative_database_lies_in_the_project(tmp_path: Path, given: str, used: str) -> None:
    assert _spec(tmp_path, f'mlflow_uri = "{given}"\n').mlflow_uri == used.format(root=tmp_path.as_posix())


MISTAKES = {
    "an unknown key": ('wandb_projekt = "x"', ":4: tracking.wandb_projekt: unknown key", "did you mean wandb_project?"),
    "no sink": ('sinks = ["wanb"]', ":4: tracking.sinks", "did you mean wandb?"),
    "no mode": ('wandb_mode = "offlin"', ":4: tracking.wandb_mode: no mode 'offlin'", "did you mean offline?"),
    "no time": ("timeout_s = 0", ":4: tracking.timeout_s", ""),
    "a password": ('mlflow_uri = "https://me:hush@mlflow.example.com"', "MLFLOW_TRACKING_URI", ""),
    "a token": ('mlflow_uri = "https://mlflow.example.com?token=hush"', "MLFLOW_TRACKING_URI", ""),
    "no URI": ('mlflow_uri = "ftp://example.com"', ":4: tracking.mlflow_uri", ""),
    "an API key": ('wandb_api_key = "hush"', ":4: tracking.wandb_api_key: unknown key", ""),
    "a path": ('wandb_project = "me/mine"', ":4: tracking.wandb_project: a name of letters", ""),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_told_by_file_line_and_key_without_its_secret(tmp_path: Path, mistake: str) -> None:
    text, message, hint = MISTAKES[mistake]
    with pytest.raises(ProjectError) as caught:
        _spec(tmp_path, text)
    told = f"{caught.value.message} {caught.value.hint}"
    assert message in told and hint in told and "hush" not in told
    with pytest.raises(ProjectError):
        project_file.load(tmp_path)
