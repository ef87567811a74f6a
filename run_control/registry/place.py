"""Which durable store holds a project's registry, as this laptop reaches it, and where its copy lies here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridgehead.errors import BridgeheadError, StoreError
from run_control import announce_stores, key_control, project_file
from run_control.project import Project
from run_control.registry.journal import Journal

if TYPE_CHECKING:
    from bridge.project import ProjectView
    from vm_daemons.storage.objects import ObjectStore

FOLDER = "registry"
CACHE = "registry.jsonl"
_HERE, _ELSEWHERE = "http://127.0.0.1", "https://elsewhere"


def journal(project: Project) -> Journal:
    """The project's journal; one that can only be read when no store is in reach (`trouble` says why)."""
    view = project_file.load(project.root)
    store, trouble = _store(project, view)
    project.make_private()
    made = Journal(project.private / CACHE, store, f"{view.name}/{FOLDER}", key_control.me()["user"])
    made.trouble = trouble
    return made


def _store(project: Project, view: ProjectView) -> tuple[ObjectStore | None, str]:
    """What [store] names for this laptop; else the local VMs' store; else the Drive that VMs mount."""
    found = list(announce_stores.targets(project, view, _HERE)) or list(
        announce_stores.targets(project, view, _ELSEWHERE)
    )
    if not found:
        return None, ""
    target = found[-1]
    try:
        return target.open(), ""
    except StoreError as error:
        hint = target.when_denied or error.hint
        return None, f"{target.name}: {error.message}" + (f" → {hint}" if hint else "")
    except BridgeheadError as error:
        return None, error.in_one_line()
