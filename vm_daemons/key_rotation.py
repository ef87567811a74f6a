"""What the laptop's signed hints say of this VM's key: the salt of the next one, and whether shell commands may run.

The new key is kept before it is used; its first use tells the laptop that it is kept. Until then, and for a while
after, the laptop takes the old one too, so it does not matter which of the daemons reads the new pairing when.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import dataclasses
import logging
import re
from typing import Any

from bridgehead import files, names, rotation
from bridgehead.errors import PairingError
from bridgehead.pairing import FORMER_MAX, Pairing, decode
from vm_daemons.home import VmHome

ALLOW_SH = "allow_sh"  # in the manifest, the hints and state/shell.json
_KEY_ID = re.compile(r"[A-Za-z0-9_-]{4,64}\Z")
_log = logging.getLogger(__name__)


def heed(home: VmHome, told: dict[str, Any], signed_with: str) -> None:
    """Act on hints that were signed with the key of this id. Raises PairingError, and OSError when it can't be kept."""
    rotate = told.get("rotate")
    if isinstance(rotate, dict):
        _adopt(home, rotate, signed_with)
    heed_switch(home, told)


def heed_switch(home: VmHome, told: dict[str, Any]) -> None:
    """Remember whether the project allows `sh:`; from hints or from the manifest."""
    allowed = told.get(ALLOW_SH)
    if isinstance(allowed, bool) and _project_allows(home) is not allowed:
        files.write_json(home.state / names.VM_SHELL, {"v": names.RECORD_VERSION, ALLOW_SH: allowed})


def refuses_shell(home: VmHome) -> str:
    """Why this VM runs no `sh:`, "" when it does. What the pairing code says, no bridge can change."""
    with contextlib.suppress(PairingError):  # without a pairing no command can have come from anybody
        if not home.pairing().allow_sh:
            return "this VM was paired without sh:"
    return "" if _project_allows(home) else "sh: is switched off for this project"


def newest(home: VmHome, pasted: Pairing) -> Pairing:
    """What to keep of a code that a cell brought: an open tab still holds the one from before a rotation."""
    try:
        kept = _kept(home)
    except PairingError:
        return pasted
    if pasted.key not in kept.former:
        return pasted
    return dataclasses.replace(pasted, key_id=kept.key_id, key=kept.key, former=kept.former)


def _project_allows(home: VmHome) -> bool:
    told = files.read_json(home.state / names.VM_SHELL)
    return not isinstance(told, dict) or told.get(ALLOW_SH) is not False


def _adopt(home: VmHome, rotate: dict[str, Any], signed_with: str) -> None:
    pairing = _kept(home)
    new_id = str(rotate.get("kid"))
    if pairing.key_id != signed_with or new_id == pairing.key_id:
        return  # done already, or the cell has paired this VM anew meanwhile
    try:
        salt = base64.b64decode(str(rotate.get("salt")), validate=True)
        key = rotation.successor(pairing.key, salt, pairing.key_id, new_id)
    except (ValueError, binascii.Error):
        raise PairingError("the laptop's hints hold no usable salt for the next key") from None
    if not _KEY_ID.match(new_id):
        raise PairingError("the laptop's hints name no usable next key")
    former = (pairing.key, *pairing.former)[:FORMER_MAX]
    home.save_pairing(dataclasses.replace(pairing, key_id=new_id, key=key, former=former))
    _log.info("the pairing key was rotated: %s follows %s", new_id, pairing.key_id)


def _kept(home: VmHome) -> Pairing:
    """The pairing as it lies on the disk, whatever address has been announced since."""
    record = files.read_json(home.state / names.VM_PAIRING)
    return decode(str(record.get("code", "")) if isinstance(record, dict) else "")
