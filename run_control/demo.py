"""`bridgehead demo`: the whole product on one machine, driven by its own public commands.

A run is trained on a local notebook VM, the VM is killed half-way, the run resumes on the next one, the model is gated,
shipped and verified, and the same training is done once more uninterrupted: the weights have to be equal bit for bit.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from bridgehead import files, names, processes
from bridgehead.errors import INTERRUPTED_EXIT_CODE, BridgeheadError, UsageError, VmError
from bridgehead.names import CheckpointLevel, RunState
from run_control.cli_support import note, say
from run_control.demo_shell import CommandFailed, DemoFailed, Follower, Run, Shell
from run_control.demo_view import DemoView

_NEEDED = ("torch", "onnx", "onnxscript", "onnxruntime", "seglearn", "jupyter_client", "ipykernel")
_BOOT_S = 120.0
_STAGE_S = 600.0
_INTERRUPT_AT = 0.25  # of the steps of pretraining
_KILL_AT = 0.4
_GATE_KEYS = ("verdict", "effect", "interval", "candidate_accuracy", "baseline_accuracy")


@dataclass
class Result:
    """The one JSON object that `--json` prints last."""

    MADE: ClassVar[str] = "The bundle"

    ok: bool = False
    bundle: str = ""
    run_ids: dict[str, str] = field(default_factory=dict)
    killed_at_step: int | None = None
    resumed_from_step: int | None = None
    bitwise_equal: bool | None = None
    weights_sha256: list[str] = field(default_factory=list)
    gate: dict[str, Any] = field(default_factory=dict)
    parity_max_abs: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        if self.ok:
            del values["reason"]
        return values


def demo(keep: Path | None, *, as_json: bool, make: Callable[[Path, DemoView], Demo] | None = None) -> int:
    """Run the demo (or another one, which `make` makes); 0 when all of it held. In the end nothing is left running."""
    _check_installed()
    folder = _new_folder(keep)
    view = DemoView()
    show = (make or Demo)(folder, view)
    interrupted = False
    try:
        with _signals_as_interrupt():
            show.play()
    except KeyboardInterrupt:
        interrupted, show.result.reason = True, "interrupted"
    except BridgeheadError as error:
        show.result.reason = error.message
    except OSError as error:
        show.result.reason = str(error)
    finally:
        with _deaf_to_interrupts():
            show.clean_up()
            view.close()
    result = show.result
    result.ok = not result.reason
    _tell(result, folder, as_json=as_json)
    if interrupted:
        return INTERRUPTED_EXIT_CODE
    return 0 if result.ok else 1


class Demo:
    """The steps in their order. Each adds what it saw to `result`; the first that does not hold ends it."""

    def __init__(self, folder: Path, view: DemoView) -> None:
        self.folder = folder
        self.result = Result()
        self._bridgehead = Shell(folder)
        self._view = view
        self._followers: list[Follower] = []
        self._vms: list[str] = []
        self._bridge: tuple[int, int] = (0, 0)  # pid, start ticks
        self._started = time.monotonic()

    def play(self) -> None:
        self._view.step(f"a new project in {self.folder}")
        self._bridgehead("init")
        with self._timed("up"):
            self._up_first()
        pretrain = self._queue_by_hand()
        follower = self._follow(list(self.result.run_ids.values()))
        with self._timed("train_until_kill"):
            self._interrupt_the_cell(follower, pretrain)
            self._kill_the_vm(follower, pretrain)
        with self._timed("resume"):
            self._new_vm(follower, pretrain)
        with self._timed("resumed_training"):
            follower.until(pretrain, _done, timeout_s=_STAGE_S, what="the end of pretraining")
        again, second = self._once_more()
        with self._timed("finetune_gate_export"):
            for stage in (names.FINETUNE, names.GATE, names.EXPORT):
                follower.until(self.result.run_ids[stage], _done, timeout_s=_STAGE_S, what=f"the end of {stage}")
            self._check_outputs()
        with self._timed("uninterrupted_training"):
            second.until(again, _done, timeout_s=_STAGE_S, what="the end of the uninterrupted pretraining")
        self._compare(pretrain, again)

    def clean_up(self) -> None:
        """Stop all of it and look whether anything is left. A failure to do so is a failure of the demo."""
        for follower in self._followers:
            follower.close()
        with self._timed("down"):
            try:
                if (self.folder / names.PROJECT_FILE).exists():
                    self._bridgehead("down")
                self._check_nothing_left()
            except BridgeheadError as error:
                self.result.reason = self.result.reason or error.message
        self.result.seconds["total"] = round(time.monotonic() - self._started, 1)
        if self.result.reason in ("", "interrupted"):
            shutil.rmtree(self.folder / names.PRIVATE_FOLDER, ignore_errors=True)  # keys, ledger, drive

    # --- the steps -----------------------------------------------------------------------------

    def _up_first(self) -> None:
        self._view.step("the bridge and a local notebook VM")
        try:
            self._up("--port", str(names.DEFAULT_PORT))
        except CommandFailed as error:
            if error.answered != "bridge_down":
                raise
            self._view.step(f"port {names.DEFAULT_PORT} is taken; another one will do")
            self._up("--port", "0")
        bridge = self._bridgehead("status")["bridge"]
        self._bridge = (bridge["pid"], processes.start_ticks(bridge["pid"]))

    def _up(self, *words: str) -> None:
        self._vms.append(self._bridgehead("up", "--runtime", "local", "--tunnel", "none", *words)["vm"])

    def _queue_by_hand(self) -> str:
        """Four lines into queue.txt, as an editor would put them there; returns the run id of pretraining."""
        lines = [f"run:{stage}" for stage in names.SHIPPED_STAGES]
        self._view.step(f"four lines into {names.QUEUE_FILE}: {' '.join(lines)}")
        with (self.folder / names.QUEUE_FILE).open("a") as queue:
            queue.write("\n".join(lines) + "\n")
        deadline = time.monotonic() + _BOOT_S
        while time.monotonic() < deadline:
            taken = self._bridgehead("queue")["commands"]
            if len(taken) == len(lines):
                self.result.run_ids = dict(zip(names.SHIPPED_STAGES, (row["run_id"] for row in taken), strict=True))
                return self.result.run_ids[names.PRETRAIN]
            time.sleep(0.1)
        raise DemoFailed("the bridge did not take the four lines")

    def _interrupt_the_cell(self, follower: Follower, pretrain: str) -> None:
        run = follower.until(
            pretrain, lambda run: _is_past(run, _INTERRUPT_AT), timeout_s=_STAGE_S, what="a checkpoint"
        )
        self._view.step(f"interrupting the notebook cell at step {run['step']}")
        self._bridgehead("vm", "interrupt")
        before = follower.runs[pretrain]["step"]
        run = follower.until(
            pretrain, lambda run: run["step"] > before, timeout_s=30, what="a step after the interrupt"
        )
        self._view.step(f"the stage took no notice: step {run['step']}")

    def _kill_the_vm(self, follower: Follower, pretrain: str) -> None:
        follower.until(pretrain, lambda run: _is_past(run, _KILL_AT), timeout_s=_STAGE_S, what="the middle")
        self._bridgehead("vm", "kill")
        run = self._bridgehead("status", pretrain)["run"]
        if run["state"] in names.ENDED:
            raise DemoFailed("pretraining had ended before the VM was killed")
        self.result.killed_at_step = run["step"]
        self._view.step(f"the VM is dead, its disk wiped, at step {run['step']}; only the Drive folder is left")

    def _new_vm(self, follower: Follower, pretrain: str) -> None:
        self._view.step("a new VM")
        self._up()
        run = follower.until(
            pretrain, lambda run: run["resumed_from_step"] is not None, timeout_s=_BOOT_S, what="the run's return"
        )
        self._view.step(f"pretraining resumed by itself from step {run['resumed_from_step']}")

    def _once_more(self) -> tuple[str, Follower]:
        """The same training again, beside the stages that follow: what they declare fits the VM together."""
        self._view.step("the same pretraining once more, uninterrupted, beside finetune, gate and export")
        run_id = self._bridgehead("run", names.PRETRAIN)["run_id"]
        return run_id, self._follow([run_id])

    def _check_outputs(self) -> None:
        export = self.folder / names.IN_FOLDER / self.result.run_ids[names.EXPORT]
        report = self._bridgehead("bundle", "verify", str(export))
        self.result.bundle = str(export / names.BUNDLE)
        self.result.parity_max_abs = report["parity_max_abs"]
        verdict = self._results(self.result.run_ids[names.GATE])
        self.result.gate = {key: verdict.get(key) for key in _GATE_KEYS}
        self._view.step(f"gate: {verdict.get('verdict')}; bundle verified: parity {report['parity_max_abs']:.1e}")
        if verdict.get("verdict") != "pass":
            raise DemoFailed(f"the gate's verdict is {verdict.get('verdict')}")

    def _compare(self, first: str, second: str) -> None:
        results = [self._results(run_id) for run_id in (first, second)]
        self.result.weights_sha256 = [result["weights_sha256"] for result in results]
        self.result.resumed_from_step = results[0]["resumed_from_step"]
        self.result.bitwise_equal = len(set(self.result.weights_sha256)) == 1
        killed, resumed = self.result.killed_at_step or 0, self.result.resumed_from_step or 0
        if not 0 < resumed <= killed:
            raise DemoFailed(f"killed at step {killed}, yet resumed from {resumed}")
        if results[1]["resumed_from_step"] is not None:
            raise DemoFailed("the second training was to be uninterrupted")
        if not self.result.bitwise_equal:
            raise DemoFailed("the weights differ between the resumed and the uninterrupted training")
        self._view.step(f"weights equal bit for bit: {self.result.weights_sha256[0][:16]}…")

    def _results(self, run_id: str) -> dict[str, Any]:
        results = files.read_json(self.folder / names.IN_FOLDER / run_id / names.RESULTS)
        if not isinstance(results, dict):
            raise DemoFailed(f"{names.RESULTS} of {run_id} did not arrive")
        return results

    def _check_nothing_left(self) -> None:
        left = [pid for name in self._vms for pid in processes.tagged(names.ENV_LOCAL_VM, name)]
        if processes.is_alive(*self._bridge):
            left.append(self._bridge[0])
        if left:
            shown = "; ".join(f"{pid} {processes.command_line(pid)}" for pid in left)
            raise DemoFailed(f"processes were left: {shown}")

    def _follow(self, run_ids: list[str]) -> Follower:
        follower = Follower(self._bridgehead, run_ids, self._view.change)
        self._followers.append(follower)
        return follower

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.result.seconds[name] = round(time.monotonic() - started, 1)


def _is_past(run: Run, fraction: float) -> bool:
    """Trained so far, with a checkpoint in the store and more steps taken since."""
    checkpoint = run["checkpoint"]
    if checkpoint is None or checkpoint["level"] == CheckpointLevel.LOCAL or run["state"] in names.ENDED:
        return False
    return bool(run["step"] >= fraction * run["total_steps"] > 0 and run["step"] > checkpoint["step"])


def _done(run: Run) -> bool:
    return bool(run["state"] == RunState.DONE)


def _check_installed() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise VmError(f"the local VM would lack {', '.join(missing)}", hint="pip install 'bridgehead[local]'")


def _new_folder(keep: Path | None) -> Path:
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="bridgehead-demo-"))
    folder = keep.absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there already and not empty", hint="--keep names a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _tell(result: Result, folder: Path, *, as_json: bool) -> None:
    if result.ok:
        note(f"ok in {result.seconds['total']:.0f} s. {result.MADE}: {result.bundle}")
        note(f"logs, status and results of each run: {folder / names.IN_FOLDER}")
    else:
        note(f"error: {result.reason}")
        note(f"next: look into {folder}, its {names.IN_FOLDER}/*/{names.LOG} first")
    if as_json:
        say(json.dumps(result.to_json()))
    elif result.ok:
        say(result.bundle)


@contextlib.contextmanager
def _signals_as_interrupt() -> Iterator[None]:
    """SIGTERM, or the terminal being closed, ends the demo as Ctrl-C does: in order, with nothing left."""
    with _handled((signal.SIGTERM, signal.SIGHUP), signal.default_int_handler):
        yield


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Cleaning up takes a few seconds and must not be cut short by a second Ctrl-C."""
    with _handled((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), signal.SIG_IGN):
        yield


@contextlib.contextmanager
def _handled(which: Sequence[signal.Signals], handler: Any) -> Iterator[None]:
    before = {sig: signal.signal(sig, handler) for sig in which}
    try:
        yield
    finally:
        for sig, old in before.items():
            signal.signal(sig, old)
