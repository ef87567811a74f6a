"""The panel in JupyterLab 3.6 with ipywidgets 7.7, the widgets of Colab, in an environment of their own.

    python3.11 -m venv /path && /path/bin/pip install jupyterlab==3.6.8 ipywidgets==7.7.1 'jupyterlab_widgets<2' \\
        'anywidget<1' ipykernel aiohttp watchdog pydantic 'typer>=0.26' rich requests numpy pyyaml
    BRIDGEHEAD_LAB3=/path python -m pytest tests/browser/test_lab3.py
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_rig import Rig
from panel_tab import PanelTab, queue_reload_and_stop

PLACE = os.environ.get("BRIDGEHEAD_LAB3", "")
ROOT = Path(__file__).parents[2]
_OTHER = ("JUPYTER_PATH", "JUPYTER_CONFIG_PATH", "JUPYTERLAB_DIR")  # of the environment that the tests run in
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(not PLACE, reason="BRIDGEHEAD_LAB3 names no environment with JupyterLab 3.6 and ipywidgets 7.7"),
]


@pytest.fixture(scope="module")
def url(rig: Rig) -> Iterator[str]:
    """`bridgehead panel`, run by that environment's Python."""
    environment = {name: value for name, value in os.environ.items() if name not in _OTHER}
    words = "import sys; from run_control.entry import main; sys.exit(main())"
    process = subprocess.Popen(
        [f"{PLACE}/bin/python", "-c", words, "panel", "--json", "--no-browser", "-C", str(rig.project.root)],
        stdout=subprocess.PIPE,
        text=True,
        env={**environment, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    answer = json.loads(process.stdout.readline() or "{}")
    try:
        assert answer.get("ok"), answer
        yield answer["data"]["url"]
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


@pytest.fixture
def panel(context: Any, url: str) -> PanelTab:
    made = PanelTab(context, url).open()
    made.expect_live()
    return made  # its own scripts stumble while a kernel starts; the panel's faults are watched in JupyterLab 4


def test_a_run_is_queued_and_stopped_and_a_reload_shows_it_again(panel: PanelTab, rig: Rig) -> None:
    queue_reload_and_stop(panel, rig)


def test_while_a_cell_keeps_the_kernel_busy_a_press_says_so_and_acts_once_after_it(panel: PanelTab, rig: Rig) -> None:
    """Its kernel has no second thread for messages: the press waits, and the panel says what works at once."""
    before = rig.count("train")
    panel.new_cell("import time; time.sleep(12); print('SLEPT')")
    panel.run("train", "steps=41")
    panel.expect_text("ack", re.compile("kernel is busy|taken|queued|waiting"))
    rig.await_run("train", before)
    panel.expect_text("queue", "run:train steps=41")
    assert rig.project.queue.read_text().count("run:train steps=41") == 1
