"""A real Chromium, a real Jupyter server made by `bridgehead panel`'s own code, a real bridge, local notebook VMs."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import chromium
import pytest
from browser_rig import Rig, jupyter_place, make_project

from run_control import panel_server, up

HERE = Path(__file__).parent
NEED_IT = "BRIDGEHEAD_NEED_BROWSER"  # set where the suite must not be skipped


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mine = [item for item in items if HERE in item.path.parents]
    lacking = _lacking()
    for item in mine:
        item.add_marker(pytest.mark.timeout(600))
        item.add_marker(pytest.mark.flaky(reruns=1))  # much foreign software on few cores; pytest's summary names it
        if lacking and not os.environ.get(NEED_IT):
            item.add_marker(pytest.mark.skip(reason=f"the browser suite needs {lacking}"))


def _lacking() -> str:
    packages = ("playwright", "jupyterlab", "voila", "anywidget", "ipykernel")
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return " and ".join([*([] if any(map(shutil.which, chromium.NAMES)) else ["chromium"]), *missing])


@pytest.fixture(scope="module")  # while Playwright runs, this thread can't use asyncio: other files' tests must
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    assert not _lacking(), f"{NEED_IT} is set, and {_lacking()} is missing"
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(
            executable_path=chromium.chromium(), args=list(chromium.FLAGS), timeout=120_000
        )
        yield made
        made.close()


@pytest.fixture(scope="module", autouse=True)
def jupyter_data() -> Iterator[None]:
    with jupyter_place():
        yield


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    project = make_project(tmp_path_factory.mktemp("browser") / "watch")
    made = Rig(project)
    made.bridge_up()
    try:
        yield made
    finally:
        up.down(project)


@pytest.fixture(scope="module")
def serve(rig: Rig) -> Iterator[Callable[[str], panel_server.PanelServer]]:
    """A Jupyter server for the project: "lab" is the one of `panel`, "voila" the one of `panel --voila`."""
    servers: dict[str, panel_server.PanelServer] = {}

    def get(kind: str) -> panel_server.PanelServer:
        if kind not in servers:
            servers[kind] = panel_server.start(rig.project, voila=kind == "voila", port=0, browser=False)
        return servers[kind]

    yield get
    for server in servers.values():
        server.stop()


@pytest.fixture
def context(browser: Any) -> Iterator[Any]:
    made = browser.new_context(viewport={"width": 1440, "height": 1400})
    yield made
    made.close()
