"""Who can not see the panel, or uses no mouse: axe-core in each state and theme, and the keyboard alone."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="the extra `dev` is not installed: no Playwright")

from playwright.sync_api import Browser, Page, expect

import panel_page as pages
import panel_states
from panel_page import inside

AXE = importlib.util.find_spec("axe_playwright_python")
needs_axe = pytest.mark.skipif(AXE is None, reason="axe-playwright-python is not installed: no axe-core")
FOCUSABLE = "button, input:not([disabled]), select, [tabindex='0']"


def _audit(page: Page) -> list[str]:
    """Serious and critical violations, each with the first place where it is."""
    assert AXE is not None and AXE.origin is not None
    page.evaluate((Path(AXE.origin).parent / "axe.min.js").read_text(encoding="utf-8"))
    audit = "async () => { const told = await axe.run('#cell'); return [told.violations, told.passes] }"
    found, passed = page.evaluate(audit)
    assert sum(len(one["nodes"]) for one in passed) > 50, "it has looked into the panel"
    return [
        f"{one['id']} ({one['impact']}) {one['nodes'][0]['html'][:120]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


@needs_axe
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", sorted(panel_states.ALL))
def test_axe_finds_nothing_serious(browser: Browser, name: str, dark: bool) -> None:
    page = pages.open_page(browser, dark=dark)
    pages.show(page, panel_states.state(name))
    assert _audit(page) == []
    page.close()


@needs_axe
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_serious_in_what_opens(browser: Browser, dark: bool) -> None:
    """Questions before a press, the pairing box, a stale panel."""
    page = pages.open_page(browser, dark=dark)
    pages.show(page, panel_states.state("overnight"))
    pages.choose(page, "finetune-03")
    for opener in ("run", "stop", "release-colab-a", "pair", "sync"):
        page.get_by_test_id(opener).click()
    page.get_by_test_id("cmd").fill("nvidia-smi")
    page.get_by_test_id("log-search").fill("step=404")
    assert _audit(page) == []
    page.evaluate("kernel.alive = false")
    expect(page.get_by_test_id("stale")).to_be_visible(timeout=20_000)
    assert _audit(page) == []
    page.close()


def _walk(page: Page, steps: int) -> list[str]:
    """What Tab comes to, and whether one sees that it is there."""
    page.evaluate("document.body.focus()")
    seen = []
    for _ in range(steps):
        page.keyboard.press("Tab")
        told = """(() => {
            const at = root.activeElement;
            if (!at) return '';
            const style = getComputedStyle(at);
            const visible = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0;
            at.dataset.walked = '1';
            return `${at.dataset.testid || at.className || at.tagName}${visible ? '' : ' UNSEEN'}`;
        })()"""
        seen.append(str(inside(page, told)))
    return seen


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_tab_comes_to_every_control_and_shows_where_it_is(browser: Browser, dark: bool) -> None:
    page = pages.open_page(browser, dark=dark)
    pages.show(page, panel_states.state("overnight"))
    count = f'[...root.querySelectorAll("{FOCUSABLE}")].filter((n) => n.getClientRects().length).length'
    seen = _walk(page, int(inside(page, count)) + 3)
    assert [name for name in seen if name.endswith("UNSEEN")] == []
    missed = f"""[...root.querySelectorAll("{FOCUSABLE}")]
        .filter((n) => n.getClientRects().length && !n.dataset.walked && !n.classList.contains('pick'))
        .map((n) => n.dataset.testid || n.textContent)"""
    assert inside(page, missed) == [], seen
    page.close()


@pytest.mark.parametrize("key", ["Enter", "Space"])
@pytest.mark.parametrize(
    ("opener", "box"),
    [("run", "ask-run"), ("stop", "stop-ask"), ("rerun", "ask-detail"), ("sync", "ask-command"), ("pair", "pair-box"),
     ("release-colab-a", "ask-release")],
)  # fmt: skip
def test_a_key_opens_each_question_and_escape_leads_back(night: Page, opener: str, box: str, key: str) -> None:
    pages.choose(night, "finetune-02" if opener == "rerun" else "finetune-03")
    night.get_by_test_id(opener).focus()
    night.keyboard.press(key)
    found = (
        night.get_by_test_id("vm-colab-a").get_by_test_id(box) if box == "ask-release" else night.get_by_test_id(box)
    )
    expect(found).to_be_visible()
    assert found.evaluate("(node) => node.contains(node.getRootNode().activeElement)"), "the focus goes there"
    night.keyboard.press("Escape")
    expect(found).to_be_hidden()
    expect(night.get_by_test_id(opener)).to_be_focused()


def test_a_run_is_stopped_without_a_mouse(night: Page) -> None:
    night.get_by_test_id("run-finetune-03").get_by_role("button").focus()
    night.keyboard.press("Enter")
    for _ in range(8):
        night.keyboard.press("Tab")
        if inside(night, "root.activeElement && root.activeElement.dataset.testid") == "stop":
            break
    night.keyboard.press("Space")
    expect(night.get_by_test_id("stop-save")).to_be_focused()
    night.keyboard.press("Enter")
    assert [one["args"] for one in pages.commands(night, "stop")] == [{"run": "finetune-03", "now": False}]
