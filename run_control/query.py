"""`bridgehead query`: every run of the project as one flat row, filtered and ordered by a line that a person types.

    stage=pretrain loss<0.4 config.seed=0 order by hours desc limit 5

Terms all have to hold. A name is looked up among what the run is and was (state, step, hours …), then its metrics, its
results and its config; `config.seed`, `results.effect` and `metrics.loss` say which one.
"""

from __future__ import annotations

import csv
import difflib
import io
import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bridgehead import files, names
from bridgehead.errors import UsageError
from bridgehead.queue_lines import nearest
from run_control import config_keys, money, project_file, views
from run_control.project import Project

OPERATORS = ("<=", ">=", "!=", "=", "<", ">", "~")
_ORDERING = ("<", ">", "<=", ">=")  # of numbers alone
_LIKE = 0.75  # so much alike a name is the other one, misspelt
_TERM = re.compile(r"([A-Za-z_][\w.-]*)(<=|>=|!=|=|<|>|~)(.*)\Z", re.DOTALL)
_PLAIN = (
    "run_id", "stage", "state", "attempt", "vm_id", "exit_code", "failure_class", "reason", "step", "total_steps",
    "epoch", "total_epochs", "created", "eta_s",
)  # fmt: skip
_COUNTED = ("hours", "cost", "cost_unit")
_GROUPS = ("metrics", "results", "config")
_DEEPEST = 3
_EXAMPLE = 'bridgehead query "stage=pretrain loss<0.4 order by hours"'

Row = dict[str, Any]  # "stage", "hours", "metrics.loss", "config.seed" → a number, a text, a truth, or None


@dataclass(frozen=True)
class Term:
    name: str
    operator: str
    value: str


@dataclass(frozen=True)
class Query:
    terms: list[Term] = field(default_factory=list)
    order_by: str = ""
    descending: bool = False
    limit: int | None = None

    @property
    def columns(self) -> list[str]:
        """What the answer shows beside the run: every name that was asked about, once."""
        asked = [term.name for term in self.terms] + ([self.order_by] if self.order_by else [])
        return list(dict.fromkeys(["run_id", "state", *asked]))


def parse(text: str) -> Query:
    """Raises UsageError that says where the line can't be read."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"the query's quotes do not pair: {error}", hint=_EXAMPLE) from None
    words, limit = _take_limit(words)
    words, order_by, descending = _take_order(words)
    terms = []
    for word in (word for word in words if word.lower() != "and"):
        match = _TERM.match(word)
        if match is None:
            raise UsageError(
                f"not a term: {word[:60]!r}", hint=f"name, one of {' '.join(OPERATORS)}, value; {_EXAMPLE}"
            )
        term = Term(match[1], match[2], match[3])
        if term.operator in _ORDERING:
            _number(term)
        terms.append(term)
    return Query(terms, order_by, descending, limit)


def rows(project: Project) -> list[Row]:
    """Every run, oldest first."""
    return [row(project, view) for view in views.runs(project)]


def check_names(project: Project, query: Query) -> None:
    """For a project without runs, where any name may be a metric's: raises UsageError for one that is plainly misspelt.

    Names of metrics and results are not known before there are any.
    """
    stages = project_file.load(project.root).stages.values()
    known = {*_PLAIN, *_COUNTED, *(key for stage in stages for key in config_keys.known(stage))}
    for name in query.columns:
        if name not in known and difflib.get_close_matches(name.lower(), known, n=1, cutoff=_LIKE):
            raise UsageError(f"no run has a {name!r}", hint=_nearest(name, known))


def row(project: Project, view: views.RunView) -> Row:
    """One run."""
    told = view.to_json()
    found: Row = {name: told[name] for name in _PLAIN}
    folder = project.run(view.run_id)
    ended, record, results = (files.read_json(folder / name) for name in (names.EXIT, names.RUN_RECORD, names.RESULTS))
    found["hours"] = _hours(ended)
    found["cost"], found["cost_unit"] = _cost(told.get("cost"))
    spec = record.get("spec") if isinstance(record, dict) else None
    groups = {"metrics": view.metrics, "results": results, "config": (spec or {}).get("config")}
    for group, values in groups.items():
        found.update(_flat(group, values, 1))
    return found


def answer(found: Sequence[Row], query: Query) -> list[Row]:
    """The rows that fit, ordered. Raises UsageError for a name that no run has."""
    known = sorted({name for row in found for name in row})
    for name in query.columns:
        if found and not any(_key(row, name) for row in found):
            short = {item.rpartition(".")[2] for item in known}
            raise UsageError(f"no run has a {name!r}", hint=_nearest(name, {*known, *short}))
    _one_unit(found, query)
    kept = [row for row in found if all(_fits(value_of(row, term.name), term) for term in query.terms)]
    if query.order_by:
        kept.sort(key=lambda row: _rank(value_of(row, query.order_by)), reverse=query.descending)
        kept.sort(key=lambda row: value_of(row, query.order_by) is None)  # what has no value comes last either way
    return kept[: query.limit]


def _nearest(name: str, known: set[str]) -> str:
    """The names of which it is a word (`class` of `failure_class`) before those that are spelt much alike."""
    holding = sorted(item for item in known if name.lower() in re.split(r"[._-]", item.lower()))
    return f"did you mean {' or '.join(holding[:3])}?" if holding else nearest(name, known)


def value_of(row: Row, name: str) -> Any:
    return row.get(_key(row, name))


def as_csv(found: Sequence[Row], columns: Sequence[str]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in found:
        writer.writerow(["" if value_of(row, name) is None else value_of(row, name) for name in columns])
    return out.getvalue()


def _flat(prefix: str, values: Any, depth: int) -> Row:
    if isinstance(values, dict) and depth <= _DEEPEST:
        found: Row = {}
        for name, value in values.items():
            found.update(_flat(f"{prefix}.{name}", value, depth + 1))
        return found
    return {prefix: values} if isinstance(values, str | int | float | bool) else {}


def _hours(ended: Any) -> float | None:
    try:
        return round(max(0.0, float(ended["ended"]) - float(ended["started"])) / 3600, 4)
    except (TypeError, KeyError, ValueError):
        return None


def _cost(told: Any) -> tuple[float | None, str | None]:
    """Amount and unit; an unpriced run has neither, and never 0."""
    try:
        spent = money.parse(told["so_far"])
    except (TypeError, KeyError, AttributeError, UsageError):
        return None, None
    return float(spent.amount), spent.unit


def _one_unit(found: Sequence[Row], query: Query) -> None:
    """Raises UsageError where amounts in several units would be compared."""
    units = sorted({str(row["cost_unit"]) for row in found if row.get("cost_unit")})
    asked = {"cost"} & {*(term.name for term in query.terms), query.order_by}
    if asked and len(units) > 1 and "cost_unit" not in {term.name for term in query.terms}:
        raise UsageError(f"costs are in {' and '.join(units)}, which do not compare", hint=f"cost_unit={units[0]} …")


def _key(row: Row, name: str) -> str:
    """The row's own name for it; empty when it has none."""
    options = [name, *(f"{group}.{name}" for group in _GROUPS)]
    return next((option for option in options if option in row), "")


def _fits(value: Any, term: Term) -> bool:
    """Numbers compare as numbers, all else as text; what is not there fits nothing, not even `!=`."""
    if value is None:
        return False
    if term.operator == "~":
        return term.value.lower() in str(value).lower()
    mine: Any = str(value).lower() if isinstance(value, bool) else value
    wanted: Any = term.value.lower() if isinstance(value, bool) else term.value
    if isinstance(mine, int | float):
        wanted = _number(term)
    if term.operator in ("=", "!="):
        return bool((mine == wanted) is (term.operator == "="))
    if isinstance(mine, str):
        raise UsageError(f"{term.name} is text here: {term.operator} compares numbers", hint=f"{term.name}={value}")
    return bool({"<": mine < wanted, ">": mine > wanted, "<=": mine <= wanted, ">=": mine >= wanted}[term.operator])


def _number(term: Term) -> float:
    try:
        number = float(term.value)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise UsageError(f"{term.name} is a number, and {term.value[:40]!r} is none", hint=_EXAMPLE)
    return number


def _rank(value: Any) -> tuple[int, float, str]:
    if isinstance(value, int | float) and not math.isnan(value):
        return (0, float(value), "")
    return (1, 0.0, str(value))


def _take_limit(words: list[str]) -> tuple[list[str], int | None]:
    if len(words) < 2 or words[-2].lower() != "limit":
        return words, None
    if not words[-1].isdecimal() or int(words[-1]) < 1:
        raise UsageError(f"limit {words[-1]!r} is no number from 1", hint="limit 10")
    return words[:-2], int(words[-1])


def _take_order(words: list[str]) -> tuple[list[str], str, bool]:
    lowered = [word.lower() for word in words]
    for place in range(len(words) - 1):
        if lowered[place : place + 2] == ["order", "by"]:
            rest = words[place + 2 :]
            if not rest or len(rest) > 2 or (len(rest) == 2 and rest[1].lower() not in ("asc", "desc")):
                raise UsageError("order by takes one name, then asc or desc", hint="order by hours desc")
            return words[:place], rest[0], len(rest) == 2 and rest[1].lower() == "desc"
    return words, "", False
