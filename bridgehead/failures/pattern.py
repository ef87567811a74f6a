"""One line of the tables of patterns."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from bridgehead.names import FailureClass

Row = tuple[FailureClass, int, str, str]  # class, causal rank, source, regex
NotedRow = tuple[FailureClass, int, str, str, str]  # the same with a note that replaces the class's next step


@dataclass(frozen=True)
class Pattern:
    """`rank`: 0 to 100, how near to the first cause such a line is; the highest decides, then the earliest.

    From 65 up the line names its cause; from 45 it is a good sign; below, it only says how the end looked.
    `source`: where the wording is from, a project's source file or an issue. Case does not matter unless `exact`.
    """

    failure: FailureClass
    rank: int
    source: str
    regex: str
    note: str = ""
    exact: bool = False
    compiled: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "compiled", re.compile(self.regex, 0 if self.exact else re.IGNORECASE))


def table(rows: tuple[Row | NotedRow, ...], *, exact: bool = False) -> tuple[Pattern, ...]:
    made = []
    for failure, rank, source, regex, *note in rows:
        made.append(Pattern(failure, rank, source, regex, str(note[0]) if note else "", exact))
    return tuple(made)
