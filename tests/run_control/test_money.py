"""Money: an amount with its unit, never mixed, never 0 for want of a price."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridgehead.errors import UsageError
from run_control import money
from run_control.money import Money, Unpriced

BAD = {
    "no unit": ("5", "says no unit"),
    "negative": ("-5 USD", "is negative"),
    "lower case": ("5 usd", "no unit of money"),
    "hours": ("5 h", "no unit of money"),
    "words": ("cheap", "not an amount"),
    "nothing": ("", "not an amount"),
    "nan": ("nan USD", "not an amount"),
}


@pytest.mark.parametrize("case", BAD)
def test_an_amount_that_can_not_be_is_refused_in_words(case: str) -> None:
    text, words = BAD[case]
    with pytest.raises(UsageError, match=words) as caught:
        money.parse(text)
    assert caught.value.hint


def test_a_unit_in_lower_case_is_guessed() -> None:
    with pytest.raises(UsageError) as caught:
        money.parse("5 usd")
    assert '"5 USD"' in caught.value.hint


@settings(deadline=None)
@given(st.decimals(min_value=0, max_value=10**9, places=4, allow_nan=False), st.sampled_from(money.UNITS))
def test_what_is_written_is_read_back(amount: Decimal, unit: str) -> None:
    written = Money(amount, unit).to_json()
    assert money.parse(written) == Money(amount, unit) and money.parse(written).to_json() == written


def test_equal_amounts_are_equal_text() -> None:
    assert money.parse("1.50 CU").to_json() == money.parse("1.5CU").to_json() == "1.5 CU"


def test_two_units_are_never_added_or_compared() -> None:
    one, other = money.parse("1 CU"), money.parse("1 USD")
    for mixing in (lambda: one + other, lambda: one - other, lambda: one > other, lambda: money.total((one, other))):
        with pytest.raises(UsageError, match="two units"):
            mixing()


def test_a_sum_with_an_unknown_part_is_unknown_and_one_that_nobody_bills_counts_for_nothing() -> None:
    known, settled = money.parse("2 USD"), Unpriced("local machine", settled=True)
    assert money.total((known, Unpriced("no figure"))) == Unpriced("no figure")
    assert money.total((known, settled)) == known
    assert money.total((settled, settled)) == settled


def test_small_amounts_keep_two_digits_that_count() -> None:
    assert str(money.parse("0.000434 USD")) == "0.00043 USD" and str(money.parse("12.345 USD")) == "12.35 USD"
