"""The cell of notebooks/bootstrap.ipynb, executed as it is in a real kernel against a real bridge."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import hashlib
import json
import os
import queue
import signal
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_client import LiveBridge, live_bridge
from bridgehead import names, processes
from support import wait_until
from vm_daemons import daemons
from vm_daemons.home import VmHome
from vm_daemons.storage import publish
from vm_daemons.storage.folder_store import FolderStore

NOTEBOOK = Path(__file__).parents[2] / "notebooks/bootstrap.ipynb"
TIMEOUT_S = 100.0  # a kernel, a boot and four daemons, on a machine that may be busy with other tests
pytestmark = pytest.mark.timeout(300)
jupyter_client = pytest.importorskip("jupyter_client")


def cell_source(code: str) -> str:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    source = "".join(next(cell["source"] for cell in cells if cell["cell_type"] == "code"))
    return source.replace('PAIRING = ""', f"PAIRING = {code!r}", 1)


class Kernel:
    """A notebook's kernel, and what appears under its cells."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self.manager = jupyter_client.KernelManager()
        self.manager.kernel_cmd = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        self.manager.start_kernel(env={**os.environ, **environment}, cwd=str(folder))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=TIMEOUT_S)
        self.shown = ""

    def execute(self, source: str) -> str:
        self.shown = ""
        return str(self.client.execute(source))

    def collect(self) -> str:
        """Take what has been shown since the cell began."""
        while True:
            try:
                message: dict[str, Any] = self.client.get_iopub_msg(timeout=0.05)
            except queue.Empty:
                return self.shown
            content = message["content"]
            if message["msg_type"] == "stream":
                self.shown += content["text"]
            elif message["msg_type"] == "error":
                self.shown += "\n".join(content["traceback"])

    def finish(self, request: str) -> str:
        """Wait for the cell's end; its status, ok or error."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            reply = self.client.get_shell_msg(timeout=TIMEOUT_S)
            if reply["parent_header"].get("msg_id") == request:
                return str(reply["content"]["status"])
        raise AssertionError("the cell did not end")

    def stop(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBridge]:
    root = tmp_path_factory.mktemp("project")
    (root / "data").mkdir()
    (root / "data/a.txt").write_text("one")
    with live_bridge(root) as bridge:
        yield bridge


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("machine")


@pytest.fixture(scope="module")
def kernel(folder: Path) -> Iterator[Kernel]:
    with started_kernel(folder, "vm") as kernel:
        yield kernel


@contextlib.contextmanager
def started_kernel(folder: Path, home: str, store: str = "drive") -> Iterator[Kernel]:
    """A notebook VM; nothing of it lives when the block has ended."""
    tag = f"cell-test-{home}-{os.getpid()}"
    environment = {
        names.ENV_HOME: str(folder / home),
        names.ENV_STORE: str(folder / store),
        names.ENV_LOCAL_VM: tag,
        "IPYTHONDIR": str(folder / "ipython"),
        "MPLBACKEND": "module://ipykernel",
    }
    kernel = Kernel(environment, folder)
    try:
        yield kernel
    finally:
        kernel.stop()
        for pid in processes.tagged(names.ENV_LOCAL_VM, tag):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not processes.tagged(names.ENV_LOCAL_VM, tag), TIMEOUT_S, what="the VM's end")


def _pairing(live: LiveBridge, **changes: Any) -> str:
    right = live.bridge.pairing(f"http://127.0.0.1:{live.bridge.port}")
    return dataclasses.replace(right, **changes).encode()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"boot_sha256": "0" * 64}, "not the one that the pairing code names"),
        ({"key": b"k" * 32}, "401"),
        ({"url": "http://127.0.0.1:9"}, "is `bridgehead up` running"),
    ],
    ids=["another archive", "another key", "nobody there"],
)
def test_what_goes_wrong_is_one_line_without_the_code(
    kernel: Kernel, live: LiveBridge, folder: Path, changes: dict[str, Any], said: str
) -> None:
    code = _pairing(live, **changes)
    assert kernel.finish(kernel.execute(cell_source(code))) == "error"
    shown = wait_until(kernel.collect, what="the error")
    assert said in shown and len(shown.strip().splitlines()) == 1
    assert code[10:30] not in shown
    assert not (folder / "vm/ship").exists()


def test_no_code_is_said(kernel: Kernel) -> None:
    assert kernel.finish(kernel.execute(cell_source(""))) == "error"
    assert "paste it at the top of the cell" in wait_until(kernel.collect, what="the error")


def test_the_cell_boots_beats_survives_an_interrupt_and_takes_over(
    kernel: Kernel, live: LiveBridge, folder: Path
) -> None:
    code = _pairing(live)
    home = VmHome(folder / "vm")
    first = kernel.execute(cell_source(code))
    wait_until(lambda: "· no run" in kernel.collect(), TIMEOUT_S, what="the first heartbeat line")
    vm_id = home.record()["vm_id"]
    assert vm_id in kernel.shown and code[10:30] not in kernel.shown
    assert (home.payload / "data/a.txt").read_text() == "one"

    wait_until(lambda: [vm.vm_id for vm in live.bridge.ledger.vms()] == [vm_id], TIMEOUT_S, what="the laptop's word")
    pids = [(daemons.running(home, name) or {}).get("pid") for name in names.DAEMONS]
    assert all(pids)

    kernel.manager.interrupt_kernel()
    assert kernel.finish(first) == "ok"
    wait_until(lambda: "only this heartbeat has stopped" in kernel.collect(), what="the goodbye")

    second = kernel.execute(cell_source(code))
    wait_until(lambda: "· no run" in kernel.collect(), TIMEOUT_S, what="the heartbeat of the second run")
    assert [(daemons.running(home, name) or {}).get("pid") for name in names.DAEMONS] == pids
    assert home.record()["vm_id"] == vm_id and f"{names.STATUS_DAEMON} running" in kernel.shown
    kernel.manager.interrupt_kernel()
    assert kernel.finish(second) == "ok"


def test_the_same_cell_boots_another_vm_from_the_store_while_the_laptop_is_off(
    kernel: Kernel, live: LiveBridge, folder: Path
) -> None:
    first, store = VmHome(folder / "vm"), FolderStore(folder / "drive", proves=False)
    daemons.stop(first)  # its uploader publishes just the same, and by the same temporary file
    assert publish.ship(store, first) and publish.payload(store, first) == ""
    with started_kernel(folder, "second") as second:
        running = second.execute(cell_source(_pairing(live, url="http://127.0.0.1:9")))
        wait_until(lambda: "· no run" in second.collect(), TIMEOUT_S, what="the first heartbeat line")
        assert "payload of demo from the store" in second.shown
        assert (folder / "second/payload/data/a.txt").read_text() == "one"
        second.manager.interrupt_kernel()
        assert second.finish(running) == "ok"


def test_the_cell_looks_first_where_the_code_says_that_the_store_lies(
    kernel: Kernel, live: LiveBridge, folder: Path
) -> None:
    first, store = VmHome(folder / "vm"), FolderStore(folder / "disk", proves=True)
    store.root.mkdir()
    daemons.stop(first)
    assert publish.ship(store, first) and publish.payload(store, first) == ""
    with started_kernel(folder, "third", store="nowhere") as third:
        running = third.execute(cell_source(_pairing(live, url="http://127.0.0.1:9", store=str(store.root))))
        wait_until(lambda: "· no run" in third.collect(), TIMEOUT_S, what="the first heartbeat line")
        assert f"payload of demo from the store {store.root}" in third.shown
        third.manager.interrupt_kernel()
        assert third.finish(running) == "ok"


def test_it_says_where_it_looked(kernel: Kernel, live: LiveBridge, folder: Path) -> None:
    code = _pairing(live, url="http://127.0.0.1:9", boot_sha256="2" * 64, store="/no/such/disk")
    assert kernel.finish(kernel.execute(cell_source(code))) == "error"
    shown = wait_until(kernel.collect, what="the error")
    assert f"no ship for this code in /no/such/disk, {folder / 'drive'}; is" in shown


def test_a_ship_in_the_store_that_is_not_the_codes_own_is_not_run(
    kernel: Kernel, live: LiveBridge, folder: Path
) -> None:
    ship = folder / f"drive/evil/ship/{'1' * 16}.zip"
    ship.parent.mkdir(parents=True)
    ship.write_bytes(b"evil")
    code = _pairing(live, url="http://127.0.0.1:9", boot_sha256="1" * 64)
    assert kernel.finish(kernel.execute(cell_source(code))) == "error"
    assert "is `bridgehead up` running" in wait_until(kernel.collect, what="the error")


@pytest.mark.parametrize(
    ("root", "mounted"), [("/content/drive/MyDrive/my/runs", ["/content/drive"]), ("/content/driver", [])]
)
def test_for_a_store_on_drive_the_cell_mounts_it_first(
    monkeypatch: pytest.MonkeyPatch, root: str, mounted: list[str]
) -> None:
    """`google.colab` is a stand-in here."""
    asked: list[str] = []
    colab = types.ModuleType("google.colab")
    colab.drive = types.SimpleNamespace(mount=asked.append)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "google", types.ModuleType("google"))
    monkeypatch.setitem(sys.modules, "google.colab", colab)
    source = cell_source("")
    found: dict[str, Any] = {"glob": glob, "hashlib": hashlib}
    exec(source[source.index("def from_store") : source.index("def ship_folder")], found)
    assert found["from_store"]("0" * 64, [root]) is None
    assert asked == mounted


def test_the_cell_and_the_daemons_agree_on_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(names.ENV_HOME, raising=False)
    monkeypatch.chdir(tmp_path)
    line = next(text for text in cell_source("").splitlines() if text.strip().startswith("home = "))
    found: dict[str, Any] = {"os": os}
    exec(line.strip(), found)
    assert Path(os.path.abspath(found["home"])) == VmHome.from_environment().root


def test_the_cell_is_short() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert [cell["cell_type"] for cell in cells] == ["markdown", "code"]
    assert cells[1]["outputs"] == [] and "".join(cells[1]["source"]).startswith('PAIRING = ""')
    assert len(cells[1]["source"]) <= 42
