"""What each round runs: a short real pretraining, a training script of the user's own, and numbered lines.

Everything that is to outlive a VM's disk for the sake of the proof (who was executed, how often) is appended to files
under `truth`, outside of every VM.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridgehead import names

PROJECT = "chaos"
LINES = "lines"
DICE = "dice"
TRUTH_ENV = "CHAOS_TRUTH"  # the folder of the markers; inherited by every process of a VM
LOST_AFTER_S = 5

PRETRAIN_CONFIG: dict[str, Any] = {
    "clips": 512,
    "epochs": 36,
    "batch": 64,
    "width": 16,
    "stride": 16,
    "threads": 1,
    "measure_memory": False,
    "shake": 0.3,  # draws from every generator that a checkpoint holds
}
DICE_CONFIG: dict[str, Any] = {"steps": 150, "save_every": 10, "pause_s": 0.02}

_TOML = """\
[project]
name = "{project}"

[payload]
include = ["*.py"]

[vm]
lost_after_s = {lost_after_s}

[stages.{pretrain}]
command = "{prefix}{pretrain}"
cpus = 0.3
checkpoint_every_epochs = 2
stop_grace_s = 10
retries = 20
config = {{ {pretrain_config} }}

[stages.{dice}]
command = "python dice.py"
cpus = 0.3
stop_grace_s = 10
retries = 20
config = {{ {dice_config} }}

[stages.{lines}]
command = "python lines.py"
cpus = 0.1
retries = 20
"""

# Records of one length that name their process and their number: a lost, a doubled and a torn one all show.
_LINES_PY = """\
import os, secrets, sys, time
token = secrets.token_hex(4)
for number in range(160):
    sys.stdout.write(f"[{token}:{number:06d}] {number * 7919 % 100003:06d}\\n")
    sys.stdout.flush()
    time.sleep(0.03)
"""

# A training script of the user's own, on the API that users have.
_DICE_PY = """\
import random
import time

import numpy
import torch

import bridgehead
from bridgehead import torch_state

run = bridgehead.current_run()
torch.set_num_threads(1)
random.seed(1), numpy.random.seed(2), torch.manual_seed(3)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
parts = {"model": model, "optimizer": optimizer}
total, every = run.config["steps"], run.config["save_every"]
saved = run.latest_checkpoint()
step = torch_state.load(saved, parts) if saved else 0
print(f"dice from step {step}", flush=True)
while step < total:
    x = torch.randn(4, 8) + random.random() + float(numpy.random.rand())
    loss = (model(x) - x.roll(1, 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % every == 0 or step == total:
        with run.checkpoint(step) as folder:
            torch_state.save(folder, parts, position=step)
    run.progress(step=step, total_steps=total, loss=float(loss.detach()))
    if run.should_stop:
        run.exit_stopped()
    time.sleep(run.config["pause_s"])
run.results({"steps": step, "weights_sha256": torch_state.tensors_sha256(model.state_dict())})
print("dice done", flush=True)
"""


@dataclass(frozen=True)
class Shell:
    """An sh: line; `name` is what its marker file is called."""

    name: str
    text: str


def write_project(root: Path, tunnel: str = "") -> None:
    """The project file, with `tunnel` as its table of that name, and the scripts of one round."""
    text = _TOML.format(
        project=PROJECT,
        lost_after_s=LOST_AFTER_S,
        prefix=names.SHIPPED_COMMAND_PREFIX,
        pretrain=names.PRETRAIN,
        dice=DICE,
        lines=LINES,
        pretrain_config=_inline(PRETRAIN_CONFIG),
        dice_config=_inline(DICE_CONFIG),
    )
    (root / names.PROJECT_FILE).write_text(text + tunnel)
    (root / "lines.py").write_text(_LINES_PY)
    (root / "dice.py").write_text(_DICE_PY)


def shell(number: int, lines: int) -> Shell:
    """A command that notes its execution outside the VM before it does anything else, and prints numbered lines."""
    name = f"sh-{number}"
    mark = f'echo begin >> "${TRUTH_ENV}/{name}"'
    line = f'printf "[{number:08x}:%06d] %06d\\n" $i $((i * 7919 % 100003))'
    return Shell(name, f"{mark}; for i in $(seq 0 {lines - 1}); do {line}; sleep 0.05; done")


def _inline(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {json.dumps(value)}" for key, value in values.items())
