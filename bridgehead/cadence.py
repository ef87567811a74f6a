"""When a checkpoint is due: every N epochs, N steps or T seconds, whichever comes first."""

from __future__ import annotations

import time

from bridgehead.records import StageSpec


class Cadence:
    """Asked at steps or at ends of epochs, as often as one likes; a due checkpoint stays due until it is taken."""

    def __init__(self, spec: StageSpec) -> None:
        self._epochs = spec.checkpoint_every_epochs
        self._steps = spec.checkpoint_every_steps
        self._seconds = spec.checkpoint_every_s
        self._epoch = 0  # complete ones when the last checkpoint was taken
        self._step = 0
        self._asked_epoch = 0
        self._taken_at = time.monotonic()
        self._put_off = False

    @property
    def never(self) -> bool:
        """Whether only the end and a stop save."""
        return self._epochs <= 0 and self._steps <= 0 and self._seconds <= 0

    def due(self, epoch: int, step: int | None) -> bool:
        """`epoch`: how many are complete; `step`: how many are done, None when it is not told."""
        self._asked_epoch = epoch
        if self._put_off:
            return True
        if self._epochs > 0 and epoch > 0 and epoch % self._epochs == 0 and epoch != self._epoch:
            return True
        if self._steps > 0 and step is not None and step // self._steps > self._step // self._steps:
            return True
        return 0 < self._seconds <= time.monotonic() - self._taken_at

    def put_off(self) -> None:
        """It is due and can't be taken yet: due again at the next step, also when its epoch is over by then."""
        self._put_off = True

    def taken(self, epoch: int, step: int) -> None:
        """A checkpoint of this moment begins, or one was resumed from."""
        self._epoch = max(epoch, self._asked_epoch)
        self._step = step
        self._taken_at = time.monotonic()
        self._put_off = False

    def resumed(self, epoch: int, step: int) -> None:
        """Everything counts from that checkpoint."""
        self._asked_epoch = 0
        self.taken(epoch, step)
