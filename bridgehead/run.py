"""The stage API: what a training script imports.

    import bridgehead

    run = bridgehead.current_run()
    saved = run.latest_checkpoint()                    # verified, or None
    for epoch in range(start, run.config.get("epochs", 10)):
        ...
        run.progress(step=step, total_steps=total, epoch=epoch, total_epochs=epochs, loss=loss)
        if run.checkpoint_due(epoch) or run.should_stop:
            with run.checkpoint(step, epoch=epoch) as folder:
                (folder / "state.bin").write_bytes(...)
        if run.should_stop:
            run.exit_stopped()
    run.results({"loss": loss})

The same can be done in any language: docs/wire.md, "A stage in another language". Outside of Bridgehead the same
script runs too, in the folder ./bridgehead-run.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from bridgehead import checkpoints, files, names, paths
from bridgehead.checkpoints import Checkpoint
from bridgehead.errors import NotFoundError, UsageError, VerificationError
from bridgehead.records import RunRecord, StageSpec

STOPPED_EXIT_CODE = 143  # what a process that SIGTERM ended would show


class Run:
    """One run of one stage, seen from inside its process."""

    def __init__(self, folder: Path, record: RunRecord) -> None:
        self.folder = folder
        self.record = record
        self.run_id = record.run_id
        self.stage = record.stage
        self.attempt = record.attempt
        self.config: dict[str, Any] = dict(record.spec.config)
        self._stop = False
        self._saved_at = time.monotonic()
        self._progress_fd: int | None = None

    # --- what it is told --------------------------------------------------------------------

    @property
    def should_stop(self) -> bool:
        """True once SIGTERM arrived or the file `stop` lies in the run folder: save, then `exit_stopped()`."""
        return self._stop or (self.folder / names.STOP_REQUEST).exists()

    def input(self, stage: str) -> Path:
        """The finished run folder of a stage that this one comes after. Raises NotFoundError."""
        inputs = json.loads(os.environ.get(names.ENV_INPUTS, "{}"))
        if stage not in inputs:
            raise NotFoundError(
                f"{self.stage} was not given the output of {stage!r}",
                hint=f"add {stage} to the `after` of [stages.{self.stage}] in {names.PROJECT_FILE}",
            )
        return Path(inputs[stage])

    def latest_checkpoint(self, must_match: Mapping[str, object] | None = None) -> Checkpoint | None:
        """The newest checkpoint that verifies, every hash checked before you load a byte of it.

        `must_match` names what its `meta` has to say, a pool or config fingerprint for example; VerificationError
        tells what differs. With checkpoints on disk of which none verifies it raises VerificationError too, and
        never starts again from nothing in silence.
        """
        found, passed = checkpoints.newest(self.folder / names.CHECKPOINTS)
        for bad in passed:
            self.message(f"passed over checkpoint {bad.step}: {bad.why}")
        if found is None:
            if passed:
                raise VerificationError(
                    f"none of {len(passed)} checkpoints verifies; the newest: {passed[0].why}",
                    hint=f"look at {names.CHECKPOINTS}/{checkpoints.QUARANTINE_PREFIX}*; remove them to start anew",
                )
            return None
        for key, wanted in (must_match or {}).items():
            if found.meta.get(key) != wanted:
                raise VerificationError(
                    f"checkpoint {found.step} was made with {key} = {found.meta.get(key)!r}, this run has {wanted!r}",
                    hint="queue a new run, or give back the old setting",
                )
        self._event("resumed", step=found.step, epoch=found.meta.get("epoch", 0))
        return found

    def checkpoint_due(self, epoch: int) -> bool:
        """Whether a checkpoint is due at the end of `epoch` (counted from 1): every N epochs or T seconds."""
        spec = self.record.spec
        if spec.checkpoint_every_epochs > 0 and epoch % spec.checkpoint_every_epochs == 0:
            return True
        return 0 < spec.checkpoint_every_s <= time.monotonic() - self._saved_at

    # --- what it tells -------------------------------------------------------------------------

    def progress(
        self,
        *,
        step: int,
        total_steps: int = 0,
        epoch: int = 0,
        total_epochs: int = 0,
        **metrics: float,
    ) -> None:
        """Say how far it is. One unbuffered write: call it a few times a second, not in each step."""
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        wild = sorted(set(metrics) - set(finite))
        self._event(
            "progress",
            step=step,
            total_steps=total_steps,
            epoch=epoch,
            total_epochs=total_epochs,
            metrics=finite,
            **({"not_finite": wild} if wild else {}),
        )

    def message(self, text: str) -> None:
        """One line for status and panel; also printed, so that the log has it."""
        print(text, flush=True)
        self._event("message", text=text[:500])

    @contextlib.contextmanager
    def checkpoint(self, step: int, *, epoch: int = 0, **meta: object) -> Iterator[Path]:
        """Yield an empty folder; what you write there becomes checkpoint `step` when the block ends.

        The older ones beyond `keep_checkpoints` go afterwards. Raises UsageError and OSError; the earlier
        checkpoints are then still there.
        """
        root = self.folder / names.CHECKPOINTS
        self._event("saving", step=step, epoch=epoch)
        with checkpoints.staging(root) as folder:
            yield folder
            labels = {"run_id": self.run_id, "attempt": self.attempt, "epoch": epoch, **meta}
            saved = checkpoints.commit(folder, root, step, labels)
        checkpoints.retain(root, self.record.spec.keep_checkpoints)
        self._saved_at = time.monotonic()
        self._event("checkpoint", step=step, epoch=epoch, size_bytes=saved.size_bytes)

    def results(self, values: Mapping[str, object]) -> None:
        """Write results.json, whole; the last call wins. Raises UsageError when it is not plain JSON."""
        try:
            json.dumps(values, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise UsageError(f"results must be plain JSON with finite numbers: {error}") from None
        files.write_json(
            self.folder / names.RESULTS,
            {"v": names.RECORD_VERSION, "run_id": self.run_id, "stage": self.stage, **values},
        )

    def artifact(self, name: str) -> Path:
        """Where to write a file that is to arrive in in/<run>/artifacts/. The folder exists."""
        path = paths.inside(self.folder / names.ARTIFACTS, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def bundle_folder(self) -> Path:
        """Where a ship bundle is to be written; arrives in in/<run>/bundle/."""
        return self.folder / names.BUNDLE

    def exit_stopped(self) -> NoReturn:
        """Leave after a stop was asked for and the checkpoint is written."""
        raise SystemExit(STOPPED_EXIT_CODE)

    # --- inside ------------------------------------------------------------------------------------

    def on_stop_signal(self, *_: object) -> None:
        self._stop = True

    def _event(self, event: str, **values: object) -> None:
        if self._progress_fd is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
            self._progress_fd = os.open(self.folder / names.PROGRESS, flags, 0o644)
        record = {"v": names.RECORD_VERSION, "at": round(time.time(), 3), "attempt": self.attempt, "event": event}
        os.write(self._progress_fd, (json.dumps({**record, **values}) + "\n").encode())


_current: Run | None = None


def current_run() -> Run:
    """The run that this process is. The first call takes over SIGTERM, which then means: save and leave."""
    global _current
    if _current is None:
        _current = _open_run()
        with contextlib.suppress(ValueError):  # not in the main thread: the stop file still works
            signal.signal(signal.SIGTERM, _current.on_stop_signal)
    return _current


def _open_run() -> Run:
    named = os.environ.get(names.ENV_RUN_DIR)
    if named is None:
        folder = Path.cwd() / "bridgehead-run"
        stage = Path(sys.argv[0]).stem or "script"
        spec = StageSpec(name=stage, command=" ".join(sys.argv))
        return Run(folder, RunRecord("standalone", stage, "", "", 1, "", time.time(), spec))
    record = files.read_json(Path(named) / names.RUN_RECORD)
    if record is None:
        raise NotFoundError(f"{named} holds no {names.RUN_RECORD}", hint="stages are started by the stage runner")
    return Run(Path(named), RunRecord.from_json(record))
