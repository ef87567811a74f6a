"""What can be looked at before any VM: named checks that `bridgehead doctor` runs. vm_daemons/preflight.py is the rest.

docs/preflight.md lists every check, with what it looks at, how it can end and what to do.
"""

from __future__ import annotations

import datetime
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from bridge.project import PinRequest
from bridgehead import names
from bridgehead.errors import BridgeheadError, StoreDenied, UsageError
from bridgehead.records import StageSpec
from run_control import announce_stores, launching, live_rate, memos, plan, pricing, project_file
from run_control.checks import PASS, REFUSE, WARN, Check
from run_control.project import Project
from run_control.project_file import Whole

CANARY_S = 15.0
_TEMP_LOW_BYTES = 2**30
_NEVER_MOVED = ("torch", "torchvision", "torchaudio", "triton")
_EXPORT_PARTS = ("onnx", "onnxscript", "onnxruntime")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_THIS_MACHINE = "http://127.0.0.1"  # no VM is needed to look: a mounted Drive is looked at on the VM


def examine(project: Project) -> list[Check]:
    """Every check that needs no VM. Empty when the project file can't be read; doctor says that by itself."""
    try:
        whole = project_file.load_whole(project.root)
    except UsageError:
        return []
    found: list[Check] = []
    checks: tuple[tuple[str, Callable[[Project, Whole], Iterator[Check]]], ...] = (
        ("plan", _plans),
        ("prices", _prices),
        ("store", _store),
        ("temp", _temp),
        ("torch", _torch),
        ("export", _export),
        ("memos", _memos),
    )
    for name, check in checks:
        try:
            found += check(project, whole)
        except BridgeheadError as error:
            found.append(Check(name, REFUSE, error.message, error.hint))
        except OSError as error:
            found.append(Check(name, WARN, f"could not be looked at: {error}"))
    return found


def _memos(project: Project, _whole: Whole) -> Iterator[Check]:
    for line in memos.applying(project):
        yield Check("memos", WARN, line, "bridgehead memos")


def _plans(project: Project, whole: Whole) -> Iterator[Check]:
    """Each stage as `run STAGE` would launch it now."""
    told = []
    for name, stage in whole.view.stages.items():
        request = PinRequest(stage, launching.newest_inputs(project, stage))
        made = plan.make(project.root, whole, request)
        for check in made.checks:
            if check.state == REFUSE:
                yield Check(f"plan {name}", REFUSE, f"{check.name}: {check.text}", check.hint)
        if made.refusal is None and made.estimate is not None:
            told.append(f"{name}: {made.estimate.total}" if made.says_money else name)
    if told:
        yield Check("plan", PASS, "; ".join(told))


def _prices(project: Project, whole: Whole) -> Iterator[Check]:
    terms = whole.money.terms()
    rows = pricing.catalogue(project.root)
    if not terms.stated:
        yield Check("prices", PASS, f"{len(rows)} rows; the project names no provider")
        return
    live = live_rate.of(project.root, terms)
    quoted = pricing.quote(terms, rows, today=datetime.date.today(), live=live)  # noqa: DTZ011 - a person's own calendar
    text = f"{quoted.price}" + (f" an hour, {quoted.source}, {quoted.note}" if quoted.source else "")
    hint = "state what your account says: [money] price_per_hour" if quoted.stale else ""
    yield Check("prices", WARN if quoted.stale else PASS, text, hint)


def _store(project: Project, whole: Whole) -> Iterator[Check]:
    """A real call with what this laptop has; a hanging mount is given up after 15 s."""
    targets = list(announce_stores.targets(project, whole.view, _THIS_MACHINE))
    if not any(target.when_denied for target in targets):
        yield Check("credentials", PASS, "skipped: this project names no store that needs any on this laptop")
    for target in targets:
        answer: list[list[Check]] = []
        thread = threading.Thread(target=lambda out=answer, to=target: out.append(_probed(to)), daemon=True)
        thread.start()
        thread.join(CANARY_S)
        yield from answer[0] if answer else [Check("store", WARN, _silent(target), _ON_VMS)]


_ON_VMS = "VMs may still reach it; their own look is in `bridgehead status`"


def _silent(target: announce_stores.Target) -> str:
    return f"{target.name} has not answered in {CANARY_S:g} s"


def _probed(target: announce_stores.Target) -> list[Check]:
    """Credentials and canary are one call: who is let in writes, reads and removes."""
    try:
        room = target.open().probe()
        error, denied, hint = room.error, room.denied, target.when_denied if room.denied else ""
    except (BridgeheadError, OSError) as caught:
        denied = isinstance(caught, StoreDenied)
        error = caught.message if isinstance(caught, BridgeheadError) else str(caught)
        hint = target.when_denied or (caught.hint if isinstance(caught, BridgeheadError) else "")
    if denied:
        return [Check("credentials", WARN, f"{target.name}: {error}", hint)]
    if error:
        return [Check("store", WARN, f"{target.name}: {error}", hint or _ON_VMS)]
    accepted = [Check("credentials", PASS, f"{target.name} answered a call with them")] if target.when_denied else []
    return [*accepted, Check("store", PASS, f"{target.name}: a canary was written, read back and removed")]


def _temp(_project: Project, _whole: Whole) -> Iterator[Check]:
    folder = Path(tempfile.gettempdir())
    free_bytes = shutil.disk_usage(folder).free
    low = free_bytes < _TEMP_LOW_BYTES
    yield Check(
        "temp", WARN if low else PASS, f"{folder}: {free_bytes / 2**30:.1f} GiB free", "make room" if low else ""
    )


def _torch(_project: Project, whole: Whole) -> Iterator[Check]:
    moved = [line for line in whole.view.requirements if _name(line) in _NEVER_MOVED]
    if moved:
        text = f"[vm] requirements name {', '.join(moved)}: a VM keeps the torch of its image"
        yield Check("torch", REFUSE, text, f"take it out of {names.PROJECT_FILE}")
    else:
        yield Check("torch", PASS, "no requirement moves it")


def _export(_project: Project, whole: Whole) -> Iterator[Check]:
    """A notebook image lacks what an export needs; found now and not after the training."""
    if not any(_exports(stage) for stage in whole.view.stages.values()):
        return
    required = {_name(line) for line in whole.view.requirements}
    missing = [part for part in _EXPORT_PARTS if part not in required]
    if missing:
        text = f"a stage exports, and [vm] requirements lack {', '.join(missing)}"
        yield Check("export", WARN, text, f"add them to {names.PROJECT_FILE}, unless the VM's image has them")
    else:
        yield Check("export", PASS, "what it needs is required")


def _exports(stage: StageSpec) -> bool:
    return stage.command == f"{names.SHIPPED_COMMAND_PREFIX}{names.EXPORT}"


def _name(requirement: str) -> str:
    match = _NAME.match(requirement.strip())
    return match[0].lower().replace("_", "-") if match else ""
