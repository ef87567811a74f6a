"""Amounts of money, and the absence of one. A price that is not known is never 0: it is Unpriced, with the reason."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from bridgehead.errors import UsageError
from bridgehead.hourly import plain, short
from bridgehead.queue_lines import nearest

COMPUTE_UNITS = "CU"  # what Colab counts in
UNITS = (COMPUTE_UNITS, "USD", "EUR", "GBP", "CHF", "JPY", "CNY", "INR", "CAD", "AUD", "BRL", "KRW", "SEK", "PLN")
_AMOUNT = re.compile(r"(-?)(\d{1,12}(?:\.\d{1,9})?)\s*([A-Za-z$€£]*)\Z")
_SIGNS = {"$": "USD", "€": "EUR", "£": "GBP"}


@dataclass(frozen=True)
class Money:
    """`amount` of `unit`: a currency, or Colab's compute units. Two units are never added, compared or converted."""

    amount: Decimal
    unit: str

    def __str__(self) -> str:
        return f"{short(self.amount)} {self.unit}"

    def __add__(self, other: Money) -> Money:
        return Money(self.amount + _same_unit(self, other).amount, self.unit)

    def __sub__(self, other: Money) -> Money:
        return Money(self.amount - _same_unit(self, other).amount, self.unit)

    def __gt__(self, other: Money) -> bool:
        return self.amount > _same_unit(self, other).amount

    def times(self, factor: Decimal | float) -> Money:
        """For so many hours, gigabytes or months."""
        return Money(self.amount * Decimal(str(factor)), self.unit)

    def to_json(self) -> str:
        """`1.07 CU`, and equal amounts are equal text: 1.50 and 1.5 are one."""
        return f"{plain(self.amount)} {self.unit}"


@dataclass(frozen=True)
class Unpriced:
    """Why there is no amount. `settled`: nobody is billed for it, so there is nothing to find out."""

    reason: str
    settled: bool = False

    def __str__(self) -> str:
        return f"unpriced: {self.reason}"


Price = Money | Unpriced


def parse(text: str) -> Money:
    """`1.07 CU` or `0.50 USD`. Raises UsageError: no amount, no unit, an unknown unit, or a negative amount."""
    match = _AMOUNT.match(text.strip())
    if match is None:
        raise UsageError(f"not an amount of money: {text[:40]!r}", hint='an amount and its unit, such as "1.07 CU"')
    minus, amount, unit = match.groups()
    unit = _SIGNS.get(unit, unit)
    if not unit:
        raise UsageError(f"{text.strip()[:40]!r} says no unit", hint=f'"{amount} USD", or "{amount} CU" on Colab')
    if unit not in UNITS:
        guess = unit.upper() if unit.upper() in UNITS else ""
        hint = f'did you mean "{amount} {guess}"?' if guess else nearest(unit, UNITS)
        raise UsageError(f"{unit!r} is no unit of money", hint=hint)
    if minus:
        raise UsageError(f"{text.strip()[:40]!r} is negative: it can't be", hint="leave it out for no cap")
    return Money(Decimal(amount), unit)


def total(parts: Iterable[Price]) -> Price:
    """The sum of what is known. Unpriced when a part is that somebody may be billed for, or when all are.

    Raises UsageError for parts in two units.
    """
    found: Money | None = None
    settled = "nothing here is billed"
    for part in parts:
        if isinstance(part, Unpriced):
            if not part.settled:
                return part
            settled = part.reason
        else:
            found = part if found is None else found + part
    return found if found is not None else Unpriced(settled, settled=True)


def to_json(price: Price | None) -> Any:
    """Text for money, `{"unpriced": why}` for none, null where nothing was asked."""
    if price is None:
        return None
    return price.to_json() if isinstance(price, Money) else {"unpriced": price.reason, "settled": price.settled}


def _same_unit(one: Money, other: Money) -> Money:
    if one.unit != other.unit:
        raise UsageError(
            f"{one} and {other} are in two units, which are never added or compared",
            hint="state prices and caps of a run in one unit",
        )
    return other
