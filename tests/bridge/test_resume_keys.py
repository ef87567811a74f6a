"""`resume=` and `allow=` on a run: line, which are Bridgehead's own and never reach the stage's config."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.ledger import Ledger
from bridge.ledger_rows import REJECTED
from bridge.project import ProjectView
from bridgehead import names
from bridgehead.records import Command, StageSpec

PROJECT = ProjectView(
    "watch",
    {"pretrain": StageSpec("pretrain", "bridgehead:pretrain", config={"epochs": 40}), "other": StageSpec("other", "x")},
)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / names.LEDGER_FILE)
    yield ledger
    ledger.close()


def _deliver(ledger: Ledger, *lines: str) -> list[Command]:
    ledger.take(list(enumerate(lines, start=1)), PROJECT)
    return ledger.deliver("vm-aaaaaa", 0)


def test_a_run_can_begin_at_another_runs_checkpoint(ledger: Ledger) -> None:
    first, second = _deliver(ledger, "run:pretrain", "run:pretrain resume=pretrain allow=config,code epochs=80")
    assert first.spec is not None and second.spec is not None
    assert second.spec.resume_from == first.run_id
    assert second.spec.allow == ["config", "code"]
    assert second.spec.config == {"epochs": 80}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("run:pretrain resume=pretrian-0001", "resume: no run 'pretrian-0001'"),
        ("run:other resume=pretrain", "is of stage 'pretrain', not 'other'"),
        ("run:pretrain resume=pretrain allow=confg", "allow: unknown word 'confg': did you mean config?"),
        ("run:pretrain allow=config", "names none: run:pretrain resume=RUN allow=…, or leave allow= out to begin anew"),
        ("run:pretrain epochs=3 allow=", "allow= says what may differ from the checkpoint that resume= names"),
        ("run:pretrain resume=", "resume: no run ''"),
    ],
)
def test_what_it_cannot_mean_is_rejected_in_words(ledger: Ledger, line: str, why: str) -> None:
    ledger.take([(1, "run:pretrain")], PROJECT)
    row = ledger.take([(2, line)], PROJECT)[-1]
    assert row.state == REJECTED and why in row.reason
