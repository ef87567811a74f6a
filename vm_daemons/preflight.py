"""What is looked at before a pinned run's stage starts on this VM: named checks, each pass, warn or refuse.

A refusal is what would make the hours after it worth nothing: other data, other code, a GPU that was promised and is
not there. All else is one line in the run's log at minute 0. An unpinned run (an sh: line) is not looked at.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridgehead import data_folder, files, identity, image, names
from bridgehead.errors import BridgeheadError
from bridgehead.records import RunRecord
from vm_daemons import gauges, mounting
from vm_daemons.home import VmHome

PASS, WARN, REFUSE = "pass", "warn", "refuse"
EXPORT_MODULES = ("onnx", "onnxscript", "onnxruntime")  # a notebook image lacks them, and an export is the last stage
_GB = 10**9
_LOW_BYTES = 2 * _GB
_LOW_SHM_BYTES = 64 * 2**20  # Docker's default, at which data loaders with workers die
_STORE_OLD_S = 300.0
_MEMINFO = Path("/proc/meminfo")
_HALVES = ("bf16", "bfloat16")
_BEFORE_BF16 = ("T4", "V100", "P100", "P4", "K80", "RTX 20", "RTX20", "TITAN V")  # compute capability under 8.0


@dataclass(frozen=True)
class Finding:
    """One check: its name, how it went, what was found and what to do."""

    name: str
    state: str
    text: str
    hint: str = ""

    def line(self) -> str:
        return f"preflight: {self.name}: {self.text}" + (f" → {self.hint}" if self.hint else "")


def examine(record: RunRecord, home: VmHome, run_dir: Path) -> list[Finding]:
    """All checks, refusals included; empty for a run that was not pinned. Never raises."""
    if not record.spec.pins.spec:
        return []
    found: list[Finding] = []
    for check in (_data, _code, _image, _disks, _memory, _gpu, _store, _export):
        try:
            found += check(record, home, run_dir)
        except (OSError, BridgeheadError, ValueError, TypeError, AttributeError, KeyError) as error:
            # A check that can't look must not hold up a run; what it is about shows later, in the run itself.
            found.append(Finding(check.__name__.strip("_"), WARN, f"could not be looked at: {error}"))
    return found


def refusal(found: list[Finding]) -> Finding | None:
    return next((finding for finding in found if finding.state == REFUSE), None)


# --- what would make the run worth nothing -----------------------------------------------------------------


def _data(record: RunRecord, _home: VmHome, _run_dir: Path) -> Iterator[Finding]:
    data = record.spec.pins.spec.get("data") or {}
    path, wanted = data.get("vm_path"), data.get("fingerprint")
    if path and Path(path).is_relative_to(mounting.DRIVE_MOUNT):
        # colabtools issues 1691, 280 and 110: 10 to 300 times slower for small files; 1196 and 1428: a quota of a day
        text = f"{path} lies on the mounted Drive, which reads small files very slowly and has a quota of a day"
        yield Finding("data place", WARN, text, "unpack it onto this VM's own disk before the stage reads it")
    if not path or not wanted:
        return
    try:
        found = data_folder.fingerprint(Path(path))
    except (OSError, BridgeheadError) as error:
        yield Finding(
            "data", REFUSE, f"the data {data.get('name')} is missing: {error}", "mount or bring it, then rerun"
        )
        return
    if found != wanted:
        text = f"{path} holds other data than the run was pinned to: {found[:16]}, not {wanted[:16]}"
        yield Finding("data", REFUSE, text, "bring the right one, or write the new fingerprint into the project file")
    else:
        yield Finding("data", PASS, f"{data.get('name')}: {found[:16]}")


def _code(record: RunRecord, _home: VmHome, _run_dir: Path) -> Iterator[Finding]:
    pins = record.spec.pins
    wanted, here = (pins.spec.get("code") or {}).get("sha256"), identity.code_of(record)
    if pins.exact and wanted and here != wanted:
        text = f"this VM has other code than the spec names: {here[:16]}, not {wanted[:16]}"
        yield Finding("code", REFUSE, text, "bridgehead sync, or rerun --anyway")


# --- what is told at minute 0 ------------------------------------------------------------------------------


def _image(record: RunRecord, _home: VmHome, _run_dir: Path) -> Iterator[Finding]:
    before = record.spec.pins.image
    if not before:
        return
    decisive, _ = image.differences(before, record.fingerprint)
    if decisive:
        yield Finding("image", WARN, f"equality bit for bit is not promised: {'; '.join(decisive)}")


def _disks(_record: RunRecord, _home: VmHome, run_dir: Path) -> Iterator[Finding]:
    cache = os.environ.get("HF_HOME") or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    places = {"output": (run_dir, _LOW_BYTES), "temp": (Path(tempfile.gettempdir()), _LOW_BYTES)}
    places |= {"cache": (Path(cache), _LOW_BYTES), "shm": (Path("/dev/shm"), _LOW_SHM_BYTES)}
    for name, (folder, low_bytes) in places.items():
        there = next((place for place in (folder, *folder.parents) if place.is_dir()), None)
        free_bytes = shutil.disk_usage(there).free if there is not None else 0
        if free_bytes < low_bytes:
            text = f"{folder} has {free_bytes / 2**20:.0f} MiB free"
            yield Finding(f"disk {name}", WARN, text, "num_workers=0 in data loaders" if name == "shm" else "make room")


def _memory(record: RunRecord, _home: VmHome, _run_dir: Path) -> Iterator[Finding]:
    wanted_bytes = record.spec.needs.memory_gb * _GB
    for line in _MEMINFO.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            free_bytes = int(line.split()[1]) * 1024
            if free_bytes < wanted_bytes:
                text = f"{free_bytes / _GB:.1f} GB of memory are free, and the stage declares {wanted_bytes / _GB:.1f}"
                yield Finding("memory", WARN, text, "a high-memory VM, or smaller batches")


def _gpu(record: RunRecord, _home: VmHome, _run_dir: Path) -> Iterator[Finding]:
    wanted_gb = record.spec.needs.gpu_memory_gb
    name = str((record.spec.pins.spec.get("resources") or {}).get("gpu") or "")
    if not wanted_gb and not name:
        return
    smi = shutil.which("nvidia-smi")
    gpus = gauges.read_gpus(smi) if smi else []
    if not gpus:
        local = bool(os.environ.get(names.ENV_LOCAL_VM))
        text = f"no GPU is here, and the run is for {name or f'{wanted_gb:g} GB of one'}"
        yield Finding("gpu", WARN if local else REFUSE, text, "choose a GPU runtime, and run the cell again")
        return
    have = [str(gpu.get("name", "")) for gpu in gpus]
    if name and not any(_plain(name) in _plain(text) for text in have):
        yield Finding(
            "gpu", WARN, f"the run was priced for {name}, and this is {', '.join(have)}", "another price holds"
        )
    largest_gb = max(float(gpu.get("memory_total_mb") or 0) for gpu in gpus) * 2**20 / _GB
    if largest_gb < wanted_gb:
        yield Finding(
            "gpu memory", REFUSE, f"{largest_gb:.1f} GB, and the stage declares {wanted_gb:g}", "a larger GPU"
        )
    if _asks_for_bf16(record.spec.config) and all(
        any(_plain(old) in _plain(text) for old in _BEFORE_BF16) for text in have
    ):
        yield Finding("bf16", WARN, f"{', '.join(have)} has no bf16 of its own: it is emulated, slowly", "fp16 instead")


def _store(record: RunRecord, home: VmHome, _run_dir: Path) -> Iterator[Finding]:
    """By the uploader's own canary, a process apart: a dead mount would hang this one."""
    state = files.read_json(home.state / names.VM_STORE_STATE)
    if not isinstance(state, dict) or not state.get("kind"):
        return
    if not state.get("ok"):
        text = f"its canary did not come back: {state.get('error') or 'it was not answered yet'}"
        yield Finding("store", WARN, text, "checkpoints stay on this VM until it is well")
    elif time.time() - float(state.get("at") or 0) > _STORE_OLD_S:
        yield Finding("store", WARN, "the uploader has not looked at it for minutes", "run the cell again")
    free_bytes, wanted_bytes = state.get("free_bytes"), record.spec.pins.stored_gb * _GB
    if isinstance(free_bytes, int) and 0 <= free_bytes < wanted_bytes:
        text = f"{free_bytes / _GB:.1f} GB free for checkpoints of {wanted_bytes / _GB:.1f} GB together"
        yield Finding("store room", WARN, text, "make room, or a lower keep_checkpoints")


def _export(record: RunRecord, _home: VmHome, _run_dir: Path) -> Iterator[Finding]:
    if not record.spec.pins.exports:
        return
    missing = [name for name in EXPORT_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        text = f"{', '.join(missing)} can't be imported, and a stage that exports comes after this one"
        yield Finding(
            "export", WARN, text, f"add them to [vm] requirements in {names.PROJECT_FILE}, and run the cell again"
        )


def _asks_for_bf16(config: dict[str, Any]) -> bool:
    return any(value in _HALVES for value in config.values()) or any(config.get(name) is True for name in _HALVES)


def _plain(text: str) -> str:
    return text.lower().replace(" ", "").replace("-", "")
