"""A VM with all of its daemons as processes, for tests of what a whole VM does."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from bridge_client import LiveBridge
from bridgehead import names, processes
from bridgehead.records import StoreSpec, VmRules
from vm_daemons import launch
from vm_run_support import log_of, vm_home

PATIENCE_S = 2.0


class Vm:
    """A home, and all of its daemons as processes."""

    def __init__(self, root: Path, drive: Path | None, live: LiveBridge, url: str = "") -> None:
        self.home = vm_home(root, store=drive)
        self.home.save_pairing(live.bridge.pairing(url or f"http://127.0.0.1:{live.bridge.port}"))
        kind = "folder" if drive is not None else "mount"
        self.home.update_record(
            vm_rules=VmRules(lost_after_s=PATIENCE_S).to_json(), store_spec=StoreSpec(kind).to_json()
        )
        self.vm_id = str(self.home.record()["vm_id"])
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        env = {**os.environ, names.ENV_HOME: str(self.home.root), "PYTHONPATH": str(launch.SHIP), "PYTHONSAFEPATH": "1"}
        for name in names.DAEMONS:
            with (self.home.state / f"{name}.log").open("ab") as log:
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", f"vm_daemons.{name}"],
                        env=env,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )

    def signal(self, sig: signal.Signals) -> None:
        for pid in processes.tagged(names.ENV_HOME, str(self.home.root), but_not=[os.getpid()]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sig)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        for process in self._processes:
            process.kill()
            process.wait(100)

    def die(self) -> None:
        """With its disk."""
        self.kill()
        shutil.rmtree(self.home.root)

    def log(self, run_id: str) -> str:
        return log_of(self.home.run(run_id))
