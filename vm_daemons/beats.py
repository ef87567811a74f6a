"""Signs of life: each daemon touches a file from its main loop, and the cell sees whether it still changes.

A process that hangs is alive to the kernel; only its own loop can tell that it works.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from bridgehead import names
from vm_daemons.home import VmHome

_ALSO = {names.UPLOADER: (names.VM_STORE_STATE,)}  # what a daemon writes anyway
GAP_S = 60.0  # the cell itself was away for so long: then nobody's silence counts


def beat(home: VmHome, name: str) -> None:
    """From a daemon's main loop, at least once a minute. A full or sick disk is no reason to fail."""
    with contextlib.suppress(OSError):
        path(home, name).touch()


def path(home: VmHome, name: str) -> Path:
    return home.state / f"{name}.beat"


class Watch:
    """How long each daemon has been silent, on this process's own clock.

    File times are not compared with the time of day: clocks jump, and after a laptop's sleep everything looks old.
    While the watcher itself was away nobody's silence grows.
    """

    def __init__(self, home: VmHome, clock: Callable[[], float] = time.monotonic) -> None:
        self._home = home
        self._clock = clock
        self._seen: dict[str, tuple[int, float]] = {}  # daemon -> its stamp, and when that was new
        self._looked_at = clock()

    def look(self) -> dict[str, float]:
        """Daemon → seconds without a new sign; only those that have ever given one."""
        now = self._clock()
        if now - self._looked_at > GAP_S:
            self._seen.clear()
        self._looked_at = now
        silent = {}
        for name in names.DAEMONS:
            stamp = self._stamp(name)
            if stamp is None:
                continue
            known, since = self._seen.get(name, (stamp, now))
            self._seen[name] = (stamp, since if known == stamp else now)
            silent[name] = now - self._seen[name][1]
        return silent

    def forget(self, name: str) -> None:
        """It was started anew: its silence counts from now."""
        self._seen.pop(name, None)

    def _stamp(self, name: str) -> int | None:
        stamps = []
        for place in (path(self._home, name), *(self._home.state / other for other in _ALSO.get(name, ()))):
            with contextlib.suppress(OSError):
                stamps.append(place.stat().st_mtime_ns)
        return max(stamps, default=None)
