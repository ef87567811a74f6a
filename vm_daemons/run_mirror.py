"""One run on its way off this VM: what has been shipped, what is left, and when it is all gone.

Threads of the status daemon share one object per run; each method says whose it is, and each field has one writer.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path
from typing import Any

from bridgehead import files, names
from bridgehead.records import RunRecord, Status
from vm_daemons import outputs, post_mortem, run_status
from vm_daemons.artefacts import Artefacts
from vm_daemons.client import BridgeClient
from vm_daemons.upload_pace import UploadPace
from vm_daemons.uploads import GrowingUpload

STATUS_EVERY_S = 0.5
SINGLE_PUT_BYTES = 16 * 2**20
_RELIEVE_EVERY_S = 2.0
_LIVENESS_EVERY_S = 3.0  # a process can die without a trace in any file
_STATUS_SOURCES = (names.RUN_RECORD, names.PROCESS, names.PROGRESS, names.EXIT)
# exit.json goes last: whoever sees it on the laptop finds the rest there too.
_STATE_FILES = (*(name for name in names.STATE_FILES if name != names.EXIT), *names.POSTMORTEM_FILES)


class RunMirror:
    """A run folder of one attempt."""

    def __init__(
        self, client: BridgeClient, run_dir: Path, record: RunRecord, artefacts: Artefacts | None = None
    ) -> None:
        self.run_dir = run_dir
        self.record = record
        self.status: Status | None = None
        self.abandoned = False  # it belongs to another VM or attempt now
        self.logs_shipped = False  # complete, and so since it ended
        self.outputs_shipped = False
        self.refused: dict[str, str] = {}  # outputs that can't be sent, and why
        self.store_took_at = time.monotonic()  # when the store last took all that there was
        self.mirrored_at = 0.0  # monotonic; when all had left this VM
        self._levels: dict[str, Any] = {}  # the uploader's checkpoints.json
        self.not_before = 0.0  # monotonic; the laptop refused us, so leave it alone until then
        self._client = client
        self._artefacts = artefacts or Artefacts(client, UploadPace())
        self._shipping = threading.Lock()  # held by the thread that ships its outputs
        self._growing = [
            GrowingUpload(client, record.run_id, record.attempt, run_dir / name, name) for name in names.GROWING_FILES
        ]
        self._sent: dict[str, tuple[int, int]] = {}  # name → (mtime_ns, size) that the laptop has
        self._state_sent_at = 0.0
        self._relieved_at = float("-inf")  # monotonic
        self._looked: object = None
        self._composed_at = float("-inf")  # monotonic
        self._levels_mark: tuple[int, int] | None = None
        self._waits = ""  # what the last status.txt said that this VM waits for
        self._composed_with: tuple[int, int] | None = None  # mark of the checkpoints.json that the status tells of

    @property
    def ended(self) -> bool:
        """Whether this very attempt has ended; the exit record of an earlier one may still lie there."""
        record = run_status.read_exit(self.run_dir)
        return record is not None and record.attempt == self.record.attempt

    @property
    def shipped(self) -> bool:
        """Whether the laptop has all of it, the last status included."""
        told = self._composed_with == self._levels_mark and all(map(self._is_sent, (*_STATE_FILES, names.EXIT)))
        return told and self.logs_shipped and self.outputs_shipped

    @property
    def store_complete(self) -> bool:
        """Whether all that this attempt left is in the store."""
        return self.ended and self._levels.get("complete_attempt") == self.record.attempt

    @property
    def is_settled(self) -> bool:
        """Whether its checkpoints have climbed as high as they will."""
        return bool(self._levels.get("settled"))

    # --- main thread --------------------------------------------------------------------------------

    def compose(self, now: float, waits: str = "") -> None:
        """Write status.json and status.txt when something in them changed, at most twice a second.

        `waits`: what this VM waits for; at the end of status.txt, for whoever looks at it here or in the store.
        """
        self._read_levels()
        looked = (self._levels_mark, [_mark(self.run_dir / name) for name in _STATUS_SOURCES])
        pace_s = _LIVENESS_EVERY_S if looked == self._looked else 0.0 if self.ended else STATUS_EVERY_S
        moment = time.monotonic()  # the time of day may jump
        if moment - self._composed_at < pace_s:
            return
        self._looked, self._composed_at = looked, moment
        status = run_status.compose(self.run_dir, self._levels, now)
        self._composed_with = self._levels_mark
        before, self._waits = self._waits, "" if self.ended else waits
        if (
            self.status is not None
            and dataclasses.replace(self.status, updated=now) == status
            and before == self._waits
        ):
            return
        line = " · ".join(filter(None, [status.line(), self._waits]))
        files.write_json(self.run_dir / names.STATUS, status.to_json())
        files.write_atomic(self.run_dir / names.STATUS_LINE, (line + "\n").encode())
        self.status = status

    def relieve_log(self, cap_bytes: int) -> None:
        """Keep a runaway log from filling this VM's disk, whether the laptop answers or not."""
        if time.monotonic() - self._relieved_at < _RELIEVE_EVERY_S or self.logs_shipped:
            return
        self._relieved_at = time.monotonic()
        for growing, name in zip(self._growing, names.GROWING_FILES, strict=True):
            if name == names.LOG and (line := growing.relieve(cap_bytes)):
                files.append_line(self.run_dir / names.LOG, line, durable=False)

    def write_mirrored(self, store: str) -> None:
        """All that can leave has left. `store`: complete, none, or dead (it goes on being tried)."""
        told: dict[str, Any] = {"v": names.RECORD_VERSION, "attempt": self.record.attempt, "at": time.time()}
        files.write_json(self.run_dir / names.MIRRORED, {**told, "store": store, "refused": self.refused})
        if store != "dead":
            self.mirrored_at = time.monotonic()

    def _read_levels(self) -> None:
        mark = _mark(self.run_dir / names.CHECKPOINT_LEVELS)
        if mark != self._levels_mark:
            told = files.read_json(self.run_dir / names.CHECKPOINT_LEVELS)
            self._levels, self._levels_mark = {}, mark
            if isinstance(told, dict) and told.get("attempt") == self.record.attempt:
                self._levels = told
        if not self._levels.get("failing"):
            self.store_took_at = time.monotonic()

    # --- ship thread ------------------------------------------------------------------------------------

    def ship(self) -> bool:
        """One turn: a part of each growing file, and the state files that changed. True when more is waiting."""
        ended = self.ended  # asked first: what is written before exit.json is then seen below
        more = False
        for growing in self._growing:
            more = growing.ship() or more
        if time.monotonic() - self._state_sent_at >= STATUS_EVERY_S:
            if sum(self._send_if_changed(name) for name in _STATE_FILES):
                self._state_sent_at = time.monotonic()
        if ended and not more:
            self.logs_shipped = True
        return more

    # --- outputs thread ------------------------------------------------------------------------------------

    def ship_outputs(self, artefacts: Artefacts | None = None, most_bytes: float = float("inf")) -> bool:
        """artifacts/ and bundle/, then the state files, then exit.json. Files that were sent are not sent again.

        False, and nothing done, while another thread does it, or when there is more to send than `most_bytes`.
        """
        if self.status is None or self.status.state not in names.ENDED:
            return False  # the last status has still to be composed
        if post_mortem.is_due(self.run_dir):
            return False  # seconds at most; exit.json goes after it, so that the laptop finds it there
        if not self._shipping.acquire(blocking=False):
            return False
        try:
            self._artefacts = artefacts or self._artefacts
            return self._ship_outputs(most_bytes)
        finally:
            self._shipping.release()

    def _ship_outputs(self, most_bytes: float) -> bool:
        found, left = outputs.find(self.run_dir)
        marks = {relative: mark for relative in found if (mark := _mark(self.run_dir / relative)) is not None}
        left_over = [relative for relative, mark in marks.items() if self._sent.get(relative) != mark]
        if sum(marks[relative][1] for relative in left_over) > most_bytes:
            return False
        self.refused.update(left)
        if left_over:
            self.refused.update(self._send_whole(left_over))
            self._sent.update(marks)
        for name in (*_STATE_FILES, names.EXIT):
            self._send_if_changed(name)
        self.outputs_shipped = True
        return True

    def _is_sent(self, relative: str) -> bool:
        mark = _mark(self.run_dir / relative)
        return mark is None or self._sent.get(relative) == mark

    def _send_if_changed(self, relative: str) -> bool:
        path = self.run_dir / relative
        mark = _mark(path)
        if mark is None or self._sent.get(relative) == mark:
            return False
        if mark[1] <= SINGLE_PUT_BYTES:
            self._client.put(self.record.run_id, relative, path, self.record.attempt)
        else:
            self.refused.update(self._send_whole([relative]))
        self._sent[relative] = mark
        return True

    def _send_whole(self, relatives: list[str]) -> dict[str, str]:
        return self._artefacts.send(self.run_dir, self.record.run_id, self.record.attempt, relatives)


def _mark(path: Path) -> tuple[int, int] | None:
    """What tells one version of a file from another; None when there is none."""
    found = files.plain_stat(path)
    return None if found is None else (found.st_mtime_ns, found.st_size)
