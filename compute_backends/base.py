"""Where a run can go: one Protocol, and one file per provider."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class VmRequest:
    """What a new VM is to run: a notebook whose code cells hold the pairing code."""

    notebook: Path


@dataclass(frozen=True)
class VmHandle:
    """One VM of one backend. `name` is the backend's own; `vm_id` is what the VM calls itself once it has booted."""

    name: str
    vm_id: str = ""


class ComputeBackend(Protocol):
    """A provider of notebook VMs."""

    @property
    def name(self) -> str: ...

    def start(self, request: VmRequest) -> VmHandle:
        """A new VM that executes the notebook's code cells. Raises VmError."""
        ...

    def is_alive(self, handle: VmHandle) -> bool: ...

    def interrupt(self, handle: VmHandle) -> None:
        """The front end's stop button: interrupt the running cell. Raises VmError when the VM is gone."""
        ...

    def run_cell(self, handle: VmHandle) -> None:
        """Run the notebook's cells again, as a person would after an interrupt. Raises VmError."""
        ...

    def kill(self, handle: VmHandle) -> None:
        """The VM is gone without a word, and its disk with it. Only the durable store is left."""
        ...

    def stop(self, handle: VmHandle) -> None:
        """Give the VM back in order; its disk goes too."""
        ...
