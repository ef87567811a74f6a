"""What each failure class means, whether a run of that class may be tried again, and the next step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from bridgehead.names import FailureClass as F

UNLIMITED: Final = 1000  # lost machines are no fault of the run's: its caps end it, not this count


@dataclass(frozen=True)
class ClassFacts:
    """`retries`: how often such a run may be started again by whoever pays for it, 0 for never.

    `where`: same, other, bigger or "". `by_itself`: when the VM that has the run starts it again all the same, within
    the stage's `retries`.
    """

    meaning: str
    next_step: str
    retries: int = 0
    where: str = ""
    by_itself: str = ""

    def retry_json(self) -> dict[str, Any]:
        told = {"allowed": self.retries > 0, "budget": self.retries, "where": self.where}
        return told | ({"by_itself": self.by_itself} if self.by_itself else {})


# What would fail the same way again is never paid for twice.
FACTS: Final[dict[F, ClassFacts]] = {
    F.DONE: ClassFacts("it ended well", "nothing to do"),
    F.STOPPED: ClassFacts("somebody asked for it", "run it again to go on from its newest checkpoint"),
    F.CANCELLED: ClassFacts("it was interrupted or cancelled from outside", "run it again if that was not meant"),
    F.USER_ERROR: ClassFacts(
        "the program ended itself with an error", "read the first traceback in the log, mend the code, run it again"
    ),
    F.GPU_OOM: ClassFacts(
        "the GPU's memory ran out",
        "a smaller batch with gradient accumulation, a shorter sequence, activation checkpointing, or a bigger GPU",
    ),
    F.HOST_OOM: ClassFacts(
        "the machine's memory ran out",
        "fewer DataLoader workers, a smaller prefetch, data mapped rather than loaded, or a machine with more memory",
    ),
    F.KILLED: ClassFacts(
        "killed by a signal whose sender is not known",
        "look at the kernel's log (dmesg) and the cgroup's memory.events; if oom_kill rose, it was memory",
        1, "bigger",
    ),
    F.SHM: ClassFacts(
        "shared memory (/dev/shm) ran out",
        "a container with --shm-size=8g or --ipc=host, fewer DataLoader workers, or the file_system sharing strategy",
    ),
    F.DISK_FULL: ClassFacts(
        "no room on a disk, or a quota was reached",
        "make room (df -h, df -i, quota), keep fewer checkpoints, or point output and caches at a bigger disk",
        by_itself="started again by itself on the same VM once there is room, within its retries; not on another VM",
    ),
    F.MOUNT_LOST: ClassFacts(
        "a mounted file system went away under the run",
        "mount it again (Colab: run the cell again) and resume; read the data from the local disk, not the mount",
        5, "other",
    ),
    F.NCCL_TIMEOUT: ClassFacts(
        "the ranks waited for each other until the time was up",
        "find the rank that fell behind: the one whose last collective differs or that never logged the timeout",
        1, "other",
    ),
    F.NCCL_PEER_LOST: ClassFacts(
        "another rank or its network went away first",
        "look at the logs of the other ranks: the cause is in the one that ended first",
        3, "other",
    ),
    F.GPU_HARDWARE: ClassFacts(
        "the GPU or its node failed", "leave this machine: give it back and take another one", 3, "other"
    ),
    F.CUDA_ERROR: ClassFacts(
        "a kernel on the GPU failed",
        "run one step with CUDA_LAUNCH_BLOCKING=1 or on the CPU to see which line; check labels and indices",
    ),
    F.NO_GPU: ClassFacts(
        "no usable GPU was there", "check that the machine has a GPU (nvidia-smi), or choose another one",
        3, "other",
    ),
    F.NAN_LOSS: ClassFacts(
        "the loss or a gradient was no number any more",
        "a lower learning rate or a longer warm-up, gradient clipping, bf16 instead of fp16, a look at the batch",
    ),
    F.CHECKPOINT_CORRUPT: ClassFacts(
        "a checkpoint or weights file is damaged",
        "resume from the checkpoint before it that verifies, or fetch it anew",
        2, "same",
    ),
    F.CHECKPOINT: ClassFacts(
        "the stage refuses the checkpoint that it found",
        "its message says what differs: give it the old pool and config, or allow the difference by name",
    ),
    F.AUTH: ClassFacts(
        "credentials are missing, wrong or not allowed to", "sign in again or ask for access, then run it again",
    ),
    F.ENVIRONMENT: ClassFacts(
        "a library, driver, command or service does not fit or is not there",
        "install or pin what the message names, on an image that has it",
    ),
    F.TRACKER: ClassFacts(
        "the experiment tracker failed, not the training", "go on offline (WANDB_MODE=offline) and send it later",
        2, "same",
    ),
    F.SSH_DROP: ClassFacts(
        "the connection was lost, which says nothing about the run",
        "connect again and look whether it still runs; start such runs in a session of their own (setsid, tmux)",
    ),
    F.PREEMPTED: ClassFacts(
        "the provider took the machine back", "resume from the newest verified checkpoint on another machine",
        UNLIMITED, "other",
    ),
    F.TIME_LIMIT: ClassFacts(
        "its time was up", "resume with more time, or save more often and split the run"
    ),
    F.SEGFAULT: ClassFacts(
        "a native library crashed",
        "run it with python -X faulthandler; suspect a mismatch of compiled packages, then the data",
    ),
    F.SUBMIT_ERROR: ClassFacts(
        "the scheduler did not take the job, or did not say so",
        "look it up by its name first: it may have been accepted; submit again only if it is not there",
        3, "same",
    ),
    F.VM_LOST: ClassFacts(
        "its VM went away without a word",
        "run the bootstrap cell on a new VM: the run resumes", UNLIMITED, "other"
    ),
    F.GATE: ClassFacts("the gate's verdict was fail", "read the gate's table: which metric missed its margin"),
    F.UPSTREAM: ClassFacts("what it comes after did not succeed", "mend that one first"),
    F.UNKNOWN_OUTCOME: ClassFacts(
        "nobody saw how it ended", "check by hand what it did before you send it again"
    ),
    F.UNKNOWN: ClassFacts("nothing decides", "read the tail of the log"),
}  # fmt: skip


# The owner's code and data had no part in these: a memo is kept of each.
INFRASTRUCTURE: Final = frozenset({
    F.KILLED, F.DISK_FULL, F.MOUNT_LOST, F.NCCL_TIMEOUT, F.NCCL_PEER_LOST, F.GPU_HARDWARE, F.NO_GPU, F.AUTH,
    F.ENVIRONMENT, F.TRACKER, F.SSH_DROP, F.PREEMPTED, F.SUBMIT_ERROR, F.VM_LOST, F.UNKNOWN_OUTCOME,
})  # fmt: skip


def facts(failure: str) -> ClassFacts:
    """Of any class name; those of `unknown` for a name that this version has not heard of."""
    try:
        return FACTS[F(failure)]
    except (ValueError, KeyError):
        return FACTS[F.UNKNOWN]
