"""`bridgehead init`: a new project folder. Never overwrites anything."""

from __future__ import annotations

import importlib.resources
import re
from pathlib import Path

from bridgehead import files, names
from bridgehead.errors import UsageError
from run_control.project import Project

_IGNORED = f"{names.PRIVATE_FOLDER}/\n{names.IN_FOLDER}/\n"


def init(folder: Path) -> tuple[Project, list[str]]:
    """Make the project and return what was written. Raises UsageError when there is one already."""
    project = Project(folder.absolute())
    if project.file.exists():
        raise UsageError(f"{project.file} is there already", hint="bridgehead up")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        project.make_private()
    except OSError as error:
        raise UsageError(f"{folder} can't be made: {error.strerror}", hint="bridgehead init DIR") from None
    written = [f"{names.PRIVATE_FOLDER}/"]
    if not project.inbox.exists():
        project.inbox.mkdir()
        written.append(f"{names.IN_FOLDER}/")
    texts = {
        names.PROJECT_FILE: _template(names.PROJECT_FILE).replace("@NAME@", _name(project.root)),
        names.QUEUE_FILE: _template(names.QUEUE_FILE),
        ".gitignore": _IGNORED,
    }
    for name, text in texts.items():
        path = project.root / name
        if not path.exists():
            files.write_atomic(path, text.encode())
            written.append(name)
    return project, written


def _template(name: str) -> str:
    return importlib.resources.files("run_control").joinpath("templates", name).read_text(encoding="utf-8")


def _name(root: Path) -> str:
    """A project name made from the folder's."""
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", root.name).strip("-._")[:64]
    return cleaned or "project"
