"""What the notebook cell does for as long as it runs: keep the kernel busy, say a line a minute, mind the daemons.

A notebook VM whose kernel is idle is taken away, however busy its daemons are. So this loop is what keeps the VM.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from bridgehead import names
from bridgehead.records import duration
from vm_daemons import daemons
from vm_daemons.gauges import age_s
from vm_daemons.home import VmHome

LINE_EVERY_S = 60.0
CHECK_EVERY_S = 5.0


def say(text: str) -> None:
    """One line under the cell."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def heartbeat_loop(home: VmHome, pause: Callable[[float], None] = time.sleep) -> None:
    """Runs until it is interrupted, and then stops nothing but itself."""
    next_line, told = time.monotonic(), ""
    try:
        while True:
            try:
                (home.state / daemons.CELL_MARK).touch()
                _mind_daemons(home)
                if time.monotonic() >= next_line:
                    say(summary(home))
                    next_line += LINE_EVERY_S
            except Exception as error:  # noqa: BLE001 - process edge: whatever is wrong, this loop keeps the VM
                if told != (told := f"trouble: {type(error).__name__}: {error}"):
                    say(told)
            pause(CHECK_EVERY_S)
    except KeyboardInterrupt:
        say("interrupted: only this heartbeat has stopped. Daemons and runs go on; run the cell again to keep the VM.")


def summary(home: VmHome) -> str:
    """Time, VM, when the laptop last answered, and each run that has not fully left this VM."""
    contact_s = age_s(home.state / daemons.CONTACT_MARK)
    contact = "the laptop has not answered yet" if contact_s is None else f"laptop answered {duration(contact_s)} ago"
    runs = _run_lines(home)
    head = f"{time.strftime('%H:%M')} {home.record()['vm_id']} · {contact} · "
    return head + ("no run" if not runs else "; ".join(runs))


def _run_lines(home: VmHome) -> list[str]:
    lines = []
    for folder in sorted(home.runs.iterdir()):
        if not (folder / names.MIRRORED).exists():
            try:
                lines.append((folder / names.STATUS_LINE).read_text().strip())
            except OSError:
                continue  # too new to have one
    return lines


def _mind_daemons(home: VmHome) -> None:
    for name, state in daemons.ensure(home).items():
        if state != "running":
            say(f"{name}: {state}; its last words: {_last_line(home, name)}")


def _last_line(home: VmHome, name: str) -> str:
    path = daemons.log_file(home, name)
    try:
        with path.open("rb") as handle:
            handle.seek(max(0, handle.seek(0, os.SEEK_END) - 2000))
            lines = handle.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return "none"
    return lines[-1][-200:] if lines else "none"
