"""What of the project can't travel or is not sent: told when the bridge comes up, and by `doctor`."""

from __future__ import annotations

from bridge import payload_choice
from bridgehead.errors import UsageError
from run_control import project_file
from run_control.project import Project


def lines(project: Project) -> list[str]:
    """One for names that no VM can take, with what to do, and one for what is passed over. Raises ProjectError."""
    view = project_file.load(project.root)
    choice = payload_choice.choose(project.root, view)
    found = []
    try:
        choice.check_names()
    except UsageError as error:
        found.append(f"no VM can get the files: {error.message}. next: {error.hint}")
    stays = choice.stays()
    return [*found, stays] if stays else found
