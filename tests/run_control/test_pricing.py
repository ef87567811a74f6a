"""The price of a launch: from the project, from the dated table, or not known, with the reason."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from bridgehead.errors import ProjectError
from run_control import money, pricing
from run_control.money import Money, Unpriced
from run_control.pricing import Quote, Terms, Volume

TODAY = datetime.date(2026, 11, 30)
HEAD = "provider,instance_name,price,gpu_count,gpu_name,gpu_memory,unit,as_of,source\n"


def _quote(terms: Terms, text: str = "", **more: float) -> Quote:
    rows = pricing.read_rows(HEAD + text, "prices.csv") if text else pricing.catalogue()
    return pricing.quote(terms, rows, today=TODAY, **more)


def test_the_table_that_comes_along_has_a_date_and_a_source_on_each_row() -> None:
    rows = pricing.catalogue()
    assert {row.price.unit for row in rows if row.provider == "colab"} == {"CU"}
    assert {row.price.unit for row in rows if row.provider != "colab"} == {"USD"}
    for row in rows:
        assert len(row.source) > 10 and row.as_of <= TODAY and row.price.amount > 0


@pytest.mark.parametrize(
    ("provider", "gpu", "price"),
    [("runpod", "H100", "3.99 USD"), ("lambda", "A10", "1.29 USD"), ("aws", "H100", "55.04 USD")],
)
def test_common_offers_are_quoted_by_provider_and_gpu(provider: str, gpu: str, price: str) -> None:
    found = _quote(Terms(provider=provider, gpu=gpu))
    assert found.price == money.parse(price) and found.as_of.startswith("2026-")


def test_of_one_gpu_and_of_eight_the_one_is_quoted() -> None:
    text = "x,a,20,8,A100,40,USD,2026-09-01,s\nx,b,2,1,A100,40,USD,2026-09-01,s\n"
    assert _quote(Terms(provider="x", gpu="A100"), text).price == money.parse("2 USD")


def test_its_columns_are_gpuhunts_and_four_more() -> None:
    text = (Path(pricing.__file__).parent / pricing.PRICES_FILE).read_text()
    columns = set(text.splitlines()[0].split(","))
    assert columns == {*pricing.GPUHUNT_COLUMNS, *pricing.OWN_COLUMNS}


def test_a_row_of_the_table_is_quoted_with_its_age_and_is_stale_after_90_days() -> None:
    fresh = _quote(Terms(provider="colab", gpu="T4"))
    assert fresh.price == money.parse("1.07 CU") and fresh.as_of == "2026-09-27" and not fresh.stale
    old = _quote(Terms(provider="colab", gpu="L4"))
    assert isinstance(old.price, Money) and old.stale and "stale" in old.note


def test_the_day_on_which_it_becomes_stale() -> None:
    line = "colab,a,1,1,T4,15,CU,2026-09-01,seen\n"
    rows = pricing.read_rows(HEAD + line, "p")
    for days, stale in ((90, False), (91, True)):
        today = datetime.date(2026, 9, 1) + datetime.timedelta(days=days)
        assert pricing.quote(Terms(provider="colab", gpu="T4"), rows, today=today).stale is stale


def test_the_projects_own_price_comes_first() -> None:
    terms = Terms(provider="colab", gpu="T4", price_per_hour=money.parse("1.2 CU"))
    assert _quote(terms).price == money.parse("1.2 CU")


def test_where_a_provider_chooses_the_shape_the_dearest_that_fits_is_quoted() -> None:
    text = "colab,a,11,1,A100,40,CU,2026-09-01,s\ncolab,b,13,1,A100,80,CU,2026-09-01,s\n"
    assert _quote(Terms(provider="colab", gpu="a100"), text).price == money.parse("13 CU")
    assert isinstance(_quote(Terms(provider="colab", gpu="A100"), text, gpu_memory_gb=96).price, Unpriced)


UNKNOWN = {
    "no figure": (Terms(provider="colab", gpu="H100"), "no figure for H100"),
    "a provider that no row is of": (Terms(provider="colabb"), "did you mean colab"),
    "which GPU": (Terms(provider="colab"), "which GPU colab gives is not stated"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_is_not_known_is_unpriced_and_never_0(case: str) -> None:
    terms, words = UNKNOWN[case]
    price = _quote(terms, gpu_memory_gb=8).price
    assert isinstance(price, Unpriced) and words in price.reason and not price.settled


def test_nobody_is_billed_for_a_local_machine() -> None:
    assert _quote(Terms(provider="local")).price == Unpriced("local machine", settled=True)
    assert _quote(Terms()).price == Unpriced("the project names no provider ([money] provider)", settled=True)


def test_the_total_is_rate_times_hours_and_storage_and_egress() -> None:
    terms = Terms(
        provider="x",
        price_per_hour=money.parse("2 USD"),
        storage_per_gb_month=money.parse("0.73 USD"),
        egress_per_gb=money.parse("0.1 USD"),
    )
    found = pricing.estimate(terms, _quote(terms), 10.0, "expected_hours", Volume(stored_gb=3.0, sent_gb=5.0))
    assert (found.time, found.storage, found.egress) == tuple(map(money.parse, ("20 USD", "0.03 USD", "0.5 USD")))
    assert found.total == money.parse("20.53 USD")


@pytest.mark.parametrize(
    ("hours", "volume", "words"),
    [
        (None, Volume(1.0, 1.0), "how long it takes"),
        (1.0, Volume(None, 1.0), "how much it stores"),
        (1.0, Volume(1.0, None), "how much it sends"),
    ],
)
def test_a_part_that_is_not_known_leaves_no_total(hours: float | None, volume: Volume, words: str) -> None:
    rate = money.parse("2 USD")
    terms = Terms(price_per_hour=rate, storage_per_gb_month=rate, egress_per_gb=rate)
    total = pricing.estimate(terms, _quote(terms), hours, "", volume).total
    assert isinstance(total, Unpriced) and words in total.reason


def test_a_store_that_bills_for_each_byte_needs_a_price() -> None:
    terms = Terms(price_per_hour=money.parse("2 USD"))
    found = pricing.estimate(terms, _quote(terms), 1.0, "", Volume(metered=True))
    assert isinstance(found.total, Unpriced) and "storage_per_gb_month" in found.total.reason
    assert pricing.estimate(terms, _quote(terms), 1.0, "", Volume()).total == money.parse("2 USD")


MISTAKES = {
    "an unknown column": (HEAD.replace("gpu_name", "gpuname"), "", ":1: gpuname: unknown column"),
    "a missing column": (HEAD.replace(",as_of", ""), "", ":1: as_of: missing column"),
    "a price of 0": (HEAD, "c,a,0,1,T4,15,CU,2026-09-01,s\n", ":2: a price of 0 is no price"),
    "a negative price": (HEAD, "c,a,-1,1,T4,15,CU,2026-09-01,s\n", ":2: .*negative"),
    "no source": (HEAD, "c,a,1,1,T4,15,CU,2026-09-01,\n", ":2: source"),
    "no date": (HEAD, "c,a,1,1,T4,15,CU,last year,s\n", ":2: "),
    "a price with a comma": (HEAD, "c,a,1,07,1,T4,15,CU,2026-09-01,s\n", ":2: more cells than columns"),
    "the line of the file": (
        HEAD,
        '\nc,a,1,1,T4,15,CU,2026-09-01,"s\ns"\nc,a,0,1,T4,15,CU,2026-09-01,s\n',
        ":5: a price",
    ),
    "no unit": (HEAD, "c,a,1,1,T4,15,,2026-09-01,s\n", ":2: .*no unit"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_in_the_table_names_file_and_line(case: str) -> None:
    head, line, words = MISTAKES[case]
    with pytest.raises(ProjectError, match=words) as caught:
        pricing.read_rows(head + line, "prices.csv")
    assert caught.value.message.startswith("prices.csv:") and caught.value.hint


def test_a_projects_own_rows_come_first(tmp_path: Path) -> None:
    (tmp_path / pricing.PRICES_FILE).write_text(HEAD + "lab,box,0.5,1,H200,141,EUR,2026-11-01,the invoice\n")
    assert pricing.catalogue(tmp_path)[0].provider == "lab" and len(pricing.catalogue(tmp_path)) > 1


def _own_quote(root: Path, text: str, **more: float) -> Quote:
    (root / pricing.PRICES_FILE).write_text(HEAD + text)
    return pricing.quote(Terms(provider="colab", gpu="T4"), pricing.catalogue(root), today=TODAY, **more)


@pytest.mark.parametrize("price", ["0.5 CU", "2.5 CU", "0.3 USD"])
def test_an_own_row_holds_although_ours_is_dearer_or_in_another_unit(tmp_path: Path, price: str) -> None:
    amount, unit = price.split()
    found = _own_quote(tmp_path, f"colab,my-t4,{amount},,T4,,{unit},2026-11-20,x\n")
    assert found.price == money.parse(price) and found.source == "x"


def test_of_own_rows_the_dearest_holds_and_where_none_fits_ours_does(tmp_path: Path) -> None:
    text = "colab,a,0.5,1,T4,8,CU,2026-11-20,x\ncolab,b,0.7,1,T4,8,CU,2026-11-20,x\n"
    assert _own_quote(tmp_path, text).price == money.parse("0.7 CU")
    assert _own_quote(tmp_path, text, gpu_memory_gb=12).price == money.parse("1.07 CU")


def test_an_own_table_that_says_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match=r"prices.csv:1: there is no row"):
        _own_quote(tmp_path, "")
    (tmp_path / pricing.PRICES_FILE).unlink()
    (tmp_path / pricing.PRICES_FILE).mkdir()
    with pytest.raises(ProjectError, match="is a folder"):
        pricing.catalogue(tmp_path)
