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

While a checkpoint is written the training can go on; torch_state.Snapshot makes the copies that this takes:

    snapshot = torch_state.Snapshot({"model": model, "optimizer": optimizer})
    ...
        if run.checkpoint_due(epoch, step):            # asked after each step
            run.checkpoint_async(step, lambda: snapshot.take(position=step), epoch=epoch)

The same can be done in any language: docs/wire.md, "A stage in another language". Outside of Bridgehead the same
script runs too, in the folder ./bridgehead-run.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from bridgehead import checkpoints, files, identity, image, names, paths, uncaught
from bridgehead.async_save import BackgroundSaver
from bridgehead.cadence import Cadence
from bridgehead.checkpoints import Checkpoint, CheckpointRefused, PassedOver
from bridgehead.errors import BridgeheadError, NotFoundError, RunFailed, UsageError
from bridgehead.identity import Identity
from bridgehead.records import RunRecord, StageSpec

STOPPED_EXIT_CODE = 143  # what a process that SIGTERM ended would show
T = TypeVar("T")
Take = Callable[[], Callable[[Path], object]]  # copies at once; what it returns writes the copies into a folder


class Run:
    """One run of one stage, seen from inside its process."""

    def __init__(self, folder: Path, record: RunRecord) -> None:
        self.folder = folder
        self.record = record
        self.run_id = record.run_id
        self.stage = record.stage
        self.attempt = record.attempt
        self.config: dict[str, Any] = dict(record.spec.config)
        self.drift: list[str] = []  # why equality bit for bit is no longer promised; empty: it is
        self.saved_step: int | None = None  # of the newest checkpoint that is whole on this disk
        self._stop = False
        self._identity = Identity(identity.code_of(record), dict(record.spec.config))
        self._cadence = Cadence(record.spec)
        self._saver = BackgroundSaver()
        self._said_dense = False
        self._progress_fd: int | None = None
        self._torn = False  # the last event was cut by a full disk

    # --- what it is told --------------------------------------------------------------------

    @property
    def should_stop(self) -> bool:
        """True once SIGTERM arrived or the file `stop` lies in the run folder: save, then `exit_stopped()`."""
        return self._stop or (self.folder / names.STOP_REQUEST).exists()

    @property
    def saves_only_at_the_end(self) -> bool:
        """Whether the project file asks for no checkpoint on the way: every interval is 0."""
        return self._cadence.never

    def input(self, stage: str) -> Path:
        """The finished run folder of a stage that this one comes after. Raises NotFoundError."""
        inputs = json.loads(os.environ.get(names.ENV_INPUTS, "{}"))
        if stage not in inputs:
            raise NotFoundError(
                f"{self.stage} was not given the output of {stage!r}",
                hint=f"add {stage} to the `after` of [stages.{self.stage}] in {names.PROJECT_FILE}",
            )
        return Path(inputs[stage])

    def declare(self, *, config: Mapping[str, Any] | None = None, neutral: Iterable[str] = (), pool: str = "") -> None:
        """Say what decides the result, before `latest_checkpoint`: a checkpoint made with another one is refused.

        `config` is the stage's own as the project file has it, unless given; `neutral` names keys of it that change
        nothing. `pool` is the data's fingerprint. The code's hash is known already. Raises UsageError.
        """
        values = self.record.spec.config if config is None else config
        skip = set(neutral)
        declared = Identity(
            identity.code_of(self.record), {key: values[key] for key in values if key not in skip}, pool
        )
        try:
            declared.meta()
        except (TypeError, ValueError) as error:
            raise UsageError(f"the declared config must be plain JSON: {error}") from None
        self._refuse_other_data(pool)
        self._identity = declared

    def latest_checkpoint(self, must_match: Mapping[str, object] | None = None) -> Checkpoint | None:
        """The newest checkpoint that verifies, every hash checked before you load a byte of it.

        CheckpointRefused (a VerificationError) tells what differs when it was made by other code, with another
        config or another pool, and the run's owner has not allowed that. `must_match` names what else its `meta`
        has to say. With checkpoints on disk of which none verifies it is raised too, and with resume= when there is
        none: a run never starts again from nothing in silence.
        """
        found, passed = checkpoints.newest(self.folder / names.CHECKPOINTS)
        self._report_passed_over(passed, found.step if found else 0)
        allowed = self.refuse(found, passed, must_match)
        if found is None:
            if self.attempt > 1:
                self.message(f"attempt {self.attempt} starts from the beginning: no checkpoint was saved before")
            return None
        self._note_drift(found, allowed)
        self.saved_step = found.step
        epoch = found.meta.get("epoch", 0)
        self._cadence.resumed(epoch if isinstance(epoch, int) else 0, found.step)
        self._event("resumed", step=found.step, epoch=epoch, drift=self.drift)
        return found

    def refuse(
        self, found: Checkpoint | None, passed: list[PassedOver], must_match: Mapping[str, object] | None = None
    ) -> list[str]:
        """Raises CheckpointRefused for what this run must not go on from; returns what differs and is allowed."""
        if found is not None:
            return self._refuse_strangers(found, must_match or {})
        self._refuse_to_begin_anew(checkpoints.quarantined(self.folder / names.CHECKPOINTS), passed)
        return []

    def checkpoint_due(self, epoch: int = 0, step: int | None = None) -> bool:
        """Whether a checkpoint is to be taken now: every N epochs, N steps or T seconds, as the project file says.

        `epoch`: how many are complete (from 1 at the end of the first). Ask at the end of each epoch, or with `step`
        (how many are done) after each step. While one is still being written the next one waits, and is due at the
        first step after that. Due at once while the file `save` lies in the run folder: the VM is near its end, and the
        checkpoint that is then written removes the file. Raises RunFailed when three in a row, and none for
        10 minutes, could be written.
        """
        self._hear_of_saving()
        if not self._cadence.due(epoch, step) and not self._save_asked:
            return False
        if not self._saver.busy:
            return True
        self._cadence.put_off()
        if not self._said_dense:
            self._said_dense = True
            self.message("checkpoints are due more often than one is written: each waits for the one before")
        return False

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
        self.say(text)
        self._event("message", text=text[:500])

    def say(self, text: str) -> None:
        """Print one line. On a full disk it is kept and comes with a later one."""
        with contextlib.suppress(OSError):
            print(text, flush=True)

    @contextlib.contextmanager
    def checkpoint(self, step: int, *, epoch: int = 0, **meta: object) -> Iterator[Path]:
        """Yield an empty folder; what you write there becomes checkpoint `step` when the block ends.

        The older ones beyond `keep_checkpoints` go afterwards. Raises UsageError and OSError; the earlier
        checkpoints are then still there.
        """
        step = checkpoints.check_step(step)
        self.finish_saving()
        self._event("saving", step=step, epoch=epoch)
        with self._committing(step, epoch, self._labels(epoch, meta)) as folder:
            yield folder
        self._cadence.taken(epoch, step)

    def checkpoint_async(self, step: int, take: Take, *, epoch: int = 0, **meta: object) -> bool:
        """Write checkpoint `step` while the next steps run; False, and nothing done, while another is being written.

        `take()` is called here and now: it copies the state, before anything changes it. What it returns is called
        on another thread with an empty folder to write the copies into; hashing, fsync and the rename are done
        there too. One that can't be written is said at a later step, and the next one is tried; the third in a
        row raises RunFailed, once the first is 10 minutes ago. The end of the script waits for the one in flight.
        """
        step = checkpoints.check_step(step)
        self._hear_of_saving()
        if self._saver.busy:
            return False
        self._event("saving", step=step, epoch=epoch)
        write, labels = take(), self._labels(epoch, meta)

        def save() -> None:
            with self._committing(step, epoch, labels) as folder:
                write(folder)

        self._cadence.taken(epoch, step)
        self._saver.start(step, save)
        return True

    def finish_saving(self) -> None:
        """Wait for the checkpoint in flight, if there is one, and say when it failed. Raises RunFailed."""
        self._saver.wait()
        self._hear_of_saving()

    def results(self, values: Mapping[str, object]) -> None:
        """Write results.json, whole; the last call wins. Raises UsageError when it is not plain JSON."""
        try:
            json.dumps(values, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise UsageError(f"results must be plain JSON with finite numbers: {error}") from None
        drift = {"drift": self.drift} if self.drift else {}
        record = {"v": names.RECORD_VERSION, "run_id": self.run_id, "stage": self.stage, **drift, **values}
        self.with_room(lambda: files.write_json(self.folder / names.RESULTS, record))

    def with_room(self, write: Callable[[], T]) -> T:
        """Call `write`, again and again for up to 10 minutes while the disk is full: hours of training hang on it.

        It must leave nothing half done when it raises. Raises what `write` does.
        """
        return files.with_room(write, on_full=lambda: self.message("the disk is full: waiting for room to write"))

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
        """Leave after a stop was asked for and the checkpoint is written; waits for one in flight."""
        self.finish_saving()
        raise SystemExit(STOPPED_EXIT_CODE)

    # --- inside ------------------------------------------------------------------------------------

    def on_stop_signal(self, *_: object) -> None:
        self._stop = True

    @property
    def _save_asked(self) -> bool:
        return (self.folder / names.SAVE_REQUEST).exists()

    @contextlib.contextmanager
    def _committing(self, step: int, epoch: int, labels: Mapping[str, object]) -> Iterator[Path]:
        root, asked = self.folder / names.CHECKPOINTS, self._save_asked
        with checkpoints.staging(root) as folder:
            yield folder
            try:
                saved = checkpoints.commit(folder, root, step, labels)
            except UsageError as error:  # most likely a file's name, which a framework chose
                raise UsageError(f"checkpoint {step} can't be kept: {error.message}", hint=error.hint) from None
        self.saved_step = step
        if asked:  # not one that came while this was being written
            (self.folder / names.SAVE_REQUEST).unlink(missing_ok=True)
        checkpoints.retain(root, self.record.spec.keep_checkpoints)
        self._event("checkpoint", step=step, epoch=epoch, size_bytes=saved.size_bytes)

    def _labels(self, epoch: int, meta: Mapping[str, object]) -> dict[str, object]:
        """What each checkpoint says of itself."""
        return {
            "run_id": self.run_id,
            "attempt": self.attempt,
            "epoch": epoch,
            "fingerprint": image.fingerprint(),
            "drift": list(self.drift),
            **self._identity.meta(),
            **meta,
        }

    def _hear_of_saving(self) -> None:
        if said := self._saver.heard():
            self.message(said)

    def _at_exit(self) -> None:
        """The interpreter has waited for the thread; what became of it is still to be said."""
        try:
            self._hear_of_saving()
        except RunFailed as error:
            self.message(error.message)

    def on_uncaught(self, error: BridgeheadError) -> None:
        """The script ends with it: one line instead of a traceback, the last thing that this attempt says."""
        with contextlib.suppress(RunFailed):  # about a save: what ends the script is the reason, and that is said
            self.finish_saving()
        self.message(error.in_one_line())

    def _report_passed_over(self, passed: list[PassedOver], found_step: int) -> None:
        lower = [bad.step for bad in passed[1:]] + [found_step]
        for bad, next_step in zip(passed, lower, strict=False):
            lost = max(0, bad.step - next_step)
            self._event("passed_over", name=bad.name, step=bad.step, why=bad.why, lost_steps=lost)
            self.message(f"passed over checkpoint {bad.step}: {bad.why}; that costs {lost} steps")

    def _refuse_to_begin_anew(self, bad: list[Path], passed: list[PassedOver]) -> None:
        if bad or passed:
            why = f"; the newest: {passed[0].why}" if passed else ""
            raise CheckpointRefused(
                f"none of {max(len(bad), len(passed))} checkpoints verifies{why}",
                hint=f"look at {names.CHECKPOINTS}/{checkpoints.QUARANTINE_PREFIX}*; remove them to start anew",
            )
        if self.record.spec.resume_from:
            raise CheckpointRefused(
                f"there is no checkpoint of {self.record.spec.resume_from} to begin at",
                hint="queue the stage without resume= to start from the beginning",
            )

    def _refuse_other_data(self, pool: str) -> None:
        """Where the run was pinned to a pool by its fingerprint alone, the stage is the one that can compare it."""
        data = self.record.spec.pins.spec.get("data")
        wanted = (
            data.get("fingerprint") if isinstance(data, dict) and not (data.get("path") or data.get("vm_path")) else ""
        )
        if pool and wanted and pool != wanted:
            raise CheckpointRefused(
                f"the data is another than the run was pinned to: {pool[:16]}… and not {str(wanted)[:16]}…",
                hint=f"bring the right one, or write the new fingerprint into {names.PROJECT_FILE}",
            )

    def _refuse_strangers(self, found: Checkpoint, must_match: Mapping[str, object]) -> list[str]:
        """Raises CheckpointRefused for what may not differ; returns what differs and was allowed."""
        meta, spec = found.meta, self.record.spec
        owner = meta.get("run_id", self.run_id)
        if owner != self.run_id and not spec.resume_from:
            raise CheckpointRefused(f"checkpoint {found.step} is of run {owner}", hint=f"queue it with resume={owner}")
        differing = self._identity.differences(meta)
        for key, wanted in must_match.items():
            if meta.get(key) != wanted:
                differing.setdefault(key, f"{key}: {meta.get(key)!r} → {wanted!r}")
        refused = [key for key in differing if key not in spec.allow]
        if refused:
            words = [key for key in refused if key in set(names.Allow)]
            flags = " ".join(f"--allow-{word}" for word in words)
            allow = (
                f"or queue it with --resume {self.run_id} {flags}" if len(words) == len(refused) else "or begin anew"
            )
            raise CheckpointRefused(
                f"checkpoint {found.step} was made with something else than this run has: "
                + "; ".join(differing[key] for key in refused),
                hint=f"give back what it was, {allow}",
            )
        return [f"{text} (allowed)" for text in differing.values()]

    def _note_drift(self, found: Checkpoint, allowed: list[str]) -> None:
        """Withdraw the promise of equal bits, in words and for good, where it no longer holds."""
        before, made_on = found.meta.get("drift"), found.meta.get("fingerprint")
        decisive, rest = image.differences(made_on if isinstance(made_on, dict) else {}, image.fingerprint())
        new = [*allowed, *decisive]
        self.drift = list(dict.fromkeys([*(before if isinstance(before, list) else []), *new]))
        if rest and not decisive:
            self.message(f"another machine, the same where it matters: {'; '.join(rest)}")
        if self.drift:
            self.message(f"equality bit for bit is no longer promised: {'; '.join(self.drift)}")

    def _event(self, event: str, **values: object) -> None:
        if self._progress_fd is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
            self._progress_fd = os.open(self.folder / names.PROGRESS, flags, 0o644)
        record = {"v": names.RECORD_VERSION, "at": round(time.time(), 3), "attempt": self.attempt, "event": event}
        line = (json.dumps({**record, **values}) + "\n").encode()
        if self._torn:  # so that the half line joins nothing
            line = b"\n" + line
        try:
            written = os.write(self._progress_fd, line)
        except OSError:  # a full disk: what can't be told is no reason to stop training
            return
        self._torn = written < len(line)


_current: Run | None = None


def current_run() -> Run:
    """The run that this process is. The first call takes over SIGTERM, which then means: save and leave.

    From then on an error of ours that the script does not catch, such as a refused checkpoint, is one line and not a
    traceback, and in a stage it ends with the error's own exit code.
    """
    global _current
    if _current is None:
        _current = _open_run()
        atexit.register(_current._at_exit)
        uncaught.install(_current.on_uncaught, leaves=names.ENV_RUN_DIR in os.environ, folder=_current.folder)
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
