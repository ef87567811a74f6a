"""A first study.yaml, ready to plan: for the clips pipeline when the project has it, else one to fill in."""

from __future__ import annotations

from pathlib import Path

from bridgehead import files, names
from bridgehead.errors import UsageError
from run_control import project_file
from run_control.project import Project
from run_control.studies import study_file
from run_control.studies.study_file import STUDY

_CLIPS = """\
v: 1
question: Is it worth training the head alone before the whole network?
hypothesis: LP-FT tells exercises of unseen people apart better than plain fine-tuning, and than a frozen probe.

# Stages that run once, before all arms; leave it out when they have run already.
before:
  {pretrain}: {{}}

# What each arm runs, in this order. The last one's results hold the metric.
stages: [{finetune}, {gate}]
control: plain
arms:
  plain: {{{finetune}: {{method: plain}}}}
  lp-ft: {{{finetune}: {{method: lp-ft}}}}
  frozen-probe: {{{finetune}: {{method: probe}}}}

# Each arm runs once at each point.
grid:
  {finetune}.seed: [0, 1]

metric: {{name: accuracy, direction: higher, min_effect: 0.0}}
confidence: 0.95
budget: {{runs: 20, hours: 2.0}}
stop: {{failures: 2}}
parallel: 2
"""
_PLAIN = """\
v: 1
question: What do you want to know?
hypothesis: What do you expect, and why?
stages: [{stage}]
control: as-it-is
arms:
  as-it-is: {{}}
  changed: {{{stage}: {{seed: 1}}}}
metric: {{name: accuracy, direction: higher}}
budget: {{runs: 10, hours: 10.0}}
"""


def create(project: Project, name: str) -> Path:
    """Write studies/NAME/study.yaml. Raises UsageError when it is there already."""
    folder = study_file.folder_of(project, name)
    if (folder / STUDY).exists():
        raise UsageError(f"study {name} is there already", hint=f"edit {study_file.FOLDER}/{name}/{STUDY}")
    stages = project_file.load(project.root).stages
    shipped = {stage: stage for stage in (names.PRETRAIN, names.FINETUNE, names.GATE)}
    if set(shipped) <= set(stages):
        text = _CLIPS.format(**shipped)
    else:
        text = _PLAIN.format(stage=next(reversed(stages), "train"))
    folder.mkdir(parents=True, exist_ok=True)
    files.write_atomic(folder / STUDY, text.encode())
    study_file.load(folder)
    return folder
