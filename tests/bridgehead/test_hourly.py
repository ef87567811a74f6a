"""What time costs at a rate of an hour."""

from __future__ import annotations

import math

import pytest

from bridgehead import hourly
from run_control import money


@pytest.mark.parametrize(
    ("rate", "seconds", "cost"),
    [("1.2 CU", 1800.0, "0.6 CU"), ("2 USD", 3600, "2 USD"), ("1.07 CU", 1.0, "0.000297 CU"), ("1.2 CU", 0, "0 CU")],
)
def test_a_rate_times_hours(rate: str, seconds: float, cost: str) -> None:
    assert hourly.cost(rate, seconds) == cost


@pytest.mark.parametrize("rate", ["", "free", "CU", "nan CU", "-1 CU", "1.2CU/h", "1 CU\n", "1e999 CU"])
def test_what_is_no_rate_costs_nothing_that_could_be_told(rate: str) -> None:
    assert hourly.cost(rate, 3600.0) == ""


@pytest.mark.parametrize("seconds", [math.inf, math.nan, -1.0, 1e25])
def test_what_is_no_time_costs_nothing_that_could_be_told(seconds: float) -> None:
    assert hourly.cost("999999999999 CU", seconds) == ""


@pytest.mark.parametrize("unit", money.UNITS)
def test_it_reads_every_rate_that_is_pinned(unit: str) -> None:
    assert hourly.cost(money.parse(f"1.50 {unit}").to_json(), 7200.0) == f"3 {unit}"
