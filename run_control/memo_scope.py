"""Which memos a launch should hear of: those about the machine, the store and the tunnel that this run would use."""

from __future__ import annotations

from bridgehead.failures.classes import INFRASTRUCTURE
from bridgehead.names import FailureClass as F
from bridgehead.names import StoreKind
from run_control import memos
from run_control.checks import WARN, Check
from run_control.plan import Plan
from run_control.project import Project
from run_control.project_file import Whole

_OF_GPUS = frozenset({F.NO_GPU, F.GPU_HARDWARE, F.NCCL_TIMEOUT, F.NCCL_PEER_LOST})
_OF_MOUNTS = frozenset({F.MOUNT_LOST})
_OF_SSH = frozenset({F.SSH_DROP})


def checks(project: Project, whole: Whole, made: Plan, now: float | None = None) -> list[Check]:
    """A warning for each memo of the last 30 days that is about what the planned run would use."""
    lines = memos.applying(project, classes=classes(whole, made), now=now)
    return [Check("memos", WARN, line, f"bridgehead memos {line.split()[0]}") for line in lines]


def classes(whole: Whole, made: Plan) -> frozenset[F]:
    """All of infrastructure, less what this run can't meet: no GPU, no mount, no ssh."""
    gpu = made.spec.resources.gpu if made.spec is not None else whole.money.gpu
    left_out: set[F] = set()
    if not gpu and not made.stage.needs.gpu_memory_gb:
        left_out |= _OF_GPUS
    if whole.view.store.kind not in (StoreKind.MOUNT, StoreKind.FOLDER):
        left_out |= _OF_MOUNTS
    if whole.view.tunnel.kind != "ssh":
        left_out |= _OF_SSH
    return INFRASTRUCTURE - left_out
