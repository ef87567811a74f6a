"""What the bootstrap cell calls: turn a fresh notebook VM into one that works through the queue.

Idempotent: a second run of the cell takes over from daemons that live. The cell is the only one who can mount Drive
and read notebook secrets, so both happen here.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import time
import traceback
from pathlib import Path
from typing import Any

from bridgehead import names, processes
from bridgehead.errors import BridgeheadError, PairingError, TransferError
from bridgehead.pairing import Pairing, decode
from vm_daemons import address, cell, daemons, export_trial, image_packages, key_rotation, mounting, payload, takeover
from vm_daemons.address import Addresses
from vm_daemons.client import BridgeClient, with_retries
from vm_daemons.home import VmHome
from vm_daemons.peers import Peers
from vm_daemons.storage import store_choice, store_setup, stored_payload
from vm_daemons.storage.folder_store import FolderStore

BOOT_LOG = "boot.log"
LAPTOP_FIRST_S = 5.0  # then the store is looked into
LAPTOP_PATIENCE_S = 120.0
SETTLE_TRIES, SETTLE_PAUSE_S = 30, 10.0  # five minutes for files that change while they are fetched
_LAPTOP = "the laptop"
ADDRESS_TIMEOUT_S = 30.0
SURVEY_TIMEOUT_S = 120.0  # a dead mount may hang whoever touches it


class CellError(Exception):
    """Shown under the cell as one line: a traceback would show the source, and the source holds the pairing code."""

    def _render_traceback_(self) -> list[str]:  # what IPython asks an exception for
        return [f"bridgehead: {self}"]


def main(code: str) -> None:
    """Boot, then beat until interrupted. Raises CellError alone."""
    home = VmHome.from_environment()
    try:
        boot(home, code)
    except BridgeheadError as error:
        raise CellError(error.message + (f" → {error.hint}" if error.hint else "")) from None
    except KeyboardInterrupt:
        raise CellError("interrupted before it was done; run the cell again") from None
    except Exception:  # noqa: BLE001 - process edge: whatever it is, the code must not be printed with it
        log = _write_boot_log(home)
        raise CellError(f"could not boot; the reason is in {log}") from None
    cell.heartbeat_loop(home)


def boot(home: VmHome, code: str) -> None:
    """All but the heartbeat. Raises BridgeheadError."""
    began = time.monotonic()
    pairing = decode(code)
    home.create()
    pairing = address.newest(home, key_rotation.newest(home, pairing))
    home.save_pairing(pairing)
    _unpack_api(home, pairing)
    record = home.update_record(boot_id=processes.boot_id(), ship_sha256=pairing.boot_sha256)
    cell.say(f"bridgehead: this is {record['vm_id']} in {home.root}")
    told = _payload(home, pairing)
    home.update_record(vm_rules=told["vm"])
    cell.say(f"store: {store_setup.settle(home, told['store'], cell.say, found=told.get('mount')) or 'NONE'}")
    image_packages.refuse_moved(home)
    if told["requirements"]:
        from vm_daemons import requirements  # it needs pip, which a project without requirements does not

        requirements.install([str(line) for line in told["requirements"]], cell.say)
        image_packages.refuse_moved(home)
    export_trial.forget_failure(home)
    if told["from"] != _LAPTOP:
        _say_what_others_left(home)
    states = daemons.ensure(home)
    cell.say("daemons: " + ", ".join(f"{name} {state}" for name, state in states.items()))
    cell.say(f"ready after {time.monotonic() - began:.1f} s; leave this cell running, it keeps the VM")


def _payload(home: VmHome, pairing: Pairing) -> dict[str, Any]:
    """What the laptop says, or, while it is off, what is here or in the store; with `from` and perhaps `mount`."""
    client = BridgeClient(home)

    def ask(patience_s: float) -> dict[str, Any]:
        told: dict[str, Any] = with_retries(
            lambda: _sync_settled(client, home, pairing), give_up_after_s=patience_s, on_retry=cell.say
        )
        with contextlib.suppress(OSError):  # a full disk is no reason not to boot
            (home.state / daemons.CONTACT_MARK).touch()
        return {**told, "from": _LAPTOP}

    try:
        return ask(LAPTOP_FIRST_S)
    except (TransferError, PairingError) as error:  # nobody there, or somebody else's bridge: it may have moved
        told, trouble = stored_payload.from_disk(home), error
    mount = None if told is not None else _mount(pairing)
    if _has_moved(home, mount):
        with contextlib.suppress(TransferError):
            return ask(LAPTOP_FIRST_S)
    elif isinstance(trouble, PairingError):
        raise trouble
    return _without_laptop(home, told, mount) or ask(LAPTOP_PATIENCE_S)


def _sync_settled(client: BridgeClient, home: VmHome, pairing: Pairing) -> dict[str, Any]:
    """Files that somebody is saving just now are waited for: a cell that ends here leaves a VM without daemons."""
    for _ in range(SETTLE_TRIES):
        try:
            return _sync(client, home, pairing)
        except payload.Unsettled as error:
            cell.say(f"{error.message}; tried again in {SETTLE_PAUSE_S:.0f} s")
            time.sleep(SETTLE_PAUSE_S)
    return _sync(client, home, pairing)


def _mount(pairing: Pairing) -> Path | None:
    return store_setup.usable(pairing.store, cell.say) if pairing.store else mounting.find_store(cell.say)


def _has_moved(home: VmHome, mount: Path | None) -> bool:
    """Whether the store knows a newer address of the bridge than the pairing code; it is followed from now on."""
    addresses = Addresses(home, cell.say)

    def look() -> bool:
        store = FolderStore(mount, proves=False) if mount is not None else store_choice.choose(home)
        return store is not None and addresses.look([store]) is not None

    try:
        return mounting.in_time(look, ADDRESS_TIMEOUT_S, "the store")
    except (BridgeheadError, OSError):  # whatever is wrong with the store is told where it is settled
        return False


def _without_laptop(home: VmHome, told: dict[str, Any] | None, mount: Path | None) -> dict[str, Any] | None:
    source = "this VM's own disk"
    if told is None:
        source = f"the store {mount}"
        try:
            told = stored_payload.from_store(home, mount) if mount is not None else None
        except (BridgeheadError, OSError) as error:
            cell.say(f"store: {error}. The laptop is needed at the start.")
    if told is None:
        return None
    home.update_record(project=told["project"])
    cell.say(
        f"the laptop does not answer: payload of {told['project']} from {source}, {told['files']} files,"
        " signed by the laptop and checked; the laptop hears of everything when it is back"
    )
    return {**told, "from": source, "mount": mount}


def _say_what_others_left(home: VmHome) -> None:
    try:
        lines = mounting.in_time(
            lambda: takeover.survey(Peers(home, lambda: store_choice.choose(home)).look()), SURVEY_TIMEOUT_S, "it"
        )
    except (BridgeheadError, OSError) as error:
        cell.say(f"store: {error}")
        return
    for line in lines:
        cell.say(f"left in the store by {line}")
    if lines:
        cell.say(f"what belongs to a dead VM is taken over after {home.rules().lost_after_s:g} s without a beat of it")


def _unpack_api(home: VmHome, pairing: Pairing) -> None:
    """A folder with the bridgehead package alone: user code must not see our `stages` or `export`."""
    target = home.api(pairing.boot_sha256)
    if target.is_dir():
        return
    package = names.SHIPPED_PACKAGES[0]
    partial = target.with_name(f"{target.name}.{secrets.token_hex(4)}")
    shutil.copytree(
        Path(__file__).parents[1] / package, partial / package, ignore=shutil.ignore_patterns("__pycache__")
    )
    partial.replace(target)


def _sync(client: BridgeClient, home: VmHome, pairing: Pairing) -> dict[str, Any]:
    told = payload.sync(client, home, cell.say)
    if told["ship_sha256"] != pairing.boot_sha256:
        raise PairingError(
            "the laptop runs another Bridgehead than this pairing code is for",
            hint="copy the new code: bridgehead notebook",
        )
    home.update_record(project=told["project"])
    cell.say(
        f"payload of {told['project']}: {told['files']} files, {told['fetched']} fetched"
        f" ({told['fetched_bytes'] / 2**20:.1f} MiB), {told['copied']} were here already, {told['removed']} removed"
    )
    return told


def _write_boot_log(home: VmHome) -> Path:
    """Tracebacks hold source lines of ours alone; the code is in the notebook's source and in no file of ours."""
    path = home.state / BOOT_LOG
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(traceback.format_exc())
    return path
