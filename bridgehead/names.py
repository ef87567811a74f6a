"""Every name that more than one part of Bridgehead must agree on, written once.

A test greps the tree for these literals elsewhere: two spellings of one name is how an earlier
system came to gate the wrong run.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

PROTOCOL: Final = 1  # the wire; laptop and VM compare it at pairing, nobody branches on it
RECORD_VERSION: Final = 1  # the "v" of every record on disk and on the wire

# --- the shipped stages -----------------------------------------------------------------
PRETRAIN: Final = "pretrain"
FINETUNE: Final = "finetune"
GATE: Final = "gate"
EXPORT: Final = "export"
SHIPPED_STAGES: Final = (PRETRAIN, FINETUNE, GATE, EXPORT)
SHIPPED_COMMAND_PREFIX: Final = "bridgehead:"  # command = "bridgehead:pretrain" runs stages.pretrain

# --- files of a run folder (VM), of its mirrors in in/<run>/ and <store>/<project>/runs/<run>/ ------
RUN_RECORD: Final = "run.json"
LOG: Final = "log"
LOG_BEFORE: Final = "log.1"  # on the laptop: what a log held before it passed [project] log_max_mb
PROGRESS: Final = "progress.jsonl"
STATUS: Final = "status.json"
STATUS_LINE: Final = "status.txt"
RESULTS: Final = "results.json"
EXIT: Final = "exit.json"
POSTMORTEM: Final = "postmortem.json"  # why it ended and what to do about it; written after exit.json, never before
POSTMORTEM_PAGE: Final = "postmortem.md"  # the same for a person
POSTMORTEM_DUE: Final = "postmortem.due"  # exists while it is being written; stays on the VM
PROCESS: Final = "process.json"  # pids of runner and stage; stays on the VM
RUNNER_LOCK: Final = "runner.lock"  # held by the live runner; stays on the VM
STOP_REQUEST: Final = "stop"  # exists once somebody asked the stage to stop; stays on the VM
SAVE_REQUEST: Final = "save"  # asks a stage for a checkpoint now; the stage removes it after the commit; stays here
HANDOVER: Final = "handover.json"  # the VM is near its end: how far the run's hand-over to the next one is; stays here
DEATHS: Final = "deaths.json"  # how often this attempt died of what nobody here sent; stays on the VM
MIRRORED: Final = "mirrored.json"  # all that an ended run made has left this VM; stays on the VM
CHECKPOINTS: Final = "checkpoints"
ARTIFACTS: Final = "artifacts"
BUNDLE: Final = "bundle"
CHECKPOINT_MANIFEST: Final = "manifest.json"
SLOT_COMMIT: Final = "COMMIT.json"  # in a slot of the store, written last: size and SHA-256 of each file there
OUTPUTS: Final = "outputs.json"  # in the store: size and SHA-256 of each file that a finished run left there
RESTORED: Final = "restore.json"  # what came from the store, and what was passed over and why; stays on the VM
LEASE: Final = "lease.json"  # in the store: which attempt may write this run
SLOT_CONFIRMED: Final = "CONFIRMED.json"  # in a slot of the store: its commit was read back by another path
GENERATIONS: Final = "generations.json"  # which lives of its growing files the laptop has; for VM and store
LOG_SUMS: Final = "log_sums.json"  # in the store: sizes and hashes of the copies of each growing file put there
UPLOADING: Final = "uploading"  # a second name for the checkpoint that is on its way into the store; stays on the VM
CHECKPOINT_LEVELS: Final = "checkpoints.json"  # how far each checkpoint has climbed, and when; the uploader's

GROWING_FILES: Final = (LOG, PROGRESS)  # appended to; travel as uploads that are not complete yet
STATE_FILES: Final = (RUN_RECORD, STATUS, STATUS_LINE, CHECKPOINT_LEVELS, RESULTS, EXIT)  # replaced whole
POSTMORTEM_FILES: Final = (POSTMORTEM, POSTMORTEM_PAGE)
ARTIFACT_FOLDERS: Final = (ARTIFACTS, BUNDLE)

# --- what the clips stages leave behind ---------------------------------------------------
ENCODER_WEIGHTS: Final = "encoder.pt"
CLASSIFIER_WEIGHTS: Final = "classifier.pt"
MODEL_ONNX: Final = "model.onnx"
BUNDLE_RECORD: Final = "bundle.json"
BUNDLE_MANIFEST: Final = "MANIFEST.sha256"
POOL_RECORD: Final = "pool.json"  # in a pool's folder: its fingerprint, its files
HELD_OUT_SUBJECTS: Final = (9, 10)  # of the clips: nobody trains on them, the gate alone sees them
BUNDLE_SIGNATURE: Final = "MANIFEST.sig"  # made on a laptop, over the manifest; beside it, and not listed in it

# --- project folder (laptop) ---------------------------------------------------------------
PROJECT_FILE: Final = "bridgehead.toml"
QUEUE_FILE: Final = "queue.txt"
IN_FOLDER: Final = "in"
PRIVATE_FOLDER: Final = ".bridgehead"
LEDGER_FILE: Final = "ledger.sqlite3"
KEYS_FILE: Final = "keys.json"
AUDIT_FILE: Final = "audit.jsonl"  # what was commanded, by whom, and what came of it; older ones: audit-1.jsonl …
BRIDGE_RECORD: Final = "bridge.json"  # pid, port, url of the bridge that serves this project
BRIDGE_LOG: Final = "bridge.log"
SPECS_FOLDER: Final = "specs"  # <first 16 of its id>.json: run specs that queue lines name
NOTIFIED: Final = "notified.json"  # which events were told to whom, and which wait to be
TRACKING: Final = "tracking"  # how far W&B, MLflow and TensorBoard were told of each run, and who tells them
UPLOADS_PAUSED: Final = "uploads_paused"  # exists while artefacts are not to be sent to this laptop
ADDRESS: Final = "address.json"  # laptop: the newest address and its number; VM, in state/: the newest one it was told

# --- durable store, below <store>/<project>/ ------------------------------------------------------
STORE_RUNS: Final = "runs"
STORE_VMS: Final = "vms"  # <vm>/beat.json and journal.jsonl: what a VM was doing, for the one that comes after it
STORE_BEAT: Final = "beat.json"
STORE_SHIP: Final = "ship"  # <first 16 of its hash>.zip: the boot archive, for a boot without the laptop
STORE_PAYLOAD: Final = "payload"  # <payload hash>.tar and .json
STORE_ADDRESS: Final = "address"  # <key id>.json: where the bridge is now, signed with that key by the laptop

# --- VM home ---------------------------------------------------------------------------------
VM_SHIP: Final = "ship"
VM_API: Final = "api"  # holds the bridgehead package alone: what user code gets beside its own folder
VM_PAYLOAD: Final = "payload"
VM_CODE: Final = "code"  # <first 16 of its hash>/: the payload as runs were started with it
VM_RUNS: Final = "runs"
VM_STATE: Final = "state"
VM_RECORD: Final = "vm.json"
VM_PAIRING: Final = "pairing.json"  # 0600
VM_SHELL: Final = "shell.json"  # whether the project allows sh:, as its laptop last said
VM_JOURNAL: Final = "journal.jsonl"
VM_REVOKED: Final = "revoked.json"  # [{"run_id", "attempt"}]: runs that now belong to another VM or attempt
COMMAND_DAEMON: Final = "command_daemon"
STATUS_DAEMON: Final = "status_daemon"
UPLOADER: Final = "uploader"  # all work for the durable store, in a process of its own
DAEMONS: Final = (COMMAND_DAEMON, STATUS_DAEMON, UPLOADER)
VM_STORE_STATE: Final = "store.json"  # how the store is, as the uploader last saw it
VM_STORE_SECRETS: Final = "store_secrets.json"  # 0600; what the cell got from notebook secrets for the store
VM_REMOUNT: Final = "remount.json"  # a request to the cell, the only one that can mount Drive
VM_UPLOADS: Final = "uploads.json"  # how far the artefacts are on their way to the laptop, for the cell's line
VM_IMAGE_PACKAGES: Final = "image_packages.json"  # torch and its like as the first boot found them
VM_EXPORT_TRIAL: Final = "export_trial.json"  # with which packages a tiny model was exported here
VM_LIFETIME: Final = "lifetime.json"  # age, cap, and why the VM stays up or is about to be released
VM_RELEASE: Final = "release.json"  # a person has asked this VM to give itself back: the line, and whether it has
SHIPPED_PACKAGES: Final = ("bridgehead", "vm_daemons", "stages", "export")

# --- environment variables --------------------------------------------------------------------
ENV_RUN_DIR: Final = "BRIDGEHEAD_RUN_DIR"
ENV_RUN_ID: Final = "BRIDGEHEAD_RUN_ID"
ENV_STAGE: Final = "BRIDGEHEAD_STAGE"
ENV_INPUTS: Final = "BRIDGEHEAD_INPUTS"  # JSON object: stage -> its finished run folder on this VM
ENV_VM_ID: Final = "BRIDGEHEAD_VM_ID"
ENV_HOME: Final = "BRIDGEHEAD_HOME"  # the VM's working folder
ENV_STORE: Final = "BRIDGEHEAD_STORE"  # the mounted durable store
ENV_PAIRING: Final = "BRIDGEHEAD_PAIRING"  # name of the notebook secret, never an argv
# Notebook secrets (or environment variables) for the store; they go into state/store_secrets.json, 0600.
SECRET_S3_KEY_ID: Final = "BRIDGEHEAD_S3_KEY_ID"
SECRET_S3_SECRET: Final = "BRIDGEHEAD_S3_SECRET"
SECRET_S3_TOKEN: Final = "BRIDGEHEAD_S3_TOKEN"
SECRET_DRIVE: Final = "BRIDGEHEAD_DRIVE_CREDENTIALS"  # the text of a credentials file, where no sign-in is offered
# For the command of [notify], beside the event as JSON on its stdin.
ENV_PROVIDER: Final = "BRIDGEHEAD_PROVIDER"  # of [money], for price_command
ENV_GPU: Final = "BRIDGEHEAD_GPU"
ENV_EVENT: Final = "BRIDGEHEAD_EVENT"  # finished, failed, lost, stalled, alarm or test
ENV_EVENT_TITLE: Final = "BRIDGEHEAD_TITLE"
ENV_EVENT_TEXT: Final = "BRIDGEHEAD_TEXT"
ENV_LOCAL_VM: Final = "BRIDGEHEAD_LOCAL_VM"  # tags every process of a local notebook VM

# --- HTTP ----------------------------------------------------------------------------------------
HEALTH_PATH: Final = "/healthz"
PROBE_PATH: Final = "/probe"  # the laptop asks itself this through the public address
SERVE_PREFIX: Final = "/serve/"
BOOT_ARCHIVE: Final = "boot.zip"
PAYLOAD_MANIFEST: Final = "manifest.json"
SERVE_CONTENT: Final = "content"  # /serve/content/<sha256>: a payload file by its hash
SERVE_BLOCKS: Final = "blocks"  # /serve/blocks/<sha256>: the hashes of its blocks
SERVE_PACK: Final = "pack"  # POST: many small files and blocks in one answer
IN_PREFIX: Final = "/in/"
QUEUE_TEXT_PATH: Final = "/queue.txt"
QUEUE_PATH: Final = "/queue"
VMS_PREFIX: Final = "/vms/"
HEADER_DIGEST: Final = "Content-Digest"
HEADER_REPR_DIGEST: Final = "Repr-Digest"
HEADER_OFFSET: Final = "Upload-Offset"
HEADER_COMPLETE: Final = "Upload-Complete"
HEADER_LENGTH: Final = "Upload-Length"
HEADER_LIMIT: Final = "Upload-Limit"
HEADER_GENERATION: Final = "Bridgehead-Generation"
HEADER_PART_SIZE: Final = "Bridgehead-Part-Size"  # opens an upload whose parts may come in any order
HEADER_MISSING: Final = "Bridgehead-Missing"  # answers: which of its parts are still to come, such as 0-3,7
PARTIAL_UPLOAD: Final = "application/partial-upload"
BATCH_TYPE: Final = "application/vnd.bridgehead.batch"  # many small files in one request

LAPTOP_RESERVE_BYTES: Final = 64 * 2**20  # what the bridge never takes of the laptop's disk
PUT_MAX_BYTES: Final = 64 * 2**20
PART_MAX_BYTES: Final = 32 * 2**20  # a free tunnel refuses bodies over 100 MB
BATCH_MAX_BYTES: Final = 16 * 2**20  # of all its files; held in memory at both ends
BATCH_MAX_FILES: Final = 4096
PARTS_MAX: Final = 32_768  # 1 TiB in parts of 32 MiB
DEFAULT_PORT: Final = 8766
LONG_POLL_S: Final = 25.0
FALLBACK_POLL_S: Final = 30.0


class RunState(StrEnum):
    """queued → starting → running ⇄ saving → done | failed | stopped | lost → resuming → running."""

    QUEUED = "queued"  # accepted by the ledger, or waiting on a VM for what it comes after
    STARTING = "starting"  # a VM journalled it and is starting the process
    RUNNING = "running"
    SAVING = "saving"  # a checkpoint is being written
    RESUMING = "resuming"  # a later attempt, until its first progress
    DONE = "done"  # exit code 0
    FAILED = "failed"  # see the exit record's failure class
    STOPPED = "stopped"  # somebody asked for it
    LOST = "lost"  # its VM went silent; the ledger offers it again


ENDED: Final = frozenset({RunState.DONE, RunState.FAILED, RunState.STOPPED})


class CheckpointLevel(StrEnum):
    """How far a checkpoint has climbed; never called saved before its time."""

    LOCAL = "local"  # on the VM's own disk, hashed
    MOUNTED = "mounted"  # copied into the mounted store and re-hashed there
    CONFIRMED = "confirmed"  # seen by another path: another VM's check, or the store's own API


class FailureClass(StrEnum):
    """Why a run ended. bridgehead/failures/classes.py says of each what to do; values of older records are read too."""

    DONE = "done"
    STOPPED = "stopped"  # somebody asked Bridgehead to stop it
    CANCELLED = "cancelled"  # interrupted or cancelled from elsewhere: Ctrl-C, scancel
    USER_ERROR = "user_error"  # the stage exited non-zero by itself
    GPU_OOM = "gpu_oom"
    HOST_OOM = "host_oom"  # the kernel's own counter, or the scheduler, says that memory ran out
    KILLED = "killed_unknown"  # a signal that nobody here sent
    SHM = "shm"  # /dev/shm was too small
    DISK_FULL = "disk_full"  # no room, or a quota
    MOUNT_LOST = "mount_lost"
    NCCL_TIMEOUT = "nccl_timeout"
    NCCL_PEER_LOST = "nccl_peer_lost"
    GPU_HARDWARE = "gpu_hardware"
    CUDA_ERROR = "cuda_error"
    NO_GPU = "no_gpu"
    NAN_LOSS = "nan_loss"  # the loss was no number any more
    CHECKPOINT_CORRUPT = "checkpoint_corrupt"  # its bytes do not check out
    CHECKPOINT = "checkpoint"  # the stage refuses it: none verifies, or what it was made with differs
    AUTH = "auth"
    ENVIRONMENT = "environment"  # could not be started at all, or a library, driver or command does not fit
    TRACKER = "tracker"  # W&B, MLflow and their like
    SSH_DROP = "ssh_drop"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time_limit"
    SEGFAULT = "segfault"
    SUBMIT_ERROR = "submit_error"  # a scheduler did not take the job, or did not say so
    VM_LOST = "vm_lost"  # its VMs were lost more often than the budget allows
    GATE = "gate"  # the gate's verdict was fail
    UPSTREAM = "upstream"  # what it comes after did not succeed
    UNKNOWN_OUTCOME = "unknown_outcome"  # an sh: whose VM or daemon died; never repeated by itself
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> FailureClass | None:
        return cls.KILLED if value == "killed" else None  # its value in records before the post-mortem


class StoreKind(StrEnum):
    """[store] kind of bridgehead.toml."""

    MOUNT = "mount"  # a mounted drive that uploads when it likes: Google Drive in Colab
    FOLDER = "folder"  # a folder on a disk that outlives the VM
    DRIVE = "drive"  # Google Drive through its API
    S3 = "s3"  # S3-compatible object storage


class Allow(StrEnum):
    """What may differ on a resume when the owner says so."""

    CODE = "code"
    CONFIG = "config"
    POOL = "pool"


class Ack(StrEnum):
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    STARTED = "started"
    FINISHED = "finished"
    UNKNOWN = "unknown"


# Exit codes by which a stage says why it failed; any other one above 0 is the user's own.
GATE_FAILED_EXIT_CODE: Final = 20  # the gate's verdict is "fail"
NAN_LOSS_EXIT_CODE: Final = 21
CHECKPOINT_EXIT_CODE: Final = 22  # it refuses the checkpoint it found
DISK_FULL_EXIT_CODE: Final = 23  # something failed, and the VM's disk was full at that moment
