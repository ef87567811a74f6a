"""Weights & Biases. Online a run is open while it lives and goes on under its id; offline it is written once, whole.

W&B keeps one row for each step, takes no step twice and none that lies before the newest. Online it says at the start
how far it has come; what its own process still held when it was ended is told again from there. An offline folder can't
be continued, has neither summary nor config before its end, and is read from its beginning by each `wandb sync`: so
there is one for each run that has ended, with all of it inside.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any, Final

from run_control.tracking.messages import Answer, Message, SinkError

OFFLINE: Final = "offline"
_TAG_MAX: Final = 64  # characters; W&B refuses a run with a longer one
_LOGIN = 'wandb login, or WANDB_API_KEY where bridgehead up runs (then down, up); or wandb_mode = "offline"'
_TIME: Final = "_timestamp"  # W&B's own name; without it a row is of when we told it
_FOLDER, _STEP = "folder", "step"  # of a run's place


class WandbSink:
    """place: {"step": the highest that was told} and, offline, {"folder": the run's}."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import wandb

        self._wandb: Any = wandb
        self._settings = settings
        self._offline = settings["mode"] == OFFLINE
        self._runs: dict[str, Any] = {}
        self._open_row: dict[str, dict[str, float]] = {}  # run → when the row was told that W&B still keeps open
        Path(settings["folder"]).mkdir(parents=True, exist_ok=True)

    def tell(self, message: Message) -> Answer:
        if message.anew:
            self._drop(message.run)
        run, place = self._runs.get(message.run), dict(message.place)
        if run is None:
            run = self._runs[message.run] = self._open(message)
            had = int(run.step) - 1
            if had < int(place.get(_STEP, -1)) and not self._offline:
                return Answer({_STEP: had}, len(self._runs), behind=had)
        for step, epoch, at, metrics in message.points:
            self._open_row[message.run] = {_TIME: at} if at else {}
            run.log({**metrics, **({"epoch": epoch} if epoch else {}), **self._open_row[message.run]}, step=step)
            place[_STEP] = max(step, int(place.get(_STEP, -1)))
        if message.end is not None:
            self._end(message.run, message.end)
        if self._offline and message.end is not None:
            place = {_FOLDER: self._kept(run, str(message.place.get(_FOLDER, "")))}
        return Answer(place, len(self._runs))

    def close(self) -> None:
        """What is still open goes on with the next process: its id stays."""
        for name in list(self._runs):
            self._runs.pop(name).finish()

    def _open(self, message: Message) -> Any:
        wandb, head = self._wandb, message.head
        origin = {name: head[name] for name in ("spec_id", "code", "data", "stage") if head[name]}
        try:
            return wandb.init(
                project=self._settings["project"],
                entity=self._settings["entity"] or None,
                dir=self._settings["folder"],
                mode=self._settings["mode"],
                id=message.run,
                name=message.run,
                job_type=head["stage"],
                tags=[tag[:_TAG_MAX] for tag in head["tags"] if tag],
                config={**head["config"], "bridgehead": origin},
                resume=None if self._offline else "allow",
                reinit="create_new",
                settings=self._quiet(),
            )
        except wandb.errors.CommError as error:
            raise SinkError(
                f"W&B can't be reached: {error}", 'it is tried again by itself; wandb_mode = "offline"'
            ) from None
        except (wandb.errors.UsageError, wandb.errors.AuthenticationError) as error:
            raise SinkError(str(error), _LOGIN) from None

    def _quiet(self) -> Any:
        """Of this laptop it records nothing: what it would measure here is not what trains."""
        return self._wandb.Settings(
            init_timeout=self._settings["init_timeout_s"],
            console="off",
            silent=True,
            quiet=True,
            save_code=False,
            disable_git=True,
            disable_job_creation=True,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )

    def _end(self, name: str, end: dict[str, Any]) -> None:
        run = self._runs.pop(name)
        row = self._open_row.pop(name, None)
        if row is not None:  # the last one is still open, and would change the summary after us
            run.log(row, commit=True)
        run.summary.update({**end["summary"], **{f"bridgehead.{key}": end[key] for key in end if key != "summary"}})
        run.finish(exit_code=0 if end["state"] == "done" else 1)

    def _drop(self, name: str) -> None:
        """An offline folder that was begun and not ended."""
        run = self._runs.pop(name, None)
        self._open_row.pop(name, None)
        if run is not None:
            folder = _folder_of(run)
            run.finish(exit_code=1)
            shutil.rmtree(folder, ignore_errors=True)

    def _kept(self, run: Any, earlier: str) -> str:
        """The new folder's name; an earlier one of this run goes, unless it was put under another name."""
        folder = _folder_of(run)
        if earlier and earlier != folder.name and Path(earlier).name == earlier:
            shutil.rmtree(folder.parent / earlier, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.utime(folder)
        return folder.name


def _folder_of(run: Any) -> Path:
    return Path(run.settings.sync_dir)
