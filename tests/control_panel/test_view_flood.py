"""The view in a real browser under many patches: what it keeps has bounds, and a patch of a few fields is enough."""

from __future__ import annotations

import pytest

pytest.importorskip("playwright", reason="the extra `dev` is not installed: no Playwright")

from playwright.sync_api import Page, expect

import panel_page as pages

FLOOD = """(patches) => {
    let n = 1_000_000;
    for (let at = 0; at < patches; at += 1) {
        const lines = Array.from({ length: 200 }, () => {
            n += 1;
            return { n, t: 1, vm: "colab-a", run: "finetune-03", level: "info", text: `flood line ${n}` };
        });
        kernel.feed.deliver({ k: "p", gen: "g1", since: 10 + at, seq: 11 + at, t: 1, lines, drop: 500 });
        n += 500;
    }
    return n - 500;
}"""


def test_a_page_keeps_twenty_thousand_lines_however_many_come(night: Page) -> None:
    last = night.evaluate(FLOOD, 150)
    expect(night.get_by_test_id("log")).to_contain_text(f"flood line {last}")
    kept = int("".join(filter(str.isdigit, night.get_by_test_id("log-count").inner_text())))
    assert 20_000 <= kept <= 22_000
    assert night.get_by_test_id("log").locator(".row").count() < 100, "only the rows in sight exist"


def test_a_patch_of_a_few_fields_changes_those_and_leaves_the_others(night: Page) -> None:
    row = night.get_by_test_id("run-finetune-03")
    before = row.inner_text()
    assert "68 %" in before
    pages.feed(night, pages.patch(runs=[{"id": "finetune-03", "step": 48_000}]))
    expect(row).to_contain_text("80 %")
    assert row.inner_text() == before.replace("68 %", "80 %")
