"""Projects for the model's tests; for the view's one browser and a page with the fake front end in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from project_support import Seeded

import panel_states
from bridgehead.errors import NotFoundError
from run_control import init
from run_control.project import Project

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture
def fresh(tmp_path: Path) -> Project:
    """What `bridgehead init` makes."""
    project, _ = init.init(tmp_path / "watch")
    project.make_private()
    return project


@pytest.fixture
def seeded(fresh: Project) -> Iterator[Seeded]:
    made = Seeded(fresh)
    yield made
    made.ledger.close()


@pytest.fixture(scope="module")  # while Playwright runs, this thread can't use asyncio: other files' tests must
def browser() -> Iterator[Browser]:
    """Skipped with the reason where the extras or Chromium are missing."""
    pytest.importorskip("anywidget", reason="the extra `panel` is not installed: no anywidget")
    import panel_page as pages

    try:
        pages.chromium()
    except NotFoundError as error:
        pytest.skip(f"{error.message}: {error.hint}")
    with pages.browser() as started:
        yield started


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Fails the test on any error of the page's own."""
    import panel_page as pages

    opened = pages.open_page(browser)
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    yield opened
    opened.close()
    assert errors == []


@pytest.fixture
def night(page: Page) -> Page:
    """The panel in the middle of a good night."""
    import panel_page as pages

    pages.show(page, panel_states.state("overnight"))
    return page
