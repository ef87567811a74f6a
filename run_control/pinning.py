"""Run specs at the two places where they are needed: when the bridge takes a line, and on the disk under their id."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridge.project import Pinned, PinRequest, PinRun
from bridgehead import files, names
from bridgehead.errors import BridgeheadError, NotFoundError, UsageError
from bridgehead.queue_lines import nearest
from run_control import code_pin, live_rate, paid_vms, plan, run_spec
from run_control.project_file import Whole
from run_control.run_spec import Code, RunSpec

ID_CHARACTERS = 16  # of a spec's id in file names and queue lines
_ID_MIN = 4
_SIZE_MAX_BYTES = 2**20
_RUN_ID = re.compile(r"[a-z][a-z0-9_-]*-\d{4,}-[0-9a-f]{6}\Z")


def prepare(root: Path, whole: Whole, shipped_sha256: str = "") -> PinRun:
    """What the bridge asks of each run: line that it takes. What is slow, hashing, git and the account, comes first.

    `shipped_sha256`: of the archive that the bridge serves; "" for the one that this process would make.
    """
    own = _own_code(root, whole)
    shipped = Code(sha256=shipped_sha256, shipped=True) if shipped_sha256 else None
    _ask_rates(root, whole)
    elsewhere = paid_vms.elsewhere(root)

    def pin(request: PinRequest) -> Pinned:
        try:
            stored = load(root, request.spec_id) if request.spec_id else None
            wanted = stored.spec if stored is not None else None
            made = plan.make(root, whole, request, wanted=wanted, own_code=own, shipped=shipped, elsewhere=elsewhere)
            spec = made.pinned()
            if stored is not None:
                spec = dataclasses.replace(spec, pins=dataclasses.replace(spec.pins, image=stored.image))
        except UsageError:
            raise
        except BridgeheadError as error:
            raise UsageError(error.message, hint=error.hint) from None
        except (OSError, LookupError, ArithmeticError) as error:  # else the lines after this one would wait for ever
            raise UsageError(f"it can't be pinned: {type(error).__name__}: {error}") from None
        return Pinned(spec, inputs_of(wanted) if wanted is not None else request.inputs)

    return pin


def inputs_of(spec: RunSpec) -> dict[str, str]:
    """Stage -> run, of the runs that it comes after. A run id is its stage, its number and six digits."""
    runs = [parent for parent in spec.parents if _RUN_ID.match(parent) and parent != spec.resume_from]
    return {run_id.rsplit("-", 2)[0]: run_id for run_id in runs}


def _ask_rates(root: Path, whole: Whole) -> None:
    """The account's rate for each stage, kept for the lines that are about to be taken."""
    for limits in whole.limits.values():
        with contextlib.suppress(UsageError):  # two units: told for the line that it concerns
            live_rate.of(root, whole.money.terms(limits))


def _own_code(root: Path, whole: Whole) -> Callable[[], Code]:
    if all(run_spec.is_shipped(stage.command) for stage in whole.view.stages.values()):
        return lambda: code_pin.own(root)
    try:
        code = code_pin.own(root)
    except (UsageError, OSError) as caught:  # told for each line that it concerns
        error = caught if isinstance(caught, UsageError) else UsageError(f"its files can't be read: {caught}")

        def refuse() -> Code:
            raise error

        return refuse
    return lambda: code


def store(root: Path, spec: RunSpec, image: dict[str, Any] | None = None) -> Path:
    """Write it to specs/<first 16 of its id>.json, where a queue line can name it. Raises OSError.

    `image`: the machine on which its first run ran, so that another one is told as a difference.
    """
    folder = root / names.SPECS_FOLDER
    folder.mkdir(exist_ok=True)
    path = folder / f"{spec.id[:ID_CHARACTERS]}.json"
    files.write_json(path, {"id": spec.id, "spec": spec.to_json(), "image": image or {}})
    return path


@dataclass(frozen=True)
class Stored:
    spec: RunSpec
    image: dict[str, Any]


def load(root: Path, spec_id: str) -> Stored:
    """The stored spec whose id begins so. Raises NotFoundError, UsageError, VerificationError when it was edited."""
    known = {path.stem: path for path in sorted((root / names.SPECS_FOLDER).glob("*.json"))}
    alike = [stem for stem in known if stem.startswith(spec_id) or spec_id.startswith(stem)]
    found = [known[stem] for stem in alike] if len(spec_id) >= _ID_MIN else []
    if len(found) != 1:
        raise NotFoundError(f"no run spec {spec_id[:64]!r} in {names.SPECS_FOLDER}/", hint=nearest(spec_id, known))
    path = found[0]
    where = f"{names.SPECS_FOLDER}/{path.name}"
    try:
        data = files.read_json(path) if path.stat().st_size <= _SIZE_MAX_BYTES else None
    except OSError as error:
        raise UsageError(f"{where} can't be read: {error.strerror}") from None
    if not isinstance(data, dict) or not isinstance(data.get("id"), str):
        raise UsageError(f"{where} is no stored run spec", hint="bridgehead rerun RUN writes one")
    image = data.get("image")
    return Stored(
        run_spec.digest_checked(data.get("spec"), data["id"], where), image if isinstance(image, dict) else {}
    )
