"""How often the classifier is right on labelled excerpts, per class, and with each source left out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bridgehead.errors import UsageError
from bridgehead.failures.classify import Known, classify
from bridgehead.failures.findings import Index
from bridgehead.failures.log_lines import LogText, from_bytes
from bridgehead.failures.pattern import Pattern
from bridgehead.failures.table import PATTERNS
from bridgehead.names import FailureClass as F

HEADERS: Final = ("CLASS", "EXCERPTS", "RIGHT, WHOLE TABLE", "RIGHT, SOURCE LEFT OUT", "TAKEN FOR")
# Labels of the excerpts that are finer or coarser than our classes; two answers where the label itself leaves it open.
_SAME: Final[dict[str, tuple[F, ...]]] = {
    "shm_exhausted": (F.SHM,),
    "tracker_init": (F.TRACKER,),
    "terminated_by_signal": (F.KILLED,),
    "cancelled_or_bus_error": (F.SHM, F.CANCELLED),
    "success_with_teardown_noise": (F.DONE,),
    "none_benign": (F.UNKNOWN, F.DONE),
}


@dataclass(frozen=True)
class Excerpt:
    label: str
    source: str
    text: str
    exit_code: int | None

    @property
    def accepted(self) -> tuple[F, ...]:
        return _SAME.get(self.label) or (F(self.label),)

    @property
    def log(self) -> LogText:
        return from_bytes(self.text.encode())


@dataclass(frozen=True)
class Answer:
    """`whole`: by the whole table. `left_out`: by those patterns alone that an excerpt of another source bears out."""

    excerpt: Excerpt
    whole: F
    left_out: F

    @property
    def right(self) -> tuple[bool, bool]:
        return self.whole in self.excerpt.accepted, self.left_out in self.excerpt.accepted


@dataclass(frozen=True)
class Accuracy:
    answers: list[Answer]

    def rows(self) -> list[tuple[str, ...]]:
        labels = sorted({answer.excerpt.label for answer in self.answers})
        groups = [(label, [item for item in self.answers if item.excerpt.label == label]) for label in labels]
        return [_row(label, group) for label, group in [*groups, ("all", self.answers)]]

    def to_json(self) -> dict[str, Any]:
        keys = ("class", "excerpts", "right_whole", "right_left_out", "taken_for")
        return {"classes": [dict(zip(keys, row, strict=True)) for row in self.rows()]}


def measure(path: Path) -> Accuracy:
    """Raises UsageError for a file that holds no labelled excerpts."""
    excerpts = list(_read(path))
    witnesses = _witnesses(excerpts)
    return Accuracy(
        [_answer(item, [pattern for pattern, sources in witnesses if sources - {item.source}]) for item in excerpts]
    )


def _answer(excerpt: Excerpt, patterns: Sequence[Pattern]) -> Answer:
    known = Known(exit_code=excerpt.exit_code)
    return Answer(
        excerpt,
        classify(excerpt.log, known).failure,
        classify(excerpt.log, known, patterns=patterns).failure,
    )


def _witnesses(excerpts: Sequence[Excerpt]) -> list[tuple[Pattern, set[str]]]:
    """Each pattern with the sources whose excerpts it matches rightly."""
    found: dict[int, set[str]] = {}
    index = Index(PATTERNS)
    for item in excerpts:
        for _, line in item.log.lines:
            for pattern in index.hits(line):
                if pattern.failure in item.accepted:
                    found.setdefault(id(pattern), set()).add(item.source)
    return [(pattern, found.get(id(pattern), set())) for pattern in PATTERNS]


def _row(label: str, group: Sequence[Answer]) -> tuple[str, ...]:
    wrong = sorted({str(item.whole) for item in group if not item.right[0]})
    whole, left_out = (sum(item.right[place] for item in group) for place in (0, 1))
    return label, str(len(group)), str(whole), str(left_out), ", ".join(wrong)


def _read(path: Path) -> Iterable[Excerpt]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise UsageError(f"no file {path}", hint="JSON lines with class, source, excerpt and exit_code") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
            excerpt = Excerpt(str(item["class"]), str(item["source"]), str(item["excerpt"]), item.get("exit_code"))
            _ = excerpt.accepted
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{path}:{number}: not a labelled excerpt ({error})", hint="class, source, excerpt"
            ) from None
        yield excerpt
