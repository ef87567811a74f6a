"""A person wants this VM to give itself back: from the line `@vm release:` to the cell, which alone can do it.

`state/release.json` is {"v", "id", "seq", "at"} of the line, and "released" (seconds since 1970) once the VM was given
back. A home that outlives that (a local VM, or a notebook whose provider takes nothing back) begins anew when the cell
is run again: the wish is spent.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from bridgehead import files, names
from bridgehead.records import Command
from vm_daemons.home import VmHome


@dataclass(frozen=True)
class Wish:
    """`seq` is the line's number in the laptop's ledger."""

    command_id: str
    seq: int
    released: bool


def pending(home: VmHome) -> Wish | None:
    """The wish that is still to be met."""
    wish = _read(home)
    return None if wish is None or wish.released else wish


def ask(home: VmHome, command: Command) -> bool:
    """Write it down for the cell; False when it was met already. Raises OSError."""
    wish = _read(home)
    if wish is not None and wish.command_id == command.id:
        return not wish.released
    _write(home, command.id, command.seq)
    return True


def met(home: VmHome) -> None:
    """The VM was given back. Raises OSError."""
    wish = pending(home)
    if wish is not None:
        _write(home, wish.command_id, wish.seq, released=round(time.time(), 3))


def _write(home: VmHome, command_id: str, seq: int, **more: float) -> None:
    record = {"v": names.RECORD_VERSION, "id": command_id, "seq": seq, "at": round(time.time(), 3), **more}
    files.write_json(home.state / names.VM_RELEASE, record)


def _read(home: VmHome) -> Wish | None:
    record = files.read_json(home.state / names.VM_RELEASE)
    if not isinstance(record, dict) or not isinstance(record.get("seq"), int):
        return None
    return Wish(str(record.get("id", "")), record["seq"], bool(record.get("released")))
