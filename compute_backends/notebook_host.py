"""Plays the Jupyter front end of a local VM: `python -m compute_backends.notebook_host VM_FOLDER NOTEBOOK`.

Starts a real kernel, executes the notebook's code cells exactly as they stand, one after the other, and writes what
they print to cell.log. SIGUSR1 interrupts the kernel (the stop button), SIGUSR2 runs the cells again, SIGTERM leaves.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import time
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import KernelManager

from bridgehead import files, names, processes
from compute_backends.local_notebook import CELL_LOG, CELL_RUNNING, CONTENT, HOST_RECORD

_POLL_S = 0.2
_READY_S = 60.0
_NUDGE_S = 1.0
_UNSAID_CHARS = 64 * 1024  # of a cell's words, kept while the disk takes none
_STARTS = 3  # another program may take a port between its choice and the kernel's own bind
_KERNEL_ARGV = ["-m", "ipykernel_launcher", "-f", "{connection_file}"]


class CellState:
    RUNNING = CELL_RUNNING
    DONE = "done"
    ERROR = "error"
    KERNEL_DEAD = "kernel-dead"


class _ThisPython(KernelSpecManager):  # type: ignore[misc]  # jupyter_client's base class is untyped
    """The kernel is the interpreter that runs this, whatever kernels the user has registered."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(argv=[sys.executable, *_KERNEL_ARGV], display_name="Python 3", language="python")


class NotebookHost:
    """One kernel and the notebook it runs."""

    def __init__(self, folder: Path, notebook: Path) -> None:
        self._folder = folder
        self._notebook = notebook
        self._cells: list[str] = []
        self._interrupt = self._rerun = self._leave = False
        self._manager: Any = None
        self._client: BlockingKernelClient | None = None
        self._waiting_for = ""  # message id of the cell in execution
        self._ran = 0
        self._unsaid = ""
        self._due: dict[str, Any] | None = None  # a record that the disk has not taken yet

    def run(self) -> int:
        for sig in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
            signal.signal(sig, self._on_signal)
        self._start_kernel()
        self._start_cells()
        while not self._leave:
            self._step()
        if self._waiting_for:
            self._manager.interrupt_kernel()
        if self._manager.is_alive():  # one that could not start has nothing to shut down, and would say so
            self._manager.shutdown_kernel(now=False)
        return 0

    def _on_signal(self, number: int, _frame: object) -> None:
        # Only notes: the main loop acts, at most one poll later. A person stops a cell before running it again.
        self._interrupt |= number in (signal.SIGUSR1, signal.SIGUSR2)
        self._rerun |= number == signal.SIGUSR2
        self._leave |= number == signal.SIGTERM

    def _step(self) -> None:
        if self._interrupt:
            self._interrupt = False
            if self._waiting_for:
                self._manager.interrupt_kernel()
        if not self._manager.is_alive():
            self._cells, self._waiting_for = [], ""
            self._record(CellState.KERNEL_DEAD)
        if self._rerun and not self._waiting_for:
            # No cell runs: what the press would have interrupted is over, and it must not be the cell that it starts.
            self._rerun = self._interrupt = False
            if self._manager.is_alive() or self._starts_again():
                self._start_cells()
        self._read_output()
        self._catch_up()

    def _start_kernel(self) -> None:
        """A kernel with ports of its own. Raises RuntimeError when none answers."""
        if self._client is not None:
            self._client.stop_channels()
            self._client = None
            self._manager.cleanup_resources()
        for start in range(1, _STARTS + 1):
            self._manager = KernelManager(kernel_spec_manager=_ThisPython())
            self._manager.connection_file = str(self._folder / "kernel.json")
            self._manager.start_kernel(cwd=str(self._folder / CONTENT), env=self._environment())
            client: Any = self._manager.client()
            client.start_channels()
            try:
                client.wait_for_ready(timeout=_READY_S)
            except RuntimeError:  # it died, or does not answer
                client.stop_channels()
                self._manager.shutdown_kernel(now=True)
                if start == _STARTS:
                    raise
                continue
            self._await_output_channel(client)
            self._client = client
            return

    def _starts_again(self) -> bool:
        """A disk that is full lets no kernel start; a person presses again once there is room."""
        try:
            self._start_kernel()
        except (OSError, RuntimeError) as error:
            sys.stderr.write(f"no kernel: {error}\n")
            return False
        return True

    def _environment(self) -> dict[str, str]:
        environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONSAFEPATH")}
        environment["JPY_SESSION_NAME"] = str(self._notebook)  # as a Jupyter server sets it
        environment["IPYTHONDIR"] = str(self._folder / "ipython")  # a VM shares no history with its user's home
        return environment

    def _await_output_channel(self, client: Any) -> None:
        """Ask until an answer comes on the output channel too: what a kernel says before that one is joined is lost.

        The kernel may answer on one channel before the other is connected, and a cell that ran then would never be
        seen to print or to end.
        """
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline and self._manager.is_alive():
            asked = client.kernel_info()
            until = time.monotonic() + _NUDGE_S
            while time.monotonic() < until:
                try:
                    message = client.get_iopub_msg(timeout=_POLL_S)
                except queue.Empty:
                    continue
                if message["parent_header"].get("msg_id") == asked:
                    return

    def _start_cells(self) -> None:
        self._cells = code_cells(self._notebook)
        self._ran += 1
        self._next_cell()

    def _next_cell(self) -> None:
        if not self._cells or self._client is None:
            self._waiting_for = ""
            self._record(CellState.DONE)
            return
        self._waiting_for = self._client.execute(self._cells.pop(0), store_history=True)
        self._record(CellState.RUNNING)

    def _read_output(self) -> None:
        if self._client is None:
            return
        try:
            message = self._client.get_iopub_msg(timeout=_POLL_S)
        except queue.Empty:
            return
        kind, content = message["msg_type"], message["content"]
        text = _text(kind, content)
        self._unsaid = (self._unsaid + text)[-_UNSAID_CHARS:]
        if message["parent_header"].get("msg_id") != self._waiting_for:
            return
        if kind == "error":
            self._cells, self._waiting_for = [], ""
            self._record(CellState.ERROR, error=f"{content['ename']}: {content['evalue']}"[:500])
        elif kind == "status" and content["execution_state"] == "idle":
            self._next_cell()

    def _record(self, cell: str, **values: str) -> None:
        pid = os.getpid()
        record = {
            "v": names.RECORD_VERSION,
            "pid": pid,
            "start": processes.start_ticks(pid),
            "boot_id": processes.boot_id(),
            "cell": cell,
            "ran": self._ran,
            **values,
        }
        self._due = record if files.read_json(self._folder / HOST_RECORD) != record else None
        self._catch_up()

    def _catch_up(self) -> None:
        """Write what is due. A VM whose disk is full goes on, as one behind a real front end does."""
        with contextlib.suppress(OSError):
            if self._unsaid:
                with (self._folder / CELL_LOG).open("a", encoding="utf-8", errors="replace") as log:
                    log.write(self._unsaid)
                self._unsaid = ""
        with contextlib.suppress(OSError):
            if self._due is not None:
                files.write_json(self._folder / HOST_RECORD, self._due)
                self._due = None


def code_cells(notebook: Path) -> list[str]:
    """The sources of the code cells, top to bottom."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    sources = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
    return [source if isinstance(source, str) else "".join(source) for source in sources]


def _text(kind: str, content: dict[str, Any]) -> str:
    if kind == "stream":
        return str(content["text"])
    if kind == "error":
        return "\n".join([*content["traceback"], ""])
    if kind in ("execute_result", "display_data"):
        return str(content["data"].get("text/plain", "")) + "\n"
    return ""


def main() -> int:
    folder, notebook = Path(sys.argv[1]), Path(sys.argv[2])
    return NotebookHost(folder, notebook).run()


if __name__ == "__main__":
    sys.exit(main())
