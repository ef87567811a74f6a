"""Nothing new arrives without a bridge: whoever follows a run has to hear of it instead of waiting for ever."""

from __future__ import annotations

import time

from bridgehead.errors import BridgeDownError
from run_control import bridge_control
from run_control.project import Project

GRACE_S = 10.0  # `bridgehead down` and `up` in a row are no reason to give up
_LOOK_EVERY_S = 1.0


class BridgeWatch:
    """`check()` as often as you like; it looks once a second."""

    def __init__(self, project: Project, again: str) -> None:
        self._project = project
        self._again = again
        self._looked_at = 0.0
        self._gone_since: float | None = None

    def check(self) -> None:
        """Raises BridgeDownError when no bridge has run for GRACE_S."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK_EVERY_S:
            return
        self._looked_at = now
        if bridge_control.find(self._project) is not None:
            self._gone_since = None
        elif self._gone_since is None:
            self._gone_since = now
        elif now - self._gone_since >= GRACE_S:
            raise BridgeDownError(
                "no bridge is running, so nothing new can arrive; runs go on on their VM",
                hint=f"bridgehead up, then {self._again}",
            )
