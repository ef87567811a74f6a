"""What the notebook cell does for as long as it runs: keep the kernel busy, say a line a minute, mind the daemons,
mount the store again when it died, and give the VM back when everything is done and safe.

A notebook VM whose kernel is idle is taken away, however busy its daemons are. So this loop is what keeps the VM, and
nothing that goes wrong in one of its chores keeps it from the others.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable

from bridgehead import announcement, files, names, processes, upload_text
from bridgehead.records import duration
from vm_daemons import address, beats, daemons, lifetime, release, run_price
from vm_daemons.gauges import age_s
from vm_daemons.home import VmHome
from vm_daemons.mounting import Remounter
from vm_daemons.release import Release

LINE_EVERY_S = 60.0
CHECK_EVERY_S = 5.0
STUCK_AFTER_S = 300.0  # without a sign of life from a daemon's own loop
UPLOADER_STUCK_AFTER_S = 900.0  # a sick store may hold it for long, and to be killed helps it only when it hangs
PATIENCE_MAX_S = 3600.0  # when to be started anew did not help


def say(text: str) -> None:
    """One line under the cell; a front end that is gone must not end the loop."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def heartbeat_loop(
    home: VmHome, pause: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic
) -> None:
    """Runs until the VM is given back, or until it is interrupted, and then stops nothing but itself."""
    heart = Heart(home, clock)
    try:
        while not heart.turn():
            pause(CHECK_EVERY_S)
    except KeyboardInterrupt:
        say("interrupted: only this heartbeat has stopped. Daemons and runs go on; run the cell again to keep the VM.")
        return
    say("given back: the cell is done. Run it again for a new start.")


class Heart:
    """One turn after the other; `turn` returns True once the VM was given back."""

    def __init__(self, home: VmHome, clock: Callable[[], float] = time.monotonic) -> None:
        self._home = home
        self._clock = clock
        self._watch = beats.Watch(home, clock)
        self._patience: dict[str, tuple[float, float]] = {}  # of those that were killed: seconds, and when
        self._remounter = Remounter(home, say, clock)
        self._release = Release(home, say, clock)
        self._verdict: release.Verdict | None = None
        self._next_line = clock()
        self._bridge = ""  # its address
        self._said: dict[str, tuple[str, float]] = {}
        self._told: dict[str, str] = {}  # by chore: its last trouble, said once

    def turn(self) -> bool:
        for chore in (
            self._leave_mark,
            self._mind_daemons,
            self._mind_silence,
            self._tell_of_moves,
            self._remounter.mind,
            self._look_ahead,
            self._say_line,
        ):
            try:
                chore()
                self._told.pop(chore.__name__, None)
            except Exception as error:  # noqa: BLE001 - process edge: whatever is wrong, this loop keeps the VM
                self._say_once(chore.__name__, f"trouble: {type(error).__name__}: {error}")
        try:
            return self._verdict is not None and self._verdict.now and self._release.go()
        except Exception as error:  # noqa: BLE001 - the same
            self._say_once("release", f"trouble with giving the VM back: {type(error).__name__}: {error}")
            return False

    # --- chores ------------------------------------------------------------------------------------

    def _leave_mark(self) -> None:
        (self._home.state / daemons.CELL_MARK).touch()

    def _mind_daemons(self) -> None:
        for name, state in daemons.ensure(self._home).items():
            if state != "running":
                self._watch.forget(name)
                self._say_seldom(name, f"{name}: {state}; its last words: {_last_line(self._home, name)}")

    def _mind_silence(self) -> None:
        """Kill a daemon that lives and hangs; the next turn starts it anew."""
        for name, silent_s in self._watch.look().items():
            least_s = UPLOADER_STUCK_AFTER_S if name == names.UPLOADER else STUCK_AFTER_S
            patience_s, killed_at = self._patience.get(name, (least_s, 0.0))
            if silent_s < CHECK_EVERY_S and self._clock() - killed_at > 2 * patience_s:
                self._patience.pop(name, None)  # it has worked for longer than it took to lose patience
            if silent_s < patience_s or (record := daemons.running(self._home, name)) is None:
                continue
            say(f"{name}: it lives, and has given no sign of life for {duration(silent_s)}: killed, and started anew")
            processes.send(int(record["pid"]), signal.SIGKILL, started_ticks=int(record["start_ticks"]))
            self._watch.forget(name)
            self._patience[name] = (min(PATIENCE_MAX_S, patience_s * 2), self._clock())

    def _tell_of_moves(self) -> None:
        before, self._bridge = self._bridge, self._home.pairing().url
        if before not in ("", self._bridge):
            say(f"the bridge moved to {announcement.host_of(self._bridge)}")

    def _look_ahead(self) -> None:
        """The cap, and whether the VM may be given back."""
        self._verdict = None  # of trouble with the look nobody concludes that all is well
        self._verdict = self._release.look()
        note = lifetime.outlook(self._home).note
        if note:
            self._say_once("cap", f"this VM: {note}")

    def _say_line(self) -> None:
        now = self._clock()
        if now >= self._next_line:
            say(summary(self._home, self._verdict))
            due = self._next_line + LINE_EVERY_S
            self._next_line = due if due > now else now + LINE_EVERY_S  # one line, however long this machine slept

    def _say_seldom(self, what: str, text: str) -> None:
        """Of one that dies at each start, a line a minute."""
        text_before, said_at = self._said.get(what, ("", 0.0))
        if text != text_before or self._clock() - said_at >= LINE_EVERY_S:
            self._said[what] = (text, self._clock())
            say(text)

    def _say_once(self, chore: str, text: str) -> None:
        if self._told.get(chore) != text:
            self._told[chore] = text
            say(text)


def summary(home: VmHome, verdict: release.Verdict | None = None) -> str:
    """Time, VM, its age, when the laptop last answered, each run that has not fully left it, and why it stays."""
    contact_s = age_s(home.state / daemons.CONTACT_MARK)
    answered = "the laptop has not answered yet" if contact_s is None else f"laptop answered {duration(contact_s)} ago"
    contact = address.waits(home) or answered
    seen = lifetime.outlook(home)
    age = duration(seen.age_s) + (f" of {duration(seen.cap_s)}" if seen.cap_s else "")
    head = f"{time.strftime('%H:%M')} {home.record()['vm_id']} · {contact} · up {age} · "
    uploads = upload_text.line(files.read_json(home.state / names.VM_UPLOADS))
    stays = f" · {release.stays_for(verdict)}" if verdict is not None else ""
    return head + ("; ".join(_run_lines(home)) or "no run") + (f" · {uploads}" if uploads else "") + stays


def _run_lines(home: VmHome) -> list[str]:
    lines, waits = [], address.waits(home)
    for folder in sorted(home.runs.iterdir()):
        if not (folder / names.MIRRORED).exists():
            try:
                text = (folder / names.STATUS_LINE).read_text().strip().removesuffix(f" · {waits}")
                lines.append(" · ".join(filter(None, [text, run_price.line(folder, time.time())])))
            except OSError:
                continue  # too new to have one
    return lines


def _last_line(home: VmHome, name: str) -> str:
    path = daemons.log_file(home, name)
    try:
        with path.open("rb") as handle:
            handle.seek(max(0, handle.seek(0, os.SEEK_END) - 2000))
            lines = handle.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return "none"
    return lines[-1][-200:] if lines else "none"
