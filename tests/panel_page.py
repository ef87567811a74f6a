"""The view in a real browser without Jupyter: a static page with a fake front end (tests/control_panel/view_page)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright", reason="the extra `dev` is not installed: no Playwright")
from chromium import FLAGS, chromium
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from panel_parts import NOW

STATIC = Path(__file__).parent / "control_panel" / "view_page"
URL = "http://localhost:1/panel/"  # never reached: every request is answered here
LOAD_MS = 60_000


@contextmanager
def browser() -> Iterator[Browser]:
    """One browser for many pages."""
    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        try:
            yield started
        finally:
            started.close()


def open_page(browser: Browser, *, width: int = 1200, height: int = 900, dark: bool = False, **more: Any) -> Page:
    """A page with the fake kernel ready and no panel yet."""
    page = browser.new_page(viewport={"width": width, "height": height}, **more)
    page.set_default_timeout(LOAD_MS)
    page.route("**/*", _answer)
    page.goto(URL + "index.html")
    page.wait_for_function("window.ready === true")
    page.evaluate("dark => document.body.classList.add(dark ? 'dark' : 'light')", dark)
    return page


def show(page: Page, snapshot: dict[str, Any], *, live: bool = True) -> None:
    """Render the panel with what the kernel's model holds."""
    page.evaluate("snapshot => window.show(snapshot)", snapshot)
    page.get_by_test_id("panel").wait_for()
    if live:
        page.wait_for_function(
            "() => document.querySelector('#cell > div').shadowRoot"
            ".querySelector('[data-testid=live]').textContent === 'live'"
        )


def feed(page: Page, message: dict[str, Any]) -> None:
    """A message of the kernel on the feed."""
    page.evaluate("message => kernel.feed.deliver(message)", message)


def sent(page: Page, kind: str) -> list[dict[str, Any]]:
    """What the view sent of one kind, oldest first."""
    found: list[dict[str, Any]] = page.evaluate("kind => kernel.command.sent.filter((one) => one.k === kind)", kind)
    return found


def commands(page: Page, verb: str) -> list[dict[str, Any]]:
    return [one for one in sent(page, "cmd") if one["verb"] == verb]


def patch(**more: Any) -> dict[str, Any]:
    """The first patch after a snapshot of panel_states."""
    return {"k": "p", "gen": "g1", "since": 10, "seq": 11, "t": NOW + 1, **more}


def inside(page: Page, script: str) -> Any:
    """Evaluate with `root` as the panel's shadow root."""
    return page.evaluate(f"() => {{ const root = document.querySelector('#cell > div').shadowRoot; return {script}; }}")


def choose(page: Page, run: str) -> None:
    page.get_by_test_id(f"run-{run}").get_by_role("button").click()
    expect(page.get_by_test_id("detail").get_by_role("heading")).to_have_text(run)


def _answer(route: Route) -> None:
    from control_panel import rich

    name = route.request.url.removeprefix(URL).partition("?")[0]
    if name == "code.json":
        route.fulfill(body=json.dumps(rich.code()), content_type="application/json")
        return
    path = (rich.PAGE if name == "loader.js" else STATIC) / name
    if not path.is_file():
        route.fulfill(status=404, body="")
        return
    kind = "text/html" if name.endswith(".html") else "text/javascript"
    route.fulfill(body=path.read_bytes(), content_type=kind)
