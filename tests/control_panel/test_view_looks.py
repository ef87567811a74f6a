"""The view in a real browser: curves, words, keys; all can be read at every width, in light and dark."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("playwright", reason="the extra `dev` is not installed: no Playwright")

from playwright.sync_api import Browser, Page, expect

import panel_page as pages
import panel_states
from panel_page import choose, inside

# --- curves, words, keys ---------------------------------------------------------------------------


def test_curves_are_drawn_over_the_champion_and_told_in_words(night: Page) -> None:
    choose(night, "finetune-03")
    canvas = night.get_by_test_id("plot").locator("canvas")
    expect(canvas).to_have_attribute(
        "aria-label", re.compile(r"loss: 0\.2431 at step 41,210, lowest 0\.2\d+ at step [\d,]+, over finetune-02")
    )
    drawn = "node => new Set(node.getContext('2d').getImageData(0, 0, node.width, node.height).data).size"
    night.wait_for_function("() => true")
    assert canvas.evaluate(drawn) > 20


def test_every_state_is_told_by_a_word_and_a_shape(page: Page) -> None:
    pages.show(page, panel_states.state("crowded"))
    told = inside(
        page,
        """Object.fromEntries([...root.querySelectorAll('.runs-table .state')].map((mark) =>
            [mark.dataset.state, [mark.textContent, mark.querySelector('path').getAttribute('d')]]))""",
    )
    assert {"running", "done", "failed", "lost", "queued", "stopped", "saving"} <= set(told)
    shapes = [told[state][1] for state in ("running", "done", "failed", "lost", "queued", "stopped", "saving")]
    assert len(set(shapes)) == len(shapes)
    assert all(word == state for state, (word, _) in told.items())


def test_the_keyboard_reaches_everything_in_order(night: Page) -> None:
    night.get_by_test_id("notify").focus()
    seen = []
    for _ in range(60):
        focused = inside(
            night, "(root.activeElement || document.activeElement).dataset.testid || root.activeElement?.className"
        )
        seen.append(focused)
        night.keyboard.press("Tab")
    wanted = [
        "notify",
        "pair",
        "pick",
        "stop",
        "log-run",
        "log-search",
        "follow",
        "log",
        "run-stage",
        "run-overrides",
        "run",
        "cmd",
    ]
    places = [seen.index(name) for name in wanted]
    assert places == sorted(places), dict(zip(wanted, places, strict=True))


def test_arrows_walk_the_runs(night: Page) -> None:
    night.get_by_test_id("run-probe-07").get_by_role("button").focus()
    night.keyboard.press("ArrowDown")
    expect(night.get_by_test_id("detail").get_by_role("heading")).to_have_text("finetune-03")
    expect(night.get_by_test_id("run-finetune-03").get_by_role("button")).to_be_focused()


def test_roles_and_labels(night: Page) -> None:
    for role, name in (("log", "Log"), ("table", "Runs"), ("region", "Bridgehead control panel"), ("region", "VMs")):
        expect(night.get_by_role(role, name=name, exact=True).first).to_be_visible()  # type: ignore[arg-type]
    assert night.get_by_role("meter").count() == 15
    unlabelled = """[...root.querySelectorAll('button, input, select')]
        .filter((n) => n.getClientRects().length && !n.textContent && !n.getAttribute('aria-label')).length"""
    assert inside(night, unlabelled) == 0


def test_the_first_look_says_what_to_do(page: Page) -> None:
    pages.show(page, panel_states.state("paired"))
    expect(page.get_by_test_id("next")).to_contain_text("colab-a is ready")
    page.get_by_test_id("next-action").click()
    expect(page.get_by_test_id("ask-run")).to_contain_text("run:pretrain")


# --- looks -----------------------------------------------------------------------------------------

# Contrast of each visible piece of text against what is painted behind it, by WCAG 2.
AUDIT = """(() => {
    const parse = (text) => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
    const over = ([r, g, b, a = 1], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a)];
    const light = (colour) => {
        const part = (v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
        const [r, g, b] = colour.map(part);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = (node) => {
        const layers = [];
        for (let at = node; at; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
        return layers.reverse().reduce((under, layer) => over(layer, under), [255, 255, 255]);
    };
    const bad = [];
    for (const node of root.querySelectorAll('.panel *')) {
        const text = [...node.childNodes].filter((one) => one.nodeType === 3).map((one) => one.data.trim()).join('');
        if (!text || !node.getClientRects().length) continue;
        const below = ground(node);
        const [one, two] = [light(over(parse(getComputedStyle(node).color), below)), light(below)];
        const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
        if (ratio < 4.5) bad.push(`${ratio.toFixed(2)} ${node.className} ${text.slice(0, 30)}`);
    }
    return [...new Set(bad)];
})()"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["empty", "overnight", "failed", "troubled", "crowded"])
def test_no_text_is_grey_on_grey_and_nothing_overflows(browser: Browser, name: str, dark: bool) -> None:
    page = pages.open_page(browser, dark=dark)
    pages.show(page, panel_states.state(name))
    assert inside(page, "root.querySelector('.root').dataset.theme") == ("dark" if dark else "light")
    assert inside(page, AUDIT) == []
    for width in (480, 900, 1600):
        page.set_viewport_size({"width": width, "height": 900})
        wide = """[...root.querySelectorAll('.panel, .panel > *, .card, .detail-inner, .ask')]
            .filter((n) => n.scrollWidth > n.clientWidth + 1).map((n) => n.className)"""
        assert inside(page, wide) == [], width
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_the_theme_follows_a_switch(night: Page) -> None:
    night.evaluate("document.body.className = 'dark'")
    night.wait_for_function(
        "document.querySelector('#cell > div').shadowRoot.querySelector('.root').dataset.theme === 'dark'"
    )


def test_nothing_moves_for_who_asked_for_rest(browser: Browser) -> None:
    page = pages.open_page(browser, reduced_motion="reduce")
    pages.show(page, panel_states.state("overnight"))
    moving = """[...root.querySelectorAll('*')]
        .filter((n) => !['0s', ''].includes(getComputedStyle(n).transitionDuration)).length"""
    assert inside(page, moving) == 0
    page.close()
