"""`bridgehead init`: what it makes, and that it overwrites nothing."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from bridgehead import names
from bridgehead.errors import UsageError
from bridgehead.queue_lines import parse_line
from run_control import init, project_file
from run_control.project import Project


def test_a_new_project_is_the_clips_pipeline(fresh: Project) -> None:
    view = project_file.load(fresh.root)
    assert view.name == "watch" and tuple(view.stages) == names.SHIPPED_STAGES
    assert view.stages[names.EXPORT].after == [names.FINETUNE, names.GATE]


def test_the_private_folder_is_the_owners_alone(fresh: Project) -> None:
    assert stat.S_IMODE(fresh.private.stat().st_mode) == 0o700
    assert f"{names.PRIVATE_FOLDER}/" in (fresh.root / ".gitignore").read_text().splitlines()


def test_the_new_queue_holds_comments_alone(fresh: Project) -> None:
    lines = fresh.queue.read_text().splitlines()
    assert lines and all(parse_line(line) is None for line in lines)


def test_files_of_the_user_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / names.QUEUE_FILE).write_text("run:mine\n")
    (tmp_path / ".gitignore").write_text("mine\n")
    _, written = init.init(tmp_path)
    assert (tmp_path / names.QUEUE_FILE).read_text() == "run:mine\n"
    assert (tmp_path / ".gitignore").read_text() == "mine\n"
    assert names.PROJECT_FILE in written and names.QUEUE_FILE not in written


def test_a_project_is_not_made_twice(fresh: Project) -> None:
    with pytest.raises(UsageError, match="is there already"):
        init.init(fresh.root)


@pytest.mark.parametrize("name", ["My Project (2)", "ünï", "...", "a" * 200])
def test_any_folder_name_gives_a_project_that_loads(tmp_path: Path, name: str) -> None:
    project, _ = init.init(tmp_path / name)
    assert project_file.load(project.root).stages
