"""Names of runs and VMs at narrow widths: whole, wrapped, or cut in their middle, and whole for whoever copies them."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("playwright", reason="the extra `dev` is not installed: no Playwright")

from playwright.sync_api import Page, expect

import panel_page as pages
import panel_parts
import panel_states
from panel_page import choose, inside, patch

RUN, VM = "finetune-0003-5f5f5f", "local-76512fef"

CUT = """[...root.querySelectorAll('.id')].filter((node) => {
    if (!node.getClientRects().length || !node.textContent) return false;
    const [box, tail] = [node.getBoundingClientRect(), node.lastChild.getBoundingClientRect()];
    return node.title !== node.textContent || node.innerText !== node.textContent || tail.right > box.right + 1;
}).map((node) => node.innerText)"""
RUNS_CUT = """[...root.querySelectorAll('.pick .id-head')].filter((node) => node.scrollWidth > node.clientWidth + 1)
    .map((node) => node.parentNode.textContent)"""
LINES_CUT = """[...root.querySelectorAll('.queue code, .art-name code, .name')]
    .filter((node) => node.scrollWidth > node.clientWidth + 1 || node.scrollHeight > node.clientHeight + 1)
    .map((node) => node.textContent)"""
RAGGED = """(() => {
    const lefts = (cell) => new Set([...root.querySelectorAll(`.runs-table ${cell}`)]
        .filter((node) => node.getClientRects().length).map((node) => Math.round(node.getBoundingClientRect().left)));
    return ['.c-run', '.c-state', '.c-progress', '.c-eta', '.c-vm'].filter((cell) => lefts(cell).size > 1);
})()"""


def _with_real_names(name: str) -> dict[str, Any]:
    text = json.dumps(panel_states.state(name))
    told: dict[str, Any] = json.loads(text.replace("finetune-03", RUN).replace("colab-a", VM))
    return told


@pytest.mark.parametrize("name", ["overnight", "crowded"])
def test_names_can_be_told_apart_at_every_width(page: Page, name: str) -> None:
    pages.show(page, _with_real_names(name))
    for width in (480, 900, 1600):
        page.set_viewport_size({"width": width, "height": 900})
        assert inside(page, CUT) == [], width
        assert inside(page, RUNS_CUT) == [], width
        assert inside(page, LINES_CUT) == [], width
        assert inside(page, RAGGED) == [], width


def test_a_name_that_is_too_long_keeps_its_end(page: Page) -> None:
    long = "a-stage-with-quite-a-long-name-0012-5f5f5f"
    pages.show(page, json.loads(json.dumps(panel_states.state("overnight")).replace("finetune-03", long)))
    page.set_viewport_size({"width": 480, "height": 900})
    assert long in inside(page, RUNS_CUT)
    assert inside(page, CUT) == []
    expect(page.get_by_role("button", name=long, exact=True)).to_have_attribute("title", long)


def test_a_line_of_an_error_has_a_sign_and_a_word(night: Page) -> None:
    choose(night, "finetune-03")
    last = max(line["n"] for line in panel_states.state("overnight")["log"])
    told = [
        panel_parts.line(last + 1, "ValueError: no", "error"),
        panel_parts.line(last + 2, "UserWarning: hm", "warn"),
    ]
    pages.feed(night, patch(lines=told))
    log = night.get_by_test_id("log")
    expect(log.get_by_role("img", name="looks like an error").last).to_have_text("✕")
    expect(log.get_by_role("img", name="looks like a warning").last).to_have_text("!")
    texts = "[...root.querySelectorAll('.row .text')].map((node) => node.textContent)"
    assert "ValueError: no" in inside(night, texts)


def test_a_save_that_its_vm_has_begun_is_told_and_joined(night: Page) -> None:
    choose(night, "finetune-03")
    [run] = [one for one in panel_states.state("overnight")["runs"] if one["id"] == "finetune-03"]
    stopping = {"at": panel_parts.NOW - 13, "why": "its cap of 3h00m of running is reached"}
    pages.feed(night, patch(runs=[{**run, "stopping": stopping}]))
    night.get_by_test_id("stop").click()
    box = night.get_by_test_id("stop-ask")
    expect(box).to_contain_text("It is saving already, since 1")
    expect(box).to_contain_text("its cap of 3h00m of running is reached. This joins that.")
    night.get_by_test_id("stop-save").click()
    assert [one["args"]["now"] for one in pages.commands(night, "stop")] == [False]
    [sent] = pages.commands(night, "stop")
    assert sent["view"] and isinstance(sent["seen"], int)
