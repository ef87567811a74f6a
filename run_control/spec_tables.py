"""[money] and [data.NAME] of bridgehead.toml, and the keys of a stage that say what it may cost and what it is of."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from bridgehead.errors import UsageError
from run_control import money
from run_control.command_words import words_of
from run_control.money import Money
from run_control.pricing import Terms

_FINGERPRINT = re.compile(r"[0-9a-f]{64}\Z")
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,63}\Z")
_SHOWN = 5
_PLAIN = "text, finite numbers, true/false, lists and tables; write a date as text"
Member = int | str


def _amount(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f'an amount and its unit as text, such as "{value:g} CU" or "{value:g} USD"')
    if not isinstance(value, str):
        return value
    try:
        return money.parse(value).to_json()
    except UsageError as error:
        raise ValueError(f"{error.message}; {error.hint}") from None


def _hours(value: object) -> object:
    if isinstance(value, str):
        raise ValueError(f"hours as a number, such as 1.5; this is {value[:40]!r}")
    return value


def _fingerprint(value: str) -> str:
    text = value.removeprefix("sha256:")
    if value and not _FINGERPRINT.match(text):
        raise ValueError("a SHA-256: 64 hexadecimal digits in lower case")
    return text


def _tag(value: str) -> str:
    if not _TAG.match(value):
        raise ValueError("1 to 64 letters, digits and ._:/-")
    return value


class NotPlainError(ValueError):
    """`keys` lead from the config to the value."""

    def __init__(self, message: str, keys: tuple[str, ...]) -> None:
        super().__init__(message)
        self.keys = keys


def plain_config(value: dict[str, Any]) -> dict[str, Any]:
    """A config as JSON can hold it: anything else would reach the run as another value than was written.

    Raises NotPlainError, which says which of its keys it is (see `places`).
    """
    for keys, item in _leaves(value, ()):
        plain = item is None or isinstance(item, str | bool | int)
        if not plain and not (isinstance(item, float) and math.isfinite(item)):
            raise NotPlainError(f"{str(item)[:40]} does not fit: {_PLAIN}", keys)
    return value


def places(item: dict[str, Any]) -> list[str]:
    """The keys that lead to a mistake that pydantic found."""
    keys = [str(part) for part in item["loc"] if not str(part).startswith("function-")]
    error = item.get("ctx", {}).get("error")
    return [*keys, *error.keys] if isinstance(error, NotPlainError) else keys


def _leaves(value: Any, at: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if inner is None:
        yield at, value
        return
    for key, item in inner:
        yield from _leaves(item, (*at, str(key)))


def _inside(value: str) -> str:
    if value.startswith("/") or "\\" in value or ".." in value.split("/") or not value.isprintable():
        raise ValueError("a path inside the project folder")
    return value


def _on_vm(value: str) -> str:
    if value and (not value.startswith("/") or ".." in value.split("/") or not value.isprintable()):
        raise ValueError("an absolute path on the VM")
    return value


Amount = Annotated[str, BeforeValidator(_amount)]
Tag = Annotated[str, AfterValidator(_tag)]
Hours = Annotated[float, BeforeValidator(_hours), Field(gt=0, le=100_000)]
Gigabytes = Annotated[float, Field(gt=0, le=1_000_000)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Caps(_Table):
    """What one run may cost and take."""

    gpu: str | None = None
    max_price_per_hour: Amount | None = None
    max_hours: Hours | None = None
    max_total: Amount | None = None


class MoneyTable(Caps):
    """[money]"""

    provider: str = ""
    price_per_hour: Amount | None = None
    storage_per_gb_month: Amount | None = None
    egress_per_gb: Amount | None = None
    balance: Amount | None = None
    price_command: Annotated[list[str], BeforeValidator(words_of)] = Field(default_factory=list)

    @model_validator(mode="after")
    def _one_unit(self) -> Self:
        _check_units({name: getattr(self, name) for name in _AMOUNTS if getattr(self, name)})
        return self

    def terms(self, stage: StageLimits | None = None) -> Terms:
        """What holds for a run of this stage: its own caps come before the project's. Raises UsageError: two units."""
        found = {name: _money(getattr(self, name)) for name in _AMOUNTS}
        amounts = {name: amount.to_json() for name, amount in found.items() if amount is not None}
        gpu, max_hours = self.gpu, self.max_hours
        if stage is not None:
            own = {name: _money(value) for name in _CAPS if (value := getattr(stage, name)) is not None}
            amounts |= {f"the stage's {name}": amount.to_json() for name, amount in own.items() if amount is not None}
            found |= own
            gpu, max_hours = stage.gpu if stage.gpu is not None else gpu, stage.max_hours or max_hours
        try:
            _check_units(amounts)
        except ValueError as error:
            raise UsageError(str(error), hint="state prices and caps of a run in one unit") from None
        return dataclasses.replace(
            Terms(self.provider.lower(), gpu or "", max_hours=max_hours, price_command=tuple(self.price_command)),
            **found,  # type: ignore[arg-type]
        )


class StageLimits(Caps):
    """The keys of [stages.NAME] about money, data and identity."""

    expected_hours: Hours | None = None
    checkpoint_gb: Gigabytes | None = None  # of one checkpoint
    output_gb: Gigabytes | None = None
    data: str = ""  # of [data.NAME]
    tags: list[Tag] = Field(default_factory=list)


class DataTable(_Table):
    """[data.NAME]: a pool that runs are of, and which part of it trains and which evaluates."""

    fingerprint: Annotated[str, AfterValidator(_fingerprint)] = ""
    path: Annotated[str, AfterValidator(_inside)] = ""  # in the project folder: its hashes are its fingerprint
    vm_path: Annotated[str, AfterValidator(_on_vm)] = ""
    train: list[Member] = Field(default_factory=list)  # ids or groups
    train_key: str = ""  # the key of a stage's config that holds them instead
    evaluation: list[Member] = Field(default_factory=list)

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if self.path and self.vm_path:
            raise ValueError("path is on this laptop, vm_path on the VM: one of them")
        if self.vm_path and not self.fingerprint:
            raise ValueError("vm_path needs a fingerprint: what lies there is compared with it")
        overlap = overlapping(self.train, self.evaluation)
        if overlap:
            raise ValueError(f"train and evaluation overlap in {told(overlap)}")
        return self


def overlapping(train: list[Member], evaluation: list[Member]) -> list[str]:
    """What is in both; 1 and "1" are one."""
    return sorted({str(item) for item in train} & {str(item) for item in evaluation})


def told(items: list[str]) -> str:
    """The first few, and how many there are."""
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + more


_CAPS = ("max_price_per_hour", "max_total")
_AMOUNTS = ("price_per_hour", "storage_per_gb_month", "egress_per_gb", *_CAPS, "balance")


def _money(text: str | None) -> Money | None:
    return money.parse(text) if text is not None else None


def _check_units(amounts: dict[str, str]) -> None:
    """Raises ValueError when they are in more than one."""
    by_unit: dict[str, str] = {}
    for name, text in amounts.items():
        by_unit.setdefault(money.parse(text).unit, name)
    if len(by_unit) > 1:
        told_units = ", ".join(f"{name} in {unit}" for unit, name in by_unit.items())
        raise ValueError(f"amounts in {len(by_unit)} units are never mixed: {told_units}")


def budget_hours(terms: Terms, rate: Money | None, fixed: Money | None) -> Decimal | None:
    """How long a run may be running by its caps; None without one. `fixed`: storage and egress, which come on top."""
    caps = [Decimal(str(terms.max_hours))] if terms.max_hours else []
    if terms.max_total is not None and rate is not None and rate.amount > 0:
        left = terms.max_total - fixed if fixed is not None else terms.max_total
        caps.append(max(Decimal(0), left.amount) / rate.amount)
    return min(caps, default=None)
