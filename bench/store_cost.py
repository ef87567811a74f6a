"""What a checkpoint costs in the durable store beyond itself: requests and bytes, for each kind that proves its puts.

Counts, not times: the work is the uploader's own round over a run folder such as a VM has. S3 and the Drive API are the
doubles of tests/, on loopback, and each HTTP request that arrives there counts.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from bridgehead import files, names
from bridgehead.names import CheckpointLevel, RunState, StoreKind
from bridgehead.records import RunRecord, StageSpec, Status, StoreSpec
from bridgehead.run import Run
from vm_daemons.home import VmHome
from vm_daemons.storage import store_choice, store_slots
from vm_daemons.storage.objects import ObjectStore
from vm_daemons.storage.run_uploads import RunUploads
from vm_daemons.storage.store import Store

_STATE_BYTES = 16 << 20
_WARM_UP, _COUNTED = 4, 4  # checkpoints: four fill the slots, each later one takes an old one's place
_LOG_BYTES = 4096  # that the stage prints between two checkpoints
_PROGRESS_LINES = 20
_DOUBLES = Path(__file__).parents[1] / "tests"
_PROJECT, _STAGE, _RUN = "bench", "bench", "bench-0001-abcdef"
Wire = Callable[[], tuple[int, int]]  # requests so far, and the bytes of their bodies


@dataclass
class _Far:
    """The far end of one kind: how a VM is told of it, and what arrived there."""

    spec: StoreSpec
    mounted: str = ""
    secrets: dict[str, str] = field(default_factory=dict)
    wire: Wire | None = None  # a folder has none


def costs() -> Iterator[dict[str, Any]]:
    """A kind whose double is not here is left out, with a word on stderr."""
    for kind, far_end in {StoreKind.FOLDER: _folder, StoreKind.DRIVE: _drive, StoreKind.S3: _s3}.items():
        with tempfile.TemporaryDirectory(prefix="bridgehead-bench-") as name, contextlib.ExitStack() as stack:
            try:
                far = stack.enter_context(far_end(Path(name)))
            except ImportError as error:
                print(f"store: {kind} needs tests/ and the dev extra: {error}", file=sys.stderr)
                continue
            yield _Vm(Path(name) / "vm", far).row()


class _Vm:
    """A VM's home with one run, and the uploader's work on it in this thread."""

    def __init__(self, root: Path, far: _Far) -> None:
        self._far = far
        self._home = VmHome(root)
        self._home.create()
        self._home.update_record(project=_PROJECT, store=far.mounted, store_spec=far.spec.to_json())
        files.write_json(self._home.state / names.VM_STORE_SECRETS, far.secrets, mode=0o600)
        self._run = self._new_run()
        self._counted = _Counted()
        store = Store(self._home, lambda: self._counted.around(self._choose()))
        self._uploads = RunUploads(self._home, store, lambda trouble: None)
        self._uploads.nothing_confirms()  # there is no second path to wait for

    def row(self) -> dict[str, Any]:
        for number in range(_WARM_UP):
            self._take(number + 1)
        self._counted.reset()
        before, grown_bytes = self._so_far(), 0
        for number in range(_WARM_UP, _WARM_UP + _COUNTED):
            self._take(number + 1)
            grown_bytes += self._size_of(names.LOG) + self._size_of(names.PROGRESS)
        calls, requests, written = (
            (after - earlier) / _COUNTED for after, earlier in zip(self._so_far(), before, strict=True)
        )
        beyond = written - _STATE_BYTES
        wire = {"http_requests": requests, **self._bare()} if self._far.wire else {}
        return {
            "bench": f"store overhead per checkpoint, kind {self._far.spec.kind}",
            "checkpoint_mib": round(_STATE_BYTES / 2**20, 1),
            "store_calls": calls,
            "calls_by_name": {name: count / _COUNTED for name, count in sorted(self._counted.by_name.items())},
            **wire,
            "bytes_beyond": int(beyond),
            "bytes_beyond_of_log_and_progress": grown_bytes // _COUNTED,  # they grow with the run, and go up whole
            "ratio": round(beyond / _STATE_BYTES, 6),
            "holds": self._reads_back(_WARM_UP + _COUNTED),
        }

    def _take(self, step: int) -> None:
        """What a stage and the status daemon leave until the next checkpoint, the checkpoint, and the upload."""
        for line in range(_PROGRESS_LINES):
            self._run.progress(step=step * _PROGRESS_LINES + line, total_steps=10**6, epoch=step, loss=0.5)
        with (self._run.folder / names.LOG).open("ab") as log:
            log.write(b"." * (_LOG_BYTES - 1) + b"\n")
        with self._run.checkpoint(step, epoch=step) as folder:
            (folder / "state.pt").write_bytes(os.urandom(_STATE_BYTES))
        status = Status(_RUN, _STAGE, RunState.RUNNING, step=step, total_steps=10**6, updated=time.time())
        files.write_json(self._run.folder / names.STATUS, status.to_json())
        (self._run.folder / names.STATUS_LINE).write_text(status.line() + "\n")
        self._uploads.step(available=True)
        if self._uploads.trouble:
            raise RuntimeError(f"the store {self._far.spec.kind}: {self._uploads.trouble}")
        self._uploads.tell(self._far.spec.kind, "", self._far.spec.kind, hangs=False)

    def _so_far(self) -> tuple[int, int, int]:
        """Store calls, requests on the wire, and bytes written: as the far end got them, else as they were given."""
        requests, written = self._far.wire() if self._far.wire else (0, self._counted.written_bytes)
        return self._counted.calls, requests, written

    def _bare(self) -> dict[str, int]:
        """The baseline: the same bytes put once more, with nothing around them. The first made the folder."""
        assert self._far.wire is not None
        objects, source = self._choose(), self._home.root / "bare.bin"
        source.write_bytes(os.urandom(_STATE_BYTES))
        objects.put(f"{_PROJECT}/bare/1", source)
        before = self._far.wire()[0]
        objects.put(f"{_PROJECT}/bare/2", source)
        return {"bare_put_http_requests": self._far.wire()[0] - before}

    def _reads_back(self, step: int) -> bool:
        """The newest checkpoint is confirmed, and another process that knows nothing finds and verifies it."""
        told = files.read_json(self._run.folder / names.CHECKPOINT_LEVELS)
        levels = told["levels"] if isinstance(told, dict) else {}
        root = f"{_PROJECT}/{names.STORE_RUNS}/{_RUN}/{names.CHECKPOINTS}"
        slot, passed, _ = store_slots.restore_newest(self._choose(), root, self._home.root / "restored", -1)
        confirmed = levels.get(str(CheckpointLevel.CONFIRMED), {}).get("step")
        return slot is not None and slot.step == step == confirmed and not passed

    def _choose(self) -> ObjectStore:
        chosen = store_choice.choose(self._home)
        assert chosen is not None
        return chosen

    def _new_run(self) -> Run:
        folder = self._home.run(_RUN)
        folder.mkdir()
        spec = StageSpec(_STAGE, "python train.py")
        record = RunRecord(_RUN, _STAGE, _PROJECT, "c", 1, str(self._home.record()["vm_id"]), time.time(), spec)
        files.write_json(folder / names.RUN_RECORD, record.to_json())
        return Run(folder, record)

    def _size_of(self, name: str) -> int:
        return (self._run.folder / name).stat().st_size


class _Counted:
    """Counts the calls to an ObjectStore and the bytes that it is given."""

    def __init__(self) -> None:
        self._inner: Any = None
        self.reset()

    def reset(self) -> None:
        self.by_name: collections.Counter[str] = collections.Counter()
        self.written_bytes = 0

    @property
    def calls(self) -> int:
        return self.by_name.total()

    def around(self, inner: ObjectStore) -> ObjectStore:
        self._inner = inner
        return cast(ObjectStore, self)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return value

        def call(*args: Any) -> Any:
            self.by_name[name] += 1
            result = value(*args)
            self.written_bytes += result.size if name == "put" else len(args[1]) if name == "put_bytes" else 0
            return result

        return call


# --- the far ends --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _folder(root: Path) -> Iterator[_Far]:
    (root / "store").mkdir()
    yield _Far(StoreSpec(StoreKind.FOLDER), mounted=str(root / "store"))


@contextlib.contextmanager
def _drive(root: Path) -> Iterator[_Far]:
    api, cloud = _double("doubles.drive_v3"), _double("doubles.google_cloud")
    with api.DriveServer(cloud.Cloud(root / "cloud")) as server:
        spec = StoreSpec(StoreKind.DRIVE, endpoint=server.url)
        yield _Far(
            spec,
            secrets={"drive_credentials": json.dumps({"token": api.TOKEN})},
            wire=lambda: (len(server.log), sum(request.received_bytes for request in server.log)),
        )


@contextlib.contextmanager
def _s3(root: Path) -> Iterator[_Far]:
    rig = _double("s3_rig")
    bodies: list[int] = []

    def note(exchange: Any) -> None:
        bodies.append(len(exchange.body))
        exchange.pass_on()

    with rig.s3_endpoint() as url, rig.gate_before(url) as gate:
        for method in ("GET", "PUT", "POST", "HEAD", "DELETE"):
            gate.spoil(method, "", note, times=sys.maxsize)
        spec = StoreSpec(StoreKind.S3, bucket=rig.BUCKET, endpoint=gate.url)
        yield _Far(spec, secrets=dict(rig.KEYS), wire=lambda: (len(bodies), sum(bodies)))


def _double(module: str) -> Any:
    """Raises ImportError where the tests are not here, or what they need."""
    if str(_DOUBLES) not in sys.path:
        sys.path.append(str(_DOUBLES))
    return importlib.import_module(module)
