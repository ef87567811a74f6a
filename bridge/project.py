"""What the bridge needs to know of a project; read from bridgehead.toml by run_control, anew whenever it is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bridge.tunnels.spec import TunnelSpec
from bridgehead.records import StageSpec, StoreSpec, VmRules


@dataclass(frozen=True)
class PinRequest:
    """A run: line as the ledger has resolved it. `spec_id`: of a run spec that it names; `unpriced`: its reason."""

    spec: StageSpec
    inputs: dict[str, str]
    spec_id: str = ""
    unpriced: str = ""


@dataclass(frozen=True)
class Pinned:
    """The stage with its pins in it, and the runs whose outputs it gets."""

    spec: StageSpec
    inputs: dict[str, str]


# Raises UsageError when the run must not start: no price, over a cap, other data, code that can't be read.
PinRun = Callable[[PinRequest], Pinned]


@dataclass(frozen=True)
class ProjectView:
    """A loaded project file, resolved."""

    name: str
    stages: dict[str, StageSpec] = field(default_factory=dict)
    payload_include: list[str] = field(default_factory=list)  # globs, relative to the project folder
    payload_exclude: list[str] = field(default_factory=list)
    requirements: list[str] = field(default_factory=list)  # pip lines for the VM
    store: StoreSpec = field(default_factory=StoreSpec)
    laptop_store: str = ""  # the store's folder as this laptop sees it; no VM has to know
    vm: VmRules = field(default_factory=VmRules)
    down_mb_s: float = 0.0  # how fast the payload may come down to a VM; 0: no limit
    tunnel: TunnelSpec = field(default_factory=TunnelSpec)
    allow_sh: bool = True  # whether sh: lines may run at all
    pairings_allow_sh: bool = True  # whether any VM is paired for them; not in the file, the bridge knows
    # From the SHA-256 of what the bridge ships to what pins a run. Slow: it hashes what the project's runs are of.
    prepare_pin: Callable[[str], PinRun] | None = None
    pin: PinRun | None = None  # what it gave; the bridge calls it before it takes lines


LoadProject = Callable[[], ProjectView]  # raises ProjectError when the file has a mistake
