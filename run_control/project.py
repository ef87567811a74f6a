"""Where things lie in a project folder on the laptop."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bridgehead import names
from bridgehead.errors import BridgeDownError, ProjectError
from run_control import locks

DRIVE_FOLDER = "drive"
VMS_FOLDER = "vms"
NOTEBOOK_FILE = "bootstrap.ipynb"
UP_LOCK = "up.lock"
BRIDGE_LOCK = "bridge.lock"
QUEUE_LOCK = "queue.lock"
STOP_LOCK = "stop.lock"
PRESS_LOCK = "press.lock"


@dataclass(frozen=True)
class Project:
    """A folder that holds bridgehead.toml, and the names of what lies in it."""

    root: Path

    @property
    def file(self) -> Path:
        return self.root / names.PROJECT_FILE

    @property
    def queue(self) -> Path:
        return self.root / names.QUEUE_FILE

    @property
    def inbox(self) -> Path:
        return self.root / names.IN_FOLDER

    @property
    def private(self) -> Path:
        return self.root / names.PRIVATE_FOLDER

    @property
    def ledger(self) -> Path:
        return self.private / names.LEDGER_FILE

    @property
    def bridge_record(self) -> Path:
        return self.private / names.BRIDGE_RECORD

    @property
    def bridge_log(self) -> Path:
        return self.private / names.BRIDGE_LOG

    @property
    def bridge_lock(self) -> Path:
        """Held while a bridge lives; says who holds it."""
        return self.private / BRIDGE_LOCK

    @property
    def queue_lock(self) -> Path:
        """Held while one command waits for the bridge to take its line."""
        return self.private / QUEUE_LOCK

    @property
    def stop_lock(self) -> Path:
        """Held from the look at what already stops a run to the line that stops it."""
        return self.private / STOP_LOCK

    @property
    def press_lock(self) -> Path:
        """Held from the look for a press's twin to the press's line."""
        return self.private / PRESS_LOCK

    @property
    def notebook(self) -> Path:
        """The bootstrap notebook with the pairing code filled in; 0600."""
        return self.private / NOTEBOOK_FILE

    @property
    def vms(self) -> Path:
        return self.private / VMS_FOLDER

    @property
    def drive(self) -> Path:
        """The local runtime's durable store; outlives every local VM."""
        return self.private / DRIVE_FOLDER

    def run(self, run_id: str) -> Path:
        return self.inbox / run_id

    def make_private(self) -> None:
        """.bridgehead/ with mode 0700, also when an older one was wider."""
        self.private.mkdir(mode=0o700, exist_ok=True)
        self.private.chmod(0o700)


def find(start: Path | None = None) -> Project:
    """The project of `start` (default: the working folder) or of the nearest folder above it.

    Raises ProjectError when there is none.
    """
    here = (start or Path.cwd()).absolute()
    if not here.is_dir():
        raise ProjectError(f"no folder {here}", hint="bridgehead init DIR makes a project in a new folder")
    for folder in (here, *here.parents):
        if (folder / names.PROJECT_FILE).is_file():
            return Project(folder)
    raise ProjectError(
        f"no {names.PROJECT_FILE} in {here} or above it",
        hint="bridgehead init makes a project here; -C DIR names another folder",
    )


@contextlib.contextmanager
def changing(project: Project) -> Iterator[None]:
    """Only one `up`, `down` or `vm` command at a time; a second one is told so at once."""
    project.make_private()
    fd = locks.take(project.private / UP_LOCK)
    if fd is None:
        raise BridgeDownError(
            "another bridgehead command is starting or stopping things in this project",
            hint="wait until it has ended, then try again",
        )
    try:
        yield
    finally:
        os.close(fd)
