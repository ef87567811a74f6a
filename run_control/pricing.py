"""What a launch will cost, from the project's own price, or from a dated table of prices.

The table has the columns of gpuhunt's catalogue, version 2, and four more: provider, unit, as_of and source. It lies
beside this file; a project may bring its own prices.csv, whose rows come first. A row older than 90 days is used and
shown as stale.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime
import importlib.resources
import io
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridgehead import names
from bridgehead.errors import ProjectError, UsageError
from bridgehead.queue_lines import nearest
from run_control import money, plain_file
from run_control.money import Money, Price, Unpriced

if TYPE_CHECKING:
    from run_control.live_rate import LiveRate

PRICES_FILE = "prices.csv"
STALE_DAYS = 90
_STALE = "stale"  # how the note of such a quote begins
LOCAL = "local"
KAGGLE = "kaggle"
# Of gpuhunt 0.1.34, catalogue version 2, in its order.
GPUHUNT_COLUMNS = (
    "instance_name", "location", "price", "cpu", "memory", "gpu_count", "gpu_name", "gpu_memory", "spot", "disk_size",
    "gpu_vendor", "flags", "cpu_arch", "provider_data",
)  # fmt: skip
OWN_COLUMNS = ("provider", "unit", "as_of", "source")
_NEEDED = ("provider", "instance_name", "price", "unit", "as_of", "source")
_TOO_MANY = "(more)"
_HOURS_A_MONTH = Decimal(730)


@dataclass(frozen=True)
class Row:
    """One offer. `price` is for an hour; `gpu_memory_gb` is of one GPU, 0 when the table does not say.

    `own`: of the project's table, so that it comes before those that Bridgehead brings.
    """

    provider: str
    instance: str
    price: Money
    gpu: str
    gpu_count: int
    gpu_memory_gb: float
    as_of: datetime.date
    source: str
    own: bool = False

    def age_days(self, today: datetime.date) -> int:
        return (today - self.as_of).days


@dataclass(frozen=True)
class Quote:
    """The price of an hour and where it is from; `note` says what a person should know of it, such as its age."""

    price: Price
    source: str = ""
    as_of: str = ""
    note: str = ""

    @property
    def stale(self) -> bool:
        return self.note.startswith(_STALE)


@dataclass(frozen=True)
class Terms:
    """What the project says about money; None: nothing."""

    provider: str = ""
    gpu: str = ""
    price_per_hour: Money | None = None
    storage_per_gb_month: Money | None = None
    egress_per_gb: Money | None = None
    max_price_per_hour: Money | None = None
    max_hours: float | None = None
    max_total: Money | None = None
    balance: Money | None = None
    price_command: tuple[str, ...] = ()  # a program that prints the rate, and its words

    @property
    def stated(self) -> bool:
        """Whether the project says where it pays or how much: only then a launch without a price is refused."""
        return bool(self.provider or self.price_command) or any(
            (self.price_per_hour, self.max_price_per_hour, self.max_total, self.balance)
        )


@dataclass(frozen=True)
class Volume:
    """What a run keeps and sends, in 10^9 bytes. None: not known. `metered`: the store bills for each byte (S3)."""

    stored_gb: float | None = None
    sent_gb: float | None = None
    metered: bool = False


@dataclass(frozen=True)
class Estimate:
    """The parts of what a run will cost, and their sum. `hours` is None when nobody knows how long it takes."""

    quote: Quote
    hours: float | None
    hours_from: str
    time: Price
    storage: Price
    egress: Price
    total: Price

    def to_json(self) -> dict[str, Any]:
        return {
            "rate": money.to_json(self.quote.price),
            "source": self.quote.source,
            "as_of": self.quote.as_of,
            "note": self.quote.note,
            "hours": self.hours,
            "hours_from": self.hours_from,
            "time": money.to_json(self.time),
            "storage": money.to_json(self.storage),
            "egress": money.to_json(self.egress),
            "total": money.to_json(self.total),
        }


def catalogue(project_root: Path | None = None) -> list[Row]:
    """All rows, the project's own first. Raises ProjectError with file, line and column."""
    rows = [] if project_root is None else _own_rows(project_root / PRICES_FILE)
    ours = importlib.resources.files("run_control").joinpath(PRICES_FILE).read_text(encoding="utf-8")
    return [*rows, *read_rows(ours, f"run_control/{PRICES_FILE}")]


def _own_rows(path: Path) -> list[Row]:
    """None without a file; a file that says nothing is a mistake, since somebody meant it to."""
    if not os.path.lexists(path):
        return []
    if path.is_dir():
        raise ProjectError(f"{path.name} is a folder, and no table of prices", hint="give that folder another name")
    try:
        plain_file.size_bytes(path)
        rows = read_rows(path.read_text(encoding="utf-8-sig"), path.name)
    except (OSError, UnicodeDecodeError) as error:
        raise ProjectError(f"{path.name} can't be read: {error}", hint="save it as UTF-8") from None
    if not rows:
        raise ProjectError(f"{path.name}:1: there is no row under the header", hint="add one, or take the file away")
    return [dataclasses.replace(row, own=True) for row in rows]


def read_rows(text: str, file_name: str) -> list[Row]:
    """Raises ProjectError for an unknown or missing column, and for a value that can't be."""
    reader = csv.DictReader(io.StringIO(text), restkey=_TOO_MANY)
    columns = _header(reader, file_name)
    known = (*GPUHUNT_COLUMNS, *OWN_COLUMNS)
    for column in columns:
        if column not in known:
            raise ProjectError(f"{file_name}:1: {column}: unknown column", hint=nearest(column, known))
    for column in _NEEDED:
        if column not in columns:
            raise ProjectError(f"{file_name}:1: {column}: missing column", hint=f"needed: {', '.join(_NEEDED)}")
    rows = []
    try:
        for values in reader:
            rows.append(_row(values, f"{file_name}:{reader.line_num}"))
    except csv.Error as error:
        raise ProjectError(f"{file_name}:{reader.line_num}: not CSV: {error}", hint="one row on each line") from None
    return rows


def _header(reader: csv.DictReader[str], file_name: str) -> list[str]:
    try:
        return list(reader.fieldnames or [])
    except csv.Error as error:
        raise ProjectError(f"{file_name}:1: not CSV: {error}", hint=f"needed: {', '.join(_NEEDED)}") from None


def quote(
    terms: Terms,
    rows: Sequence[Row],
    *,
    gpu_memory_gb: float = 0.0,
    today: datetime.date,
    live: LiveRate | None = None,
) -> Quote:
    """The price of an hour: what the account says now, else the project's own, else a row that fits what is asked for.

    The project's own rows come first. Of those with the fewest GPUs the dearest, since a notebook provider chooses the
    shape: a cap has to hold for each that may come. When the account was asked and did not say, the note tells it, and
    the quote counts as stale.
    """
    if live is not None and live.price is not None:
        return Quote(live.price, "price_command", today.isoformat(), f"as the account says, {live.told_at()}")
    quoted = _without_live(terms, rows, gpu_memory_gb, today)
    if live is None:
        return quoted
    problem = f"price_command gave no rate: {live.problem}"
    if isinstance(quoted.price, Unpriced):
        reason = f"{problem}; {quoted.price.reason}"
        return dataclasses.replace(quoted, price=Unpriced(reason, settled=quoted.price.settled))
    return dataclasses.replace(quoted, note=f"{_STALE}: {problem}; {quoted.note}")


def _without_live(terms: Terms, rows: Sequence[Row], gpu_memory_gb: float, today: datetime.date) -> Quote:
    if terms.price_per_hour is not None:
        return Quote(terms.price_per_hour, names.PROJECT_FILE, "", "as the project file states it")
    if not terms.provider:
        return Quote(Unpriced("the project names no provider ([money] provider)", settled=not terms.stated))
    if terms.provider == LOCAL:
        return Quote(Unpriced("local machine", settled=True))
    if terms.provider == KAGGLE:
        return Quote(Unpriced("Kaggle gives GPU hours by quota and bills nobody", settled=True))
    offered = [row for row in rows if row.provider == terms.provider]
    if not offered:
        providers = {LOCAL, KAGGLE, *(row.provider for row in rows)}
        why = f"no row of {PRICES_FILE} is of provider {terms.provider!r}: {nearest(terms.provider, providers)}"
        return Quote(Unpriced(why))
    if not terms.gpu and gpu_memory_gb:
        return Quote(Unpriced(f"which GPU {terms.provider} gives is not stated: [money] gpu"))
    fitting = [row for row in offered if _fits(row, terms.gpu, gpu_memory_gb)]
    if not fitting:
        have = sorted({row.gpu for row in offered if row.gpu})
        what = f"{terms.gpu} of {gpu_memory_gb:g} GB" if gpu_memory_gb and terms.gpu in have else terms.gpu
        return Quote(Unpriced(f"no figure for {what} on {terms.provider}: {nearest(terms.gpu, have)}"))
    fitting = [row for row in fitting if row.own] or fitting
    fewest = min(row.gpu_count for row in fitting)
    fitting = [row for row in fitting if row.gpu_count == fewest]
    units = {row.price.unit for row in fitting}
    if len(units) > 1:
        return Quote(
            Unpriced(f"rows for {terms.gpu or 'cpu'} on {terms.provider} are in {' and '.join(sorted(units))}")
        )
    return _quoted(max(fitting, key=lambda row: row.price.amount), today)


def estimate(terms: Terms, quoted: Quote, hours: float | None, hours_from: str, volume: Volume) -> Estimate:
    """Rate x hours + storage for those hours + egress. Raises UsageError when they are in two units."""
    time = _time(quoted.price, hours)
    storage = _storage(terms, volume, hours)
    egress = _egress(terms, volume)
    parts = [part for part in (time, storage, egress) if isinstance(part, Money)]
    if isinstance(time, Unpriced):
        total: Price = time
        money.total(parts)  # for the refusal of two units
    else:
        total = money.total((time, storage, egress))
    return Estimate(quoted, hours, hours_from, time, storage, egress, total)


def _time(price: Price, hours: float | None) -> Price:
    if isinstance(price, Unpriced):
        return price
    if hours is None:
        return Unpriced("how long it takes is not known: state expected_hours or max_hours")
    return price.times(hours)


def _storage(terms: Terms, volume: Volume, hours: float | None) -> Price:
    if terms.storage_per_gb_month is None and volume.metered:
        return Unpriced("what the store costs is not stated: [money] storage_per_gb_month")
    if terms.storage_per_gb_month is None:
        return Unpriced("the store is paid by its plan and not by the run", settled=True)
    if volume.stored_gb is None or hours is None:
        return Unpriced("how much it stores is not known: state checkpoint_gb")
    return terms.storage_per_gb_month.times(Decimal(str(volume.stored_gb)) * Decimal(str(hours)) / _HOURS_A_MONTH)


def _egress(terms: Terms, volume: Volume) -> Price:
    if terms.egress_per_gb is None:
        return Unpriced("no price of what leaves the VM is stated ([money] egress_per_gb)", settled=True)
    if volume.sent_gb is None:
        return Unpriced("how much it sends is not known: state output_gb")
    return terms.egress_per_gb.times(volume.sent_gb)


def _fits(row: Row, gpu: str, gpu_memory_gb: float) -> bool:
    if not gpu:
        return row.gpu_count == 0
    return _same_gpu(row.gpu, gpu) and (row.gpu_memory_gb >= gpu_memory_gb or row.gpu_memory_gb == 0)


def _same_gpu(one: str, other: str) -> bool:
    """`RTX PRO 6000` and `RTXPRO6000` are one; `A100` and `a100-sxm4` are two."""
    return re.sub(r"[^a-z0-9]", "", one.lower()) == re.sub(r"[^a-z0-9]", "", other.lower())


def _quoted(row: Row, today: datetime.date) -> Quote:
    age = row.age_days(today)
    note = f"{_STALE}: {age} days old (over {STALE_DAYS})" if age > STALE_DAYS else f"{age} days old"
    return Quote(row.price, row.source, row.as_of.isoformat(), note)


def _row(values: dict[str, Any], place: str) -> Row:
    if _TOO_MANY in values:
        raise ProjectError(f"{place}: more cells than columns", hint='quotes around a cell with a comma: "1,5"')
    try:
        price = money.parse(f"{values['price']} {values['unit']}")
        if price.amount == 0:
            raise UsageError("a price of 0 is no price", hint="leave the row out: what is not known is unpriced")
        return Row(
            provider=str(values["provider"]),
            instance=str(values["instance_name"]),
            price=price,
            gpu=str(values.get("gpu_name") or ""),
            gpu_count=int(values.get("gpu_count") or 0),
            gpu_memory_gb=float(values.get("gpu_memory") or 0),
            as_of=datetime.date.fromisoformat(str(values["as_of"])),
            source=_source(values),
        )
    except UsageError as error:
        raise ProjectError(f"{place}: {error.message}", hint=error.hint) from None
    except (ValueError, TypeError, InvalidOperation) as error:
        raise ProjectError(f"{place}: {error}", hint="as_of is a date such as 2026-09-27") from None


def _source(values: dict[str, Any]) -> str:
    source = str(values["source"] or "").strip()
    if not source:
        raise UsageError("source: a price needs one", hint="where and when the figure was seen")
    return source


def providers(rows: Iterable[Row]) -> list[str]:
    """Every provider that can be named, for completion and for the nearest name."""
    return sorted({LOCAL, KAGGLE, *(row.provider for row in rows)})
