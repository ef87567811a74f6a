"""Where things lie on the VM, and who this VM is."""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridgehead import announcement, files, names, processes
from bridgehead.errors import PairingError, UsageError
from bridgehead.pairing import Pairing, decode
from bridgehead.records import VmRules


@dataclass(frozen=True)
class VmHome:
    """The VM's working folder: ship/ api/ payload/ code/ runs/ state/."""

    root: Path

    @classmethod
    def from_environment(cls) -> VmHome:
        """$BRIDGEHEAD_HOME, else /content/bridgehead (Colab), /kaggle/working/bridgehead, else ./bridgehead-vm."""
        named = os.environ.get(names.ENV_HOME)
        if named:
            return cls(Path(named).absolute())
        for parent in ("/content", "/kaggle/working"):
            if Path(parent).is_dir():
                return cls(Path(parent) / "bridgehead")
        return cls(Path.cwd() / "bridgehead-vm")

    @property
    def state(self) -> Path:
        return self.root / names.VM_STATE

    @property
    def payload(self) -> Path:
        return self.root / names.VM_PAYLOAD

    @property
    def runs(self) -> Path:
        return self.root / names.VM_RUNS

    @property
    def journal(self) -> Path:
        return self.state / names.VM_JOURNAL

    def run(self, run_id: str) -> Path:
        return self.runs / run_id

    def ship(self, sha256: str) -> Path:
        """The boot archive's files, by the archive's hash: a new ship never overwrites one in use."""
        return self.root / names.VM_SHIP / sha256[:16]

    def api(self, sha256: str) -> Path:
        """A folder that holds the bridgehead package alone: all that user code gets of ours on its path."""
        return self.root / names.VM_API / sha256[:16]

    def code(self, payload_sha256: str) -> Path:
        """Where a run of this payload works: a tree of its own (see code_trees), else the payload folder."""
        tree = self.root / names.VM_CODE / payload_sha256[:16]
        return tree if payload_sha256 and tree.is_dir() else self.payload

    def create(self) -> None:
        for folder in (self.state, self.payload, self.runs):
            folder.mkdir(parents=True, exist_ok=True)

    def record(self) -> dict[str, Any]:
        """vm.json, made on first use: vm_id, boot_id, started, project, ship_sha256, payload_sha256, store (or "")."""
        path = self.state / names.VM_RECORD
        record = files.read_json(path)
        if not isinstance(record, dict):
            record = {
                "v": names.RECORD_VERSION,
                "vm_id": f"vm-{secrets.token_hex(3)}",
                "boot_id": processes.boot_id(),
                "started": time.time(),
                "started_clock_s": time.clock_gettime(time.CLOCK_BOOTTIME),
            }
            files.write_json(path, record)
        return record

    def update_record(self, **values: Any) -> dict[str, Any]:
        record = {**self.record(), **values}
        files.write_json(self.state / names.VM_RECORD, record)
        return record

    def save_pairing(self, pairing: Pairing) -> None:
        files.write_json(self.state / names.VM_PAIRING, {"code": pairing.encode()}, mode=0o600)

    def pairing(self) -> Pairing:
        """The code's, at the newest address that its laptop has announced. Raises PairingError.

        Read again at each use, so that a new cell run with a new code, or a bridge that moved, is picked up.
        """
        record = files.read_json(self.state / names.VM_PAIRING)
        if not isinstance(record, dict):
            raise PairingError("this VM is not paired", hint="run the bootstrap cell")
        code = decode(str(record.get("code", "")))
        return announcement.applied(code, files.read_json(self.state / names.ADDRESS))

    def rules(self) -> VmRules:
        """[vm] of the project, as the laptop told it when this VM was booted."""
        try:
            return VmRules.from_json(self.record().get("vm_rules") or {})
        except UsageError:
            return VmRules()

    def store_path(self) -> Path | None:
        """The mounted store that the cell found, None when there is none."""
        named = self.record().get("store")
        return Path(named) if named else None
