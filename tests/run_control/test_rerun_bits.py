"""`bridgehead rerun`: the same bits on the same image, and what `bridgehead diff` says of them."""

from __future__ import annotations

import dataclasses

import pytest
from cli_process import bridgehead, in_process
from project_support import Seeded

from bridgehead import files, names
from bridgehead.names import RunState
from bridgehead.records import RunRecord
from run_control import pinning, project_file, rerunning, up, views
from run_control.project import Project
from support import wait_until

# Random weights, random batches in an order of their own, dropout, and an optimizer with a state: seconds on a CPU.
TRAIN = """
import torch
import bridgehead
from bridgehead import torch_state

run = bridgehead.current_run()
torch.manual_seed(run.config["seed"])
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = torch.randn(256, 16)
target = (data.sum(dim=1) > 0).long()
for _ in range(5):
    for batch in torch.randperm(256).split(32):
        loss = torch.nn.functional.cross_entropy(model(data[batch]), target[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
run.results({"loss": float(loss), "weights_sha256": torch_state.tensors_sha256(model.state_dict())})
"""
PROJECT = """
[project]
name = "bits"

[payload]
include = ["*.py"]

[stages.train]
command = "python train.py"

[stages.train.config]
seed = 3
"""


def _ran(project: Project, *words: str) -> str:
    """Queue it as a person would, and stay; the run's id once it has ended well and its results are here."""
    known = {view.run_id for view in views.runs(project)}
    assert bridgehead(*words, "--json", cwd=project.root).code == 0
    wait_until(lambda: len(views.runs(project)) > len(known), 60, what="the run in the ledger")
    [run_id] = {view.run_id for view in views.runs(project)} - known
    wait_until(lambda: views.run(project, run_id).state in (RunState.DONE, RunState.FAILED), 90, what="its end")
    assert views.run(project, run_id).state == RunState.DONE
    wait_until((project.run(run_id) / names.RESULTS).exists, 60, what="its results")
    return run_id


@pytest.mark.timeout(300)
def test_a_rerun_on_the_same_image_ends_with_the_same_bits(fresh: Project) -> None:
    """A real kernel, cell, bridge and torch, with random weights, batches and dropout."""
    fresh.file.write_text(PROJECT)
    (fresh.root / "train.py").write_text(TRAIN)
    try:
        up.up(fresh, runtime=up.LOCAL, tunnel="none", port=0)
        first = _ran(fresh, "run", "train")
        again = _ran(fresh, "rerun", first)
        told = bridgehead("diff", first, again, "--json", cwd=fresh.root).data
        assert told["weights"] == "same" and told["same"], told
        log = (fresh.run(again) / names.LOG).read_text()
        assert "preflight: passed:" in log and " image," in log, "the rerun knows the image of the first"
    finally:
        up.down(fresh)


def _ended(seeded: Seeded, run_id: str, weights: str, **image: str) -> None:
    folder = seeded.project.run(run_id)
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(folder / names.RESULTS, {"weights_sha256": weights} if weights else {"loss": 1.0})
    spec = seeded.ledger.spec_of(run_id)
    assert spec is not None
    record = RunRecord(run_id, spec.name, "watch", "c" * 32, 1, "vm-1", 1.0, spec, fingerprint=dict(image))
    files.write_json(folder / names.RUN_RECORD, record.to_json())


@pytest.fixture
def pinned(seeded: Seeded) -> list[str]:
    """Two runs of one spec."""
    whole = project_file.load_whole(seeded.project.root)
    view = dataclasses.replace(whole.view, pin=pinning.prepare(seeded.project.root, whole))
    lines = [(1, "run:pretrain"), (2, "run:pretrain")]
    return [row.run_id for row in seeded.ledger.take(lines, view)]


@pytest.mark.parametrize(
    ("weights", "state", "words"),
    [
        (("ab" * 32, "ab" * 32), "same", "the same, bit for bit (abababab"),
        (("ab" * 32, "cd" * 32), "different", "they differ: abababab"),
        (("ab" * 32, ""), "unknown", "name no weights_sha256"),
    ],
)
def test_diff_says_whether_the_weights_are_the_same(
    weights: tuple[str, str],
    state: str,
    words: str,
    seeded: Seeded,
    pinned: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    for run_id, one in zip(pinned, weights, strict=True):
        _ended(seeded, run_id, one)
    answer = in_process(capsys, "-C", str(seeded.project.root), "diff", *pinned)
    assert words in answer.out
    assert rerunning.weights(seeded.project, pinned[0], pinned[1]).state == state


def test_on_another_image_diff_names_what_differs_beside_the_weights(seeded: Seeded, pinned: list[str]) -> None:
    for run_id, weights, torch in zip(pinned, ("ab" * 32, "cd" * 32), ("2.10", "2.11"), strict=True):
        _ended(seeded, run_id, weights, torch=torch)
    found = {item.key: (item.first, item.second) for item in rerunning.diff(seeded.project, *pinned)}
    assert found["image.torch"] == ("2.10", "2.11") and "results.weights_sha256" in found
