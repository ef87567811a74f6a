"""[money] price_command: the rate that the account says, and what holds when it says none."""

from __future__ import annotations

import datetime
import json
import sys
import time
from pathlib import Path

import pytest

from bridgehead import names
from bridgehead.errors import UsageError
from run_control import live_rate, money, plan, pricing, project_file
from run_control.live_rate import LiveRate
from run_control.money import Unpriced
from run_control.pricing import Quote, Terms
from run_control.project import Project

HEAD = "provider,instance_name,price,gpu_count,gpu_name,gpu_memory,unit,as_of,source\n"
TODAY = datetime.date(2026, 11, 30)


def _command(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def _quote(terms: Terms, live: LiveRate, text: str = "lab,a,2,1,T4,15,USD,2026-11-01,seen\n") -> Quote:
    return pricing.quote(terms, pricing.read_rows(HEAD + text, "prices.csv"), today=TODAY, live=live)


def test_it_hears_provider_and_gpu_and_its_last_line_counts(tmp_path: Path) -> None:
    code = f"import os; print('looking'); print(len(os.environ[{names.ENV_GPU!r}]), 'USD')"
    found = live_rate.ask(tmp_path, Terms(provider="lab", gpu="A100", price_command=_command(code)))
    assert (found.price, found.problem) == (money.parse("4 USD"), "")


SAYS_NONE = {
    "no amount": ("print('token=SECRET')", "no amount and unit"),
    "no unit": ("print('3.99')", "no amount and unit"),
    "nothing": ("pass", "no amount and unit"),
    "free": ("print('0 USD')", "a price of 0 is no price"),
    "a failure": ("raise SystemExit('SECRET')", "it ended with 1"),
    "it hangs": ("import time; time.sleep(600)", "it did not end"),
}


@pytest.mark.parametrize("case", SAYS_NONE)
def test_what_is_no_rate_is_told_without_what_it_printed(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_rate, "TIMEOUT_S", 1.0 if case == "it hangs" else 60.0)
    code, words = SAYS_NONE[case]
    found = live_rate.ask(tmp_path, Terms(price_command=_command(code)))
    assert found.price is None and words in found.problem and "SECRET" not in found.problem


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    found = live_rate.ask(tmp_path, Terms(price_command=("no-such-program-here",)))
    assert found.price is None and found.problem


def test_it_is_asked_once_for_all_that_is_planned_together(tmp_path: Path) -> None:
    code = f"open({str(tmp_path / 'asked')!r}, 'a').write('x'); print('1 USD')"
    terms = Terms(provider="lab", gpu="T4", price_command=_command(code))
    assert live_rate.of(tmp_path, terms) == live_rate.of(tmp_path, terms)
    assert (tmp_path / "asked").read_text() == "x"
    assert live_rate.of(tmp_path, Terms(provider="lab", gpu="T4")) is None


def test_what_the_account_says_comes_before_the_project_and_the_table() -> None:
    live = LiveRate(money.parse("3 USD"), "", time.time())
    found = _quote(Terms(provider="lab", gpu="T4", price_per_hour=money.parse("1 USD")), live)
    assert found.price == money.parse("3 USD") and not found.stale and found.source == "price_command"


def test_when_it_says_none_the_table_holds_and_counts_as_stale() -> None:
    found = _quote(Terms(provider="lab", gpu="T4"), LiveRate(None, "it ended with 1", time.time()))
    assert found.price == money.parse("2 USD") and found.stale and "it ended with 1" in found.note


def test_when_nobody_says_one_it_is_unpriced_with_both_reasons() -> None:
    found = _quote(
        Terms(provider="lab", gpu="H9", price_command=("x",)), LiveRate(None, "it ended with 1", time.time())
    )
    assert isinstance(found.price, Unpriced) and not found.price.settled
    assert "it ended with 1" in found.price.reason and "no figure for H9" in found.price.reason


def test_a_launch_is_planned_with_it_and_a_cap_in_another_unit_is_refused(fresh: Project) -> None:
    text = fresh.file.read_text()
    words = json.dumps(_command("print('1.5 USD')"))
    table = f"\n[money]\nmax_hours = 2\nprice_command = {words}\n"
    fresh.file.write_text(text + table)
    whole = project_file.load_whole(fresh.root)
    request = plan.PinRequest(whole.view.stages["pretrain"], {})
    made = plan.make(fresh.root, whole, request)
    assert made.refusal is None and made.estimate is not None and made.estimate.total == money.parse("3 USD")
    fresh.file.write_text(text + table + 'max_total = "1 CU"\n')
    refused = plan.make(fresh.root, project_file.load_whole(fresh.root), request).refusal
    assert isinstance(refused, UsageError) and "USD" in refused.message and "CU" in refused.message


def test_words_that_cannot_be_split_are_told_with_file_and_key(fresh: Project) -> None:
    fresh.file.write_text(fresh.file.read_text() + '\n[money]\nprice_command = "ask \'me"\n')
    with pytest.raises(UsageError, match=r"money\.price_command"):
        project_file.load_whole(fresh.root)
