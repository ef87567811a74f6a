"""The panel as a person meets it: a tab with JupyterLab or Voilà, where he sees and presses what has a test id."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from browser_rig import Rig
from playwright.sync_api import BrowserContext, Locator, Page, expect
from playwright.sync_api import TimeoutError as NotYet

WAIT_MS = 120_000  # two cores, a browser without a GPU, and whatever else the machine does


class PanelTab:
    """One tab."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context = context
        self.url = url
        self.page: Page = context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.faults: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))

    @property
    def is_notebook(self) -> bool:
        """JupyterLab, or Notebook 7: there is a cell to run."""
        return "/lab/" in self.url or "/notebooks/" in self.url

    def open(self) -> PanelTab:
        """Load the page; where there is a notebook also run the cell, by the keys that a person presses."""
        self.page.goto(self.url)
        asks = self.page.locator(".jp-Dialog", has_text="Select Kernel")  # of who runs a cell before there is one
        self.page.add_locator_handler(asks, lambda dialog: dialog.locator(".jp-mod-accept").click())
        if self.is_notebook:
            self.run_cell()
        return self

    def run_cell(self) -> None:
        cell = self.page.locator(".jp-Notebook .jp-CodeCell .jp-InputArea-editor").first
        cell.wait_for()
        self.await_kernel()
        for _ in range(4):
            cell.click()
            self.page.keyboard.press("Control+Enter")
            if "/notebooks/" not in self.url or self._shows_output():
                return

    def _shows_output(self) -> bool:
        """A cell that is run before Notebook 7 has its kernel asks for one, and is to be run again."""
        try:
            self.page.locator(".jp-CodeCell .jp-OutputArea-output").first.wait_for(state="attached", timeout=30_000)
        except NotYet:
            return False
        return True

    def await_kernel(self) -> None:
        """The status bar says so; the notebook's own sign says idle before there is a kernel, too."""
        if "/notebooks/" in self.url:  # Notebook 7 has no status bar; it names the kernel once it has one
            self.page.locator(".jp-KernelName").get_by_text("Bridgehead").first.wait_for()
            return
        self.page.locator("#jp-main-statusbar").get_by_text("| Idle").wait_for()

    def restart_kernel(self) -> None:
        """By its keys (a narrow toolbar hides the button), and by the button of the dialog."""
        self._into_command_mode()
        self.page.keyboard.press("0")
        self.page.keyboard.press("0")
        self.accept()

    def accept(self) -> None:
        """What JupyterLab asks or tells in a dialog."""
        self.page.locator(".jp-Dialog .jp-mod-accept").click()

    def save(self) -> None:
        """Ctrl+S, and wait until JupyterLab shows no unsaved change."""
        self.page.locator(".jp-Notebook .jp-CodeCell .jp-InputArea-editor").first.click()
        self.page.keyboard.press("Control+s")
        self.page.locator(".lm-DockPanel-tabBar .jp-mod-dirty, .lm-TabBar-tab.jp-mod-dirty").wait_for(state="detached")

    def new_cell(self, code: str) -> None:
        """A cell below, run at once."""
        self._into_command_mode()
        self.page.keyboard.press("b")
        self.page.keyboard.press("Enter")
        self.page.keyboard.insert_text(code)
        self.page.keyboard.press("Control+Enter")

    def await_busy(self) -> None:
        """The notebook's sign says that a cell runs; it is there also where a narrow toolbar hides it."""
        sign = self.page.locator('.jp-Notebook-ExecutionIndicator[data-status="busy"]').first
        sign.wait_for(state="attached")

    def _into_command_mode(self) -> None:
        self.page.locator(".jp-Notebook .jp-CodeCell .jp-InputArea-editor").first.click()
        self.page.keyboard.press("Escape")

    # --- what is on the panel ------------------------------------------------------------------------

    def at(self, test_id: str) -> Locator:
        return self.page.get_by_test_id(test_id).first

    def expect_live(self) -> None:
        expect(self.at("live")).to_contain_text("live", timeout=WAIT_MS)

    def expect_text(self, test_id: str, text: Any, timeout_s: float = WAIT_MS / 1000) -> None:
        expect(self.at(test_id)).to_contain_text(text, timeout=timeout_s * 1000)

    def expect_state(self, run_id: str, word: Any, timeout_s: float = WAIT_MS / 1000) -> None:
        self.expect_text(f"state-{run_id}", word, timeout_s)

    def log_text(self) -> str:
        return str(self.at("log").inner_text())

    def run(self, stage: str, overrides: str = "") -> None:
        """Choose the stage, look at the plan, send it."""
        self.at("run-stage").select_option(stage)
        self.at("run-overrides").fill(overrides)
        self.at("run").click()
        expect(self.at("ask-run")).to_contain_text(f"run:{stage}", timeout=WAIT_MS)
        self.at("send-run").click()

    def choose(self, run_id: str) -> None:
        self.at(f"run-{run_id}").get_by_role("button", name=run_id).click()

    def stop(self) -> None:
        """Both presses; the panel takes its choice back when the second one takes too long."""
        for _ in range(5):
            self.at("stop").click()
            with contextlib.suppress(NotYet):
                return self.at("stop-save").click(timeout=8000)
        raise AssertionError("the choice after Stop never waited for its press")

    def ask(self, button: str, name: str = "detail") -> None:
        """Press a button that shows its line first, and send that."""
        self.at(button).click()
        self.at(f"send-{name}").click()

    def close(self) -> None:
        self.page.close()


def queue_reload_and_stop(panel: PanelTab, rig: Rig, before: Callable[[], object] = lambda: None) -> None:
    """The first minutes in a front end: a run is queued, a reload shows it again, and it is stopped before a VM had it.

    `before`: what has to be so before the reload.
    """
    expect(panel.at("next")).to_be_visible(timeout=WAIT_MS)
    panel.run("train", "steps=40")
    run_id = rig.await_run("train", 0)
    panel.expect_text("queue", "run:train steps=40")
    panel.save()
    before()
    panel.page.reload()
    panel.expect_live()
    panel.choose(run_id)
    panel.stop()
    panel.expect_state(run_id, "stopped")  # no VM had it yet
    assert rig.project.queue.read_text().count(f"stop:{run_id}") == 1
