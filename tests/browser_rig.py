"""A project with short stages of its own, its bridge, and local VMs that come and go, for the browser suite."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.project import FLOOD
from bridgehead import names
from run_control import bridge_control, local_vms, views
from run_control.project import Project
from support import wait_until

_STAGES = Path(__file__).parent / "browser" / "stages_of_a_user"
_PROJECT = """\
[project]
name = "watch"

[payload]
include = ["*.py"]

[vm]
lost_after_s = 8

"""
_STAGE = '[stages.{name}]\ncommand = "python {name}.py"\ncpus = 0.2\n\n'


class Rig:
    """A project with its bridge; VMs come and go as the test asks."""

    def __init__(self, project: Project) -> None:
        self.project = project

    def start_vm(self) -> None:
        known = len(views.vms(self.project))
        local_vms.start(self.project)
        wait_until(lambda: len(views.vms(self.project)) > known, 90, what="the VM's first heartbeat")

    def kill_vm(self) -> None:
        local_vms.kill(self.project, local_vms.choose(self.project, ""))

    def newest(self, stage: str) -> str:
        """The run id of the stage's newest run, once there is one."""
        found = wait_until(lambda: [view for view in views.runs(self.project) if view.stage == stage], 60)
        return found[-1].run_id

    def await_run(self, stage: str, before: int) -> str:
        """The run id once the stage has more than `before` runs."""
        wait_until(lambda: self.count(stage) > before, 60, what=f"a new run of {stage}")
        return self.newest(stage)

    def count(self, stage: str) -> int:
        return len([view for view in views.runs(self.project) if view.stage == stage])

    def await_state(self, run_id: str, *states: str, timeout_s: float = 90.0) -> None:
        wait_until(lambda: views.run(self.project, run_id).state in states, timeout_s, what=f"{run_id} {states}")

    def await_checkpoint(self, run_id: str) -> None:
        wait_until(lambda: views.run(self.project, run_id).levels, 60, what="a checkpoint")

    def bridge_down(self) -> None:
        bridge_control.stop(self.project)

    def bridge_up(self) -> None:
        bridge_control.start(self.project, port=0, tunnel="none")


def make_project(folder: Path, more: str = "") -> Project:
    """Stages `train`, `hostile` and `flood`, each a short script of its own."""
    folder.mkdir(parents=True)
    text = _PROJECT
    for name in ("train", "hostile"):
        shutil.copy(_STAGES / f"{name}.py", folder / f"{name}.py")
    (folder / "flood.py").write_text(FLOOD)
    for name in ("train", "hostile", "flood"):
        text += _STAGE.format(name=name)
    (folder / names.PROJECT_FILE).write_text(text + more)
    project = Project(folder)
    project.make_private()
    project.inbox.mkdir()
    project.queue.touch()
    return project


@contextlib.contextmanager
def jupyter_place() -> Iterator[None]:
    """Where the packages lie in another environment than this Python, Jupyter is told what lies beside them."""
    specs = [importlib.util.find_spec(name) for name in ("jupyterlab", "notebook")]
    prefixes = [Path(spec.origin).parents[4] for spec in specs if spec is not None and spec.origin]
    elsewhere = list(dict.fromkeys(prefix for prefix in prefixes if prefix != Path(sys.prefix)))
    with pytest.MonkeyPatch.context() as patch:
        if elsewhere:
            patch.setenv("JUPYTER_PATH", os.pathsep.join(str(prefix / "share/jupyter") for prefix in elsewhere))
            patch.setenv("JUPYTER_CONFIG_PATH", os.pathsep.join(str(prefix / "etc/jupyter") for prefix in elsewhere))
        if specs[0] is not None and prefixes[0] in elsewhere:
            patch.setenv("JUPYTERLAB_DIR", str(prefixes[0] / "share/jupyter/lab"))
        yield
