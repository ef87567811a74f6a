"""`bridgehead demo --study`: the clips pipeline as a study of three arms, on one machine, by the public commands.

LP-FT, plain fine-tuning and a frozen probe go through the queue. When the first arms are done, the command that follows
the study is killed, and so are bridge and VM; started again, nothing is queued twice and what was running goes on. The
analysis keeps a person's words, and the study ends in a written decision with intervals.
"""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from bridgehead import files, names
from run_control import demo as show_case
from run_control import yaml_file
from run_control.demo import Demo, Result
from run_control.demo_shell import DemoFailed
from run_control.demo_view import DemoView
from run_control.studies import study_file
from run_control.studies.study_file import ANALYSIS, DECISION, STUDY

NAME = "lp-ft"
_WORDS = "The two held-out people are too few to tell small differences apart."
_END_S = 600.0
_SMALL: dict[str, dict[str, Any]] = {
    "before": {names.PRETRAIN: {"clips": 2000, "epochs": 12, "measure_memory": False}},
    "arms": {
        "plain": {names.FINETUNE: {"method": "plain"}},
        "lp-ft": {names.FINETUNE: {"method": "lp-ft"}},
        "frozen-probe": {names.FINETUNE: {"method": "probe"}},
    },
    "grid": {f"{names.FINETUNE}.clips": [1500], f"{names.GATE}.clips": [3000], f"{names.FINETUNE}.seed": [0, 1]},
}


@dataclass
class StudyResult(Result):
    """The demo's, with what the study came to."""

    MADE: ClassVar[str] = "The decision"

    decision: dict[str, Any] = field(default_factory=dict)
    stopped_with: dict[str, str] = field(default_factory=dict)  # arm → its state when everything was killed


def demo(keep: Path | None, *, as_json: bool) -> int:
    return show_case.demo(keep, as_json=as_json, make=StudyDemo)


class StudyDemo(Demo):
    """The steps in their order."""

    def __init__(self, folder: Path, view: DemoView) -> None:
        super().__init__(folder, view)
        self.result: StudyResult = StudyResult()
        self._study = folder / study_file.FOLDER / NAME

    def play(self) -> None:
        self._view.step(f"a new project in {self.folder}")
        self._bridgehead("init")
        with self._timed("up"):
            self._up_first()
        self._plan()
        with self._timed("until_stopped"):
            self._start_and_kill()
        with self._timed("resumed"):
            self._up_again()
            self._finish()
        with self._timed("analysis"):
            self._analyse()
            self._decide()

    def _plan(self) -> None:
        """`study new`, an edit as a person would make it, and `study plan`."""
        self._bridgehead("study", "new", NAME)
        data, _ = yaml_file.load(self._study / STUDY)
        yaml_file.save(self._study / STUDY, {**data, **_SMALL})
        planned = self._bridgehead("study", "plan", NAME)
        cells = [cell["id"] for cell in planned["tracker"]["cells"]]
        self._view.step(f"study {NAME}: {planned['runs']} runs, {', '.join(cells)}")

    def _start_and_kill(self) -> None:
        follower = self._bridgehead.popen("study", "start", NAME)
        try:
            self._until(lambda states: "done" in (states.get(f"{arm}-1") for arm in _SMALL["arms"]), follower)
        finally:
            follower.kill()
            follower.communicate()
        self._bridgehead("vm", "kill")
        self._bridgehead("down")
        self.result.stopped_with = self._states()
        shown = ", ".join(f"{arm} {state}" for arm, state in self.result.stopped_with.items())
        self._view.step(f"all of it is killed and down: {shown}")
        if "done" not in self.result.stopped_with.values() or set(self.result.stopped_with.values()) == {"done"}:
            raise DemoFailed("the study was not in its middle when it was stopped")

    def _up_again(self) -> None:
        self._view.step("everything up again")
        self._up("--port", "0")

    def _finish(self) -> None:
        follower = self._bridgehead.popen("study", "start", NAME)
        try:
            self._until(lambda states: set(states.values()) <= {"done", "failed"}, follower)
            output, _ = follower.communicate(timeout=60)
        finally:
            follower.kill()
            follower.wait()
        answer = json.loads(output.strip().splitlines()[-1])
        if not answer["ok"]:
            raise DemoFailed(f"the study did not end well: {answer['error']['message']}")
        cells = answer["data"]["tracker"]["cells"]
        wanted = sum(len(cell["runs"]) for cell in cells)
        lines = self._bridgehead("queue")["commands"]
        run_ids = [run["run_id"] for cell in cells for run in cell["runs"]]
        if len(lines) != wanted or len(set(run_ids)) != wanted:
            raise DemoFailed(f"{wanted} runs were planned, and the queue has {len(lines)} lines")
        resumed = [row["run_id"] for row in lines if row["attempt"] > 1]
        self._view.step(f"{wanted} runs, none queued twice; resumed on the second VM: {', '.join(resumed) or 'none'}")
        self.result.run_ids = {cell["id"]: cell["runs"][-1]["run_id"] for cell in cells}

    def _analyse(self) -> None:
        self._bridgehead("study", "analyse", NAME)
        path = self._study / ANALYSIS
        text = path.read_text().replace("Write here what you make of it; this is kept.", _WORDS)
        files.write_atomic(path, text.encode())
        figures = self._bridgehead("study", "analyse", NAME)["figures"]
        if _WORDS not in path.read_text():
            raise DemoFailed("a person's words in analysis.md were lost")
        for item in figures["against"]:
            low, high = item["interval"]
            told = f"{item['gain']:+.3f} [{low:+.3f}, {high:+.3f}], {item['verdict']}"
            self._view.step(f"{item['arm']} over {item['control']}: {told}")

    def _decide(self) -> None:
        self.result.decision = self._bridgehead("study", "decide", NAME)["decision"]
        self.result.bundle = str(self._study / DECISION)
        for item in self.result.decision["evidence"]["against"]:
            if None in item["interval"]:
                raise DemoFailed(f"the decision has no interval for {item['arm']}")
        self._view.step(f"decision: {self.result.decision['decision']}: {self.result.decision['because']}")

    def _until(self, holds: Any, follower: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + _END_S
        while not holds(states := self._states()):
            if "failed" in states.values():
                raise DemoFailed(f"an arm failed: {states}")
            if follower.poll() not in (None, 0):
                raise DemoFailed(f"bridgehead study start ended with {follower.returncode}")
            if time.monotonic() > deadline:
                raise DemoFailed(f"the study did not get on in {_END_S:.0f} s: {states}")
            time.sleep(0.5)

    def _states(self) -> dict[str, str]:
        tracker = self._bridgehead("study", "status", NAME)["tracker"]
        return {cell["id"]: cell["state"] for cell in tracker["cells"]}
