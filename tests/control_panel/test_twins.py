"""The same button pressed at once in two views, of one kernel or of two: it acts once, and both hear of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from project_support import Seeded

from bridgehead.names import Ack
from control_panel.actions import Actions
from run_control import project_file
from run_control.project import Project
from support import wait_until

AGAIN = "press again for another"
KERNEL = (
    "import json, sys, time\n"
    "from pathlib import Path\n"
    "from control_panel.actions import Actions\n"
    "from run_control.project import Project\n"
    "root, name, command = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])\n"
    "actions = Actions(Project(root))\n"
    "(root / f'ready-{name}').touch()\n"
    "while not (root / 'go').exists(): time.sleep(0.001)\n"
    "print(json.dumps(actions.act({'id': f'press-of-{name}', 'view': f'view-{name}', 'seen': 0, **command})))\n"
)


def _press(actions: Actions, press: str, view: str, seen: int, verb: str = "run", **args: Any) -> dict[str, Any]:
    given = args or {"stage": "pretrain", "overrides": {}}
    return actions.act({"id": press, "view": view, "seen": seen, "verb": verb, "args": given})


def _lines(project: Project) -> list[str]:
    text = project.queue.read_text() if project.queue.exists() else ""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def _at_once(project: Project, command: dict[str, Any]) -> list[dict[str, Any]]:
    """The answers of two kernels, each a process of its own."""
    words = [sys.executable, "-c", KERNEL, str(project.root)]
    kernels = [
        subprocess.Popen([*words, name, json.dumps(command)], stdout=subprocess.PIPE, text=True) for name in "ab"
    ]
    try:
        wait_until(lambda: all((project.root / f"ready-{name}").exists() for name in "ab"), 20, what="both kernels")
        (project.root / "go").touch()
        return [json.loads(kernel.communicate(timeout=100)[0]) for kernel in kernels]
    finally:
        for kernel in kernels:
            kernel.kill()


def test_two_kernels_that_run_the_same_at_once_make_one_line(fresh: Project) -> None:
    answers = _at_once(fresh, {"verb": "run", "args": {"stage": "pretrain", "overrides": {"epochs": 3}}})
    assert _lines(fresh) == ["run:pretrain epochs=3"]
    assert [answer["state"] for answer in answers] == ["sent", "sent"]
    assert [AGAIN in answer["text"] for answer in answers].count(True) == 1


def test_two_kernels_that_stop_the_same_at_once_save_it_and_do_not_kill_it(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.ack(run_id, Ack.STARTED)
    answers = _at_once(seeded.project, {"verb": "stop", "args": {"run": run_id, "now": False}})
    assert _lines(seeded.project) == [f"stop:{run_id}"]
    assert sorted(answer["state"] for answer in answers) == ["refused", "sent"]


def test_a_view_that_was_told_of_the_other_press_may_press_for_another(fresh: Project) -> None:
    here, there = Actions(fresh), Actions(fresh)
    _press(here, "press-1", "view-a", 0)
    assert AGAIN in _press(there, "press-2", "view-b", 0)["text"]
    assert AGAIN not in _press(there, "press-3", "view-b", 0)["text"]
    assert _lines(fresh) == ["run:pretrain"] * 2


def test_the_same_press_of_one_view_is_meant_twice(fresh: Project) -> None:
    actions = Actions(fresh)
    for press in ("press-1", "press-2"):
        assert AGAIN not in _press(actions, press, "view-a", 0)["text"]
    assert _lines(fresh) == ["run:pretrain"] * 2


def test_another_line_is_another_press(fresh: Project) -> None:
    actions = Actions(fresh)
    _press(actions, "press-1", "view-a", 0)
    _press(actions, "press-2", "view-b", 0, stage="pretrain", overrides={"seed": 7})
    assert _lines(fresh) == ["run:pretrain", "run:pretrain seed=7"]


@pytest.mark.parametrize("seen", [0, 1], ids=["not-shown-yet", "shown"])
def test_a_line_that_the_view_has_shown_is_no_twin(seeded: Seeded, seen: int) -> None:
    project = seeded.project
    _press(Actions(project), "press-1", "view-a", 0)
    seeded.ledger.take([(1, "run:pretrain")], project_file.load(project.root))
    told = _press(Actions(project), "press-2", "view-b", seen)
    assert (AGAIN in told["text"]) == (seen == 0)
    assert ("#1 pretrain-" in told["text"]) == (seen == 0)
    assert len(_lines(project)) == (1 if seen == 0 else 2)


def test_a_kernel_that_comes_back_tells_of_the_twin_what_the_one_before_told(fresh: Project) -> None:
    _press(Actions(fresh), "press-1", "view-a", 0)
    told = _press(Actions(fresh), "press-2", "view-b", 0)
    restarted = Actions(fresh)
    asked = restarted.act({"id": "asks-for-it", "verb": "fate", "args": {"of": "press-2"}})
    assert (asked["state"], asked["text"]) == (told["state"], told["text"])
    assert _press(restarted, "press-2", "view-b", 0) == told
    assert _lines(fresh) == ["run:pretrain"]


def test_a_press_that_made_no_line_is_nobodys_twin(fresh: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from run_control import queue_writer

    real = queue_writer.append

    def dies(path: Path, lines: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(queue_writer, "append", dies)
    with pytest.raises(KeyboardInterrupt):
        _press(Actions(fresh), "press-1", "view-a", 0)
    monkeypatch.setattr(queue_writer, "append", real)
    assert AGAIN not in _press(Actions(fresh), "press-2", "view-b", 0)["text"]
    assert _lines(fresh) == ["run:pretrain"]
