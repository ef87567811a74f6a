"""What schedulers and providers call the end of a job, in classes."""

from __future__ import annotations

import re
from typing import Final

from bridgehead.names import FailureClass as F

# Slurm: sacct(1) job states. Kubernetes: container status `terminated.reason` and pod conditions. LSF: TERM_*.
_STATES: Final = (
    (F.DONE, r"COMPLETED|Completed|Succeeded|SUCCEEDED|Complete"),
    (F.HOST_OOM, r"OUT_OF_MEMORY|OOM|OOMKilled|TERM_MEMLIMIT"),
    (F.TIME_LIMIT, r"TIMEOUT|DeadlineExceeded|DEADLINE|TERM_RUNLIMIT"),
    (
        F.PREEMPTED,
        r"PREEMPTED|REQUEUED|Preempted|Preempting|DisruptionTarget|Evicted|EvictionByEvictionAPI|TERM_PREEMPT",
    ),
    (F.GPU_HARDWARE, r"NODE_FAIL|BOOT_FAIL"),
    (F.VM_LOST, r"NodeLost|NodeShutdown|Terminated by host|TERMINATED_BY_HOST"),
    (F.CANCELLED, r"CANCELLED(?: by \d+)?|Cancelled|CANCELED|TERM_OWNER|TERM_ADMIN|REVOKED"),
    (F.ENVIRONMENT, r"ErrImagePull|ImagePullBackOff|CreateContainerConfigError|ContainerCannotRun|InvalidImageName"),
)


def class_of(state: str) -> F | None:
    """None for a state that leaves the cause open, such as FAILED or Error, and for one that is not known."""
    plain = state.strip().rstrip("+")
    return next((failure for failure, regex in _STATES if re.fullmatch(regex, plain)), None)
