"""What lies in in/<run>/: its log, its progress, its results and what it made; each read on from where it was."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bridgehead import files, names
from control_panel.log_text import LogTail, plain
from control_panel.series import Point
from control_panel.shapes import Artifact, HashState
from run_control import pace
from run_control.live_view import Cached, Stamp, stamp
from run_control.pace import Pace

PROGRESS_MAX_BYTES: Final = 512 * 1024  # of progress.jsonl at one look: some 2,500 events
FILES_MAX: Final = 200  # artifacts that are listed of one run


class RunFiles:
    """One run's folder, for one thread."""

    def __init__(self, folder: Path, run: str) -> None:
        self.run = run
        self.folder = folder
        self.log = LogTail(folder / names.LOG, run)
        self.pace = Pace()
        self.resumed: list[list[int]] = []
        self._progress = folder / names.PROGRESS
        self._stamp: Stamp | None = None
        self._offset = 0
        self._rest = b""
        self._results = Cached(folder / names.RESULTS, lambda: files.read_json(folder / names.RESULTS))
        self._fingerprint = Cached(folder / names.RUN_RECORD, lambda: files.read_json(folder / names.RUN_RECORD))
        self._postmortem = Cached(folder / names.POSTMORTEM, lambda: files.read_json(folder / names.POSTMORTEM))
        self._made: tuple[tuple[Any, ...], list[Artifact]] = ((), [])

    def points(self) -> dict[str, list[Point]]:
        """metric -> (step, value) of what it has told since the last call; epochs where it counts no steps."""
        found: dict[str, list[Point]] = {}
        for event in self._events():
            self.pace.add(event)
            if event.get("event") == "resumed":
                mark = [self.pace.attempt, _whole(event.get("step"))]
                self.resumed = [*self.resumed[-19:], mark] if mark not in self.resumed else self.resumed
            metrics = event.get("metrics")
            step = _whole(event.get("step")) or _whole(event.get("epoch"))
            for name, value in metrics.items() if isinstance(metrics, dict) else ():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    found.setdefault(plain(str(name), 64), []).append((step, float(value)))
        return found

    @property
    def verdict(self) -> str:
        """The gate's, from its results; "" for other runs."""
        found = self._quietly(self._results)
        return plain(str(found.get("verdict", "")), 40)

    @property
    def verdict_why(self) -> str:
        """The metrics that the gate found wanting, in its words; "" for other runs."""
        why = self._quietly(self._results).get("why")
        return plain("; ".join(map(str, why[:3])), 300) if isinstance(why, list) else ""

    def cause(self, attempt: int) -> dict[str, Any]:
        """The verdict of this attempt's post-mortem: class, detail, hint, next_step; empty while there is none."""
        record = self._quietly(self._postmortem)
        end, verdict = record.get("end"), record.get("verdict")
        mine = isinstance(end, dict) and end.get("attempt") in (attempt, None)
        return verdict if mine and isinstance(verdict, dict) else {}

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Of the image that its last attempt ran on."""
        found = self._quietly(self._fingerprint).get("fingerprint")
        return found if isinstance(found, dict) else {}

    def artifacts(self, *, anew: bool) -> list[Artifact]:
        """Files that have arrived whole. The bridge compares each with its digest before it gets its name.

        `anew` also sees what changed in folders below; without it only a change at the top is noticed.
        """
        folders = [self.folder / name for name in names.ARTIFACT_FOLDERS]
        mark = tuple(stamp(path) for path in (*folders, self.folder / names.RESULTS))
        if anew or mark != self._made[0]:
            self._made = mark, self._list()
        return self._made[1]

    def _list(self) -> list[Artifact]:
        found = []
        bundle = self.folder / names.BUNDLE
        if bundle.is_dir():
            sizes = [entry.stat().st_size for entry in _walk(bundle)]
            whole = (bundle / names.BUNDLE_MANIFEST).exists()
            state = HashState.UNCHECKED if whole else HashState.ARRIVING
            found.append(Artifact(self.run, names.BUNDLE, sum(sizes), state, "bundle", _mtime(bundle)))
        for entry in _walk(self.folder / names.ARTIFACTS):
            kind = "encoder" if entry.name == names.ENCODER_WEIGHTS else "other"
            path = Path(entry.path).relative_to(self.folder).as_posix()
            size, t = entry.stat().st_size, entry.stat().st_mtime
            found.append(Artifact(self.run, path, size, HashState.VERIFIED, kind, t))
        results = stamp(self.folder / names.RESULTS)
        if results is not None:
            found.append(Artifact(self.run, names.RESULTS, results[1], HashState.VERIFIED, "results", results[2] / 1e9))
        return found

    def _events(self) -> list[dict[str, Any]]:
        found = stamp(self._progress)
        if found is None or (found == self._stamp and self._offset >= found[1]):
            return []
        if self._stamp is None or found[0] != self._stamp[0] or found[1] < self._offset:
            self._offset, self._rest = 0, b""  # another file: told from its beginning, which replaces the curve
        self._stamp = found
        try:
            with self._progress.open("rb") as handle:
                handle.seek(self._offset)
                data = handle.read(PROGRESS_MAX_BYTES)
        except OSError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-65_536:]
        return pace.parse(lines)

    def _quietly(self, cached: Cached[Any]) -> dict[str, Any]:
        try:
            found = cached.get()
        except OSError:
            return {}
        return found if isinstance(found, dict) else {}


def _walk(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Plain files below `folder`, at most FILES_MAX; links are not followed and temp files left out."""
    left, folders = FILES_MAX, [str(folder)]
    while folders and left > 0:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in sorted(entries, key=lambda item: item.name):
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.is_file(follow_symlinks=False) and not entry.name.startswith(files.TEMP_PREFIX):
                    left -= 1
                    yield entry


def _mtime(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
