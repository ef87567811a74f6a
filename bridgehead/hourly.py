"""What so much time costs at a rate of an hour, and amounts as text: a VM and the laptop both do it, so they agree."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Decimal

_RATE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?) ([A-Z]{2,3})\Z")
_SECONDS_AN_HOUR = Decimal(3600)
_MILLIONTH = Decimal("0.000001")
MOST_S = 1e10  # 317 years: more is no time but a stage that said odd totals, and may not fit the digits of a Decimal


def cost(rate: str, seconds: float) -> str:
    """`0.31 CU` at the rate of a run's pins (`1.07 CU`, of an hour). Raises nothing.

    "" where there is no such rate, or `seconds` are no time (negative, not finite, absurdly many): never 0 instead.
    """
    match = _RATE.match(rate)
    if match is None or not 0 <= seconds <= MOST_S:
        return ""
    return f"{plain(for_time(Decimal(match[1]), seconds))} {match[2]}"


def for_time(an_hour: Decimal, seconds: float) -> Decimal:
    """To a millionth of the unit. `seconds` beyond MOST_S count as MOST_S, since more may not fit the digits."""
    seconds = min(seconds, MOST_S)
    return (an_hour * (Decimal(str(round(seconds, 3))) / _SECONDS_AN_HOUR)).quantize(_MILLIONTH)


def plain(amount: Decimal) -> str:
    """Without exponent and trailing zeros."""
    text = format(amount, "f")
    return (text.rstrip("0").rstrip(".") or "0") if "." in text else text


def short(amount: Decimal) -> str:
    """Two places, or two digits that count where it is less than a hundredth."""
    if amount == 0 or abs(amount) >= Decimal("0.01"):
        return plain(amount.quantize(Decimal("0.01"), ROUND_HALF_UP))
    places = -amount.adjusted() + 1
    return plain(amount.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP))
