"""From a run record to the process to start: its words, folder and environment."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bridgehead import names
from bridgehead.errors import UsageError
from bridgehead.queue_lines import Verb, nearest
from bridgehead.records import RunRecord
from vm_daemons.home import VmHome
from vm_daemons.launch import SHIP

# What a notebook kernel or a daemon of ours has in its environment and a stage must not inherit: a MPLBACKEND that
# only works in a kernel, settings of the kernel's front end, our own import path, and the pairing code.
_DROPPED = frozenset(
    {
        "MPLBACKEND",
        "PYTHONPATH",
        "PYTHONSAFEPATH",
        "PYTHONSTARTUP",
        "PYTHONHOME",
        "PYTHONINSPECT",
        names.ENV_PAIRING,
    }
)
_DROPPED_PREFIXES = ("JPY_", "COLAB_")
_PYTHON_WORDS = frozenset({"python", "python3"})


@dataclass(frozen=True)
class StageCommand:
    argv: list[str]
    cwd: Path
    env: dict[str, str]


def stage_command(record: RunRecord, home: VmHome, run_dir: Path, inherited: Mapping[str, str]) -> StageCommand:
    """Raises UsageError when the command can't be read or names no shipped stage."""
    env = scrubbed(inherited)
    env.update(
        {
            names.ENV_RUN_DIR: str(run_dir),
            names.ENV_RUN_ID: record.run_id,
            names.ENV_STAGE: record.stage,
            names.ENV_INPUTS: inherited.get(names.ENV_INPUTS, "{}"),
            names.ENV_VM_ID: record.vm_id,
            names.ENV_HOME: str(home.root),
            "PYTHONUNBUFFERED": "1",
        }
    )
    store = home.store_path()
    if store is not None:
        env[names.ENV_STORE] = str(store)
    text = record.spec.command
    if text.startswith(names.SHIPPED_COMMAND_PREFIX):
        env.update({"PYTHONPATH": str(SHIP), "PYTHONSAFEPATH": "1"})
        return StageCommand([sys.executable, "-u", "-m", _shipped_module(text)], run_dir, env)
    is_shell = record.spec.name == Verb.SH
    folder = home.payload if is_shell else home.code(record.payload_sha256)
    env["PYTHONPATH"] = os.pathsep.join([str(folder), str(home.api(record.ship_sha256))])
    return StageCommand(["bash", "-c", text] if is_shell else _words(text), folder, env)


def scrubbed(inherited: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in inherited.items()
        if name not in _DROPPED and not name.startswith(_DROPPED_PREFIXES)
    }


def _shipped_module(text: str) -> str:
    stage = text.removeprefix(names.SHIPPED_COMMAND_PREFIX)
    if stage not in names.SHIPPED_STAGES:
        raise UsageError(f"no shipped stage is called {stage!r}: {nearest(stage, names.SHIPPED_STAGES)}")
    return f"stages.{stage}"


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"the command can't be split into words: {error}") from None
    if not words:
        raise UsageError("the command is empty")
    if words[0] in _PYTHON_WORDS:
        words[0] = sys.executable
    return words
