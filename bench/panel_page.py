"""A real JupyterLab with a real Chromium on it: notebooks of one cell each, and what showing them costs the browser."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shutil
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from bench.project import quantile, until
from run_control import panel_server
from run_control.panel_server import PanelServer
from run_control.project import Project

NEEDED: Final = ("playwright", "jupyterlab", "anywidget", "ipykernel")
WAIT_MS: Final = 120_000
UPDATE_S: Final = 0.25
_FLAGS: Final = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
_WATCH_FRAMES = """() => {
    const seen = window.bench = { gaps: [], tasks: [] };
    let last = performance.now();
    const step = (now) => { seen.gaps.push(now - last); last = now; requestAnimationFrame(step); };
    requestAnimationFrame(step);
    new PerformanceObserver((list) => list.getEntries().forEach((one) => seen.tasks.push(one.duration)))
        .observe({ type: 'longtask' });
}"""
# The time is taken once the frame that shows the line has been painted.
_WATCH_LINES = """(log) => {
    const seen = window.benchLines = {};
    new MutationObserver(() => {
        const fresh = [...log.querySelectorAll('.row .text')]
            .map((node) => /^(\\d+) (\\d+\\.\\d+)$/.exec(node.textContent))
            .filter((found) => found && !(found[1] in seen));
        fresh.forEach((found) => { seen[found[1]] = null; });
        if (fresh.length) requestAnimationFrame(() => setTimeout(() => {
            fresh.forEach((found) => { seen[found[1]] = Date.now() / 1000 - Number(found[2]); });
        }));
    }).observe(log, { subtree: true, childList: true, characterData: true });
}"""
# From the press to the first word that the line has been written, as the page shows it.
_PRESS = """async (ask) => {
    const text = ask.querySelector('.ask-text');
    const waits = () => /^sending|^the panel has it/.test(text.textContent);
    const began = performance.now();
    ask.querySelector('[data-testid=stop-save]').click();
    while (waits() && performance.now() - began < 20000) await new Promise((next) => requestAnimationFrame(next));
    return [(performance.now() - began) / 1000, text.textContent];
}"""


def lacking() -> str:
    """What is not installed here; "" when all is there."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    return " and ".join([*([] if shutil.which("chromium") else ["chromium"]), *missing])


@dataclass(frozen=True)
class Cost:
    """`task_ms`: CPU of the page's main thread in a quarter of a second; gaps between its frames."""

    task_ms: float
    frame_gap_p95_ms: float
    frame_gap_max_ms: float
    long_tasks: int


class Lab:
    """`open` shows a notebook in a browser of its own; one at a time, so that none pays for another."""

    def __init__(self, server: PanelServer, browser: Any, root: Path) -> None:
        self.server = server
        self._browser = browser
        self._root = root

    @contextlib.contextmanager
    def open(self, name: str, code: str) -> Iterator[Tab]:
        """A notebook with this one cell, run. Its kernel ends with it."""
        cell: dict[str, Any] = {
            "cell_type": "code",
            "id": name,
            "metadata": {},
            "source": code,
            "outputs": [],
            "execution_count": None,
        }
        kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
        notebook = {"cells": [cell], "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
        (self._root / f"{name}.ipynb").write_text(json.dumps(notebook))
        context = self._browser.new_context(viewport={"width": 1440, "height": 1400})
        try:
            yield Tab(context.new_page(), self._url(name))
        finally:
            context.close()
            self._end_kernels()

    def _url(self, name: str) -> str:
        """In a workspace of its own: JupyterLab would open what was open before, too."""
        parts = urlsplit(self.server.url)
        return f"{parts.scheme}://{parts.netloc}/lab/workspaces/{name}/tree/{name}.ipynb?{parts.query}"

    def _end_kernels(self) -> None:
        for session in json.loads(self._ask("GET", "api/sessions")):
            self._ask("DELETE", f"api/sessions/{session['id']}")

    def _ask(self, method: str, path: str) -> bytes:
        parts = urlsplit(self.server.url)
        request = urllib.request.Request(f"{parts.scheme}://{parts.netloc}/{path}", method=method)
        request.add_header("Authorization", f"token {parts.query.removeprefix('token=')}")
        with urllib.request.urlopen(request, timeout=60) as answer:
            body: bytes = answer.read()
        return body


class Tab:
    """One page of JupyterLab whose cell was run."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        page.set_default_timeout(WAIT_MS)
        page.goto(url)
        cell = page.locator(".jp-Notebook .jp-CodeCell .jp-InputArea-editor").first
        cell.wait_for()
        page.locator("#jp-main-statusbar").get_by_text("| Idle").wait_for()
        cell.click()
        page.keyboard.press("Control+Enter")
        self._cdp = page.context.new_cdp_session(page)
        self._cdp.send("Performance.enable", {"timeDomain": "threadTicks"})  # CPU of the thread, not the wall clock
        page.evaluate(_WATCH_FRAMES)

    def at(self, test_id: str) -> Any:
        return self.page.get_by_test_id(test_id).first

    def await_live(self) -> None:
        until(lambda: self.at("live").text_content() == "live", WAIT_MS / 1000, "the panel to be live")

    def wait(self, seconds: float) -> None:
        self.page.wait_for_timeout(1000 * seconds)

    def cost(self, seconds: float) -> Cost:
        """Of the coming so many seconds."""
        self.page.evaluate("() => { window.bench.gaps.length = window.bench.tasks.length = 0; }")
        began, before = time.monotonic(), self._metrics()["TaskDuration"]
        self.wait(seconds)
        task_s, passed_s = self._metrics()["TaskDuration"] - before, time.monotonic() - began
        seen = self.page.evaluate("() => window.bench")
        gaps = seen["gaps"] or [1000 * seconds]
        return Cost(1000 * task_s * UPDATE_S / passed_s, quantile(gaps, 0.95), max(gaps), len(seen["tasks"]))

    def heap(self) -> tuple[float, float]:
        """(bytes of live JavaScript objects, DOM nodes), after the rubbish is gone."""
        for _ in range(2):
            self._cdp.send("HeapProfiler.collectGarbage")
        metrics = self._metrics()
        return metrics["JSHeapUsedSize"], metrics["Nodes"]

    def stop_presses(self, run_id: str, times: int) -> list[float]:
        """Seconds from each press of "Save, then stop" to the page's word that the line is written."""
        self.at(f"run-{run_id}").get_by_role("button", name=run_id).click()
        taken = []
        for _ in range(times):
            self.at("stop").click()
            seconds, words = self.at("stop-ask").evaluate(_PRESS)
            if not words or "refused" in words or "failed" in words:
                raise RuntimeError(f"a Stop came to nothing: {words!r}")
            taken.append(float(seconds))
            self.at("stop-cancel").click()
        return taken

    def watch_lines(self) -> None:
        """From now on note when each line `<number> <time>` of the log is painted first."""
        self.at("log").evaluate(_WATCH_LINES)

    def lines_seen(self) -> list[float]:
        """Age in seconds of each such line when it was painted."""
        seen: dict[str, float | None] = self.page.evaluate("() => window.benchLines")
        return [age for age in seen.values() if age is not None]

    def _metrics(self) -> dict[str, float]:
        return {one["name"]: one["value"] for one in self._cdp.send("Performance.getMetrics")["metrics"]}


@contextlib.contextmanager
def lab(project: Project) -> Iterator[Lab]:
    """JupyterLab as `bridgehead panel` starts it, and Debian's Chromium. All of it ends with the block."""
    from playwright.sync_api import sync_playwright

    server = panel_server.start(project, voila=False, port=0, browser=False)
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(_FLAGS))
            try:
                yield Lab(server, browser, project.root)
            finally:
                browser.close()
    finally:
        server.stop()
