"""One line of each kind, and the rules that decide between several. The lines are ours."""

from __future__ import annotations

import pytest

from bridgehead.failures import log_lines
from bridgehead.failures.classes import FACTS
from bridgehead.failures.classify import Known, Verdict, classify
from bridgehead.failures.findings import Index
from bridgehead.failures.literals import needed
from bridgehead.failures.table import PATTERNS
from bridgehead.names import FailureClass as F

STEPS = "".join(f"step {number} loss 0.5\n" for number in range(5))
TRACE = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\n'


def verdict(text: str, **known: object) -> Verdict:
    return classify(log_lines.from_bytes(text.encode()), Known(**known))  # type: ignore[arg-type]


LINES = [
    (
        F.GPU_OOM,
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of",
    ),
    (F.GPU_OOM, "F0718 15:20:34 syncedmem.cpp:56] Check failed: error == cudaSuccess (2 vs. 0)  out of memory"),
    (F.GPU_OOM, "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 123456 bytes."),
    (F.GPU_OOM, "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    (F.GPU_OOM, "RuntimeError: MPS backend out of memory (MPS allocated: 17.8 GB)"),
    (F.HOST_OOM, "[123.4] Out of memory: Killed process 991 (python) total-vm:99kB, anon-rss:9kB"),
    (F.HOST_OOM, "slurmstepd: error: Job 7 exceeded memory limit (4200 > 4096), being killed"),
    (F.HOST_OOM, "    Reason:       OOMKilled"),
    (
        F.HOST_OOM,
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 9.31 GiB for an array with shape (5, 5)",
    ),
    (F.HOST_OOM, "RuntimeError: [enforce fail at alloc_cpu.cpp:75] . DefaultCPUAllocator: can't allocate memory"),
    (F.KILLED, "subprocess.CalledProcessError: Command '['python', 'x.py']' died with <Signals.SIGKILL: 9>."),
    (F.KILLED, "./train.sh: line 9: 4242 Killed                  python train.py"),
    (F.KILLED, "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly"),
    (F.SHM, "RuntimeError: unable to write to file </torch_11_22_0>: No space left on device (28)"),
    (F.SHM, "OSError: [Errno 28] No space left on device: '/dev/shm/psm_1a2b'"),
    (F.SHM, "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-abc (size 9637888)"),
    (F.DISK_FULL, "OSError: [Errno 28] No space left on device: '/content/out/last.pt'"),
    (F.DISK_FULL, "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 64 vs 0"),
    (F.DISK_FULL, "The node was low on resource: ephemeral-storage. Threshold quantity: 2146223340"),
    (F.DISK_FULL, "googleapiclient.errors.HttpError: <HttpError 403 ... reason: storageQuotaExceeded>"),
    (F.MOUNT_LOST, "OSError: [Errno 116] Stale file handle: '/mnt/data/shard-3.tar'"),
    (F.MOUNT_LOST, "OSError: [Errno 5] Input/output error: '/content/drive/MyDrive/x.npy'"),
    (F.MOUNT_LOST, "kernel: nfs: server fs01 not responding, still trying"),
    (F.NCCL_TIMEOUT, "[Rank 0] ProcessGroupNCCL's watchdog got stuck for 600 seconds without making progress"),
    (F.NCCL_TIMEOUT, "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv"),
    (F.NCCL_TIMEOUT, "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError"),
    (F.NCCL_PEER_LOST, "RuntimeError: [gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.4]:2911"),
    (F.NCCL_PEER_LOST, "torch.distributed.DistBackendError: NCCL error: unhandled system error, NCCL version 2.20.5"),
    (F.NCCL_PEER_LOST, "NCCL WARN NET/IB : Got completion from peer 10.0.0.2 with error 12, opcode 0, len 0"),
    (F.GPU_HARDWARE, "RuntimeError: cuda runtime error (39) : uncorrectable ECC error encountered at file.cpp:265"),
    (F.GPU_HARDWARE, "kernel: NVRM: Xid (PCI:0000:3b:00): 94, pid=1234, Contained: SM"),
    (F.GPU_HARDWARE, "Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost."),
    (F.CUDA_ERROR, "CUDA error: an illegal memory access was encountered"),
    (F.CUDA_ERROR, "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`"),
    (F.CUDA_ERROR, "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"),
    (F.CUDA_ERROR, "kernel: NVRM: Xid (PCI:0000:3b:00): 31, pid=77, name=python, Ch 00000008, MMU Fault"),
    (F.NO_GPU, "RuntimeError: No CUDA GPUs are available"),
    (F.NO_GPU, "RuntimeError: CUDA error: no CUDA-capable device is detected"),
    (F.NO_GPU, "You cannot currently connect to a GPU due to usage limits in Colab."),
    (F.NO_GPU, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
    (F.NAN_LOSS, "Loss is nan, stopping training"),
    (F.NAN_LOSS, "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output."),
    (F.NAN_LOSS, "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding."),
    (F.NAN_LOSS, "epoch 3: train_loss=nan lr=1e-3"),
    (F.NAN_LOSS, "ValueError: Non-finite gradient norm detected at step 12"),
    (F.CHECKPOINT_CORRUPT, "_pickle.UnpicklingError: pickle data was truncated"),
    (
        F.CHECKPOINT_CORRUPT,
        "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
    ),
    (F.CHECKPOINT_CORRUPT, "EOFError: Ran out of input"),
    (F.AUTH, "requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: https://huggingface.co/api/x"),
    (F.AUTH, "botocore.exceptions.NoCredentialsError: Unable to locate credentials"),
    (F.AUTH, "wandb.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])"),
    (F.AUTH, "git@host: Permission denied (publickey)."),
    (F.ENVIRONMENT, "ModuleNotFoundError: No module named 'flash_attn'"),
    (F.ENVIRONMENT, "CUDA driver version is insufficient for CUDA runtime version"),
    (F.ENVIRONMENT, "RuntimeError: CUDA error: no kernel image is available for execution on the device"),
    (F.ENVIRONMENT, "ImportError: /lib/libc.so.6: version `GLIBC_2.32' not found (required by x.so)"),
    (F.ENVIRONMENT, "bash: torchrun: command not found"),
    (F.TRACKER, "wandb.errors.CommError: Run initialization has timed out after 90.0 sec."),
    (F.TRACKER, "mlflow.exceptions.MlflowException: API request to http://10.0.0.1:5000/api failed with exception"),
    (F.SSH_DROP, "client_loop: send disconnect: Broken pipe"),
    (F.SSH_DROP, "Connection to gpu-7.example.com closed by remote host."),
    (F.SSH_DROP, "ssh: connect to host 10.1.2.3 port 22: Connection timed out"),
    (F.PREEMPTED, "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2024-05-05T05:05:05 DUE TO PREEMPTION ***"),
    (F.PREEMPTED, "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2024-05-05T05:05:05 DUE TO JOB REQUEUE ***"),
    (F.PREEMPTED, "The spot instance was reclaimed by the provider, shutting down in 120 s"),
    (F.TIME_LIMIT, "=>> PBS: job killed: walltime 3612 exceeded limit 3600"),
    (F.TIME_LIMIT, "Job was active longer than specified deadline (DeadlineExceeded)"),
    (F.CANCELLED, "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2024-05-05T05:05:05 ***\nKeyboardInterrupt"),
    (F.USER_ERROR, TRACE + "ValueError: mat1 and mat2 shapes cannot be multiplied"),
    (F.USER_ERROR, "train.py: error: unrecognized arguments: --lrr 3"),
    (F.SEGFAULT, "Fatal Python error: Segmentation fault"),
    (F.SEGFAULT, "run.sh: line 3: 77 Segmentation fault      (core dumped) python train.py"),
    (F.SEGFAULT, "double free or corruption (!prev)"),
    (F.SUBMIT_ERROR, "sbatch: error: Batch job submission failed: Invalid account or account/partition combination"),
    (F.SUBMIT_ERROR, "srun: error: Unable to allocate resources: Requested node configuration is not available"),
    (F.UNKNOWN, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n  exitcode  : 1 (pid: 9)\n"),
]


@pytest.mark.parametrize(
    ("wanted", "line"), LINES, ids=[f"{wanted}-{number}" for number, (wanted, _) in enumerate(LINES)]
)
def test_each_kind_of_line_has_its_class(wanted: F, line: str) -> None:
    assert verdict(line).failure == wanted


INNOCENT = [
    "docker run -e MY_NCCL_TIMEOUT_IN_S=3600 image",
    "Downloading nvidia-nccl-cu12 (283.0MiB)",
    "'eval/compile_error': '0.11',",
    "nccl_timeout: 1800",
    "FutureWarning: this option turns the CUDA out of memory message off",
    "to avoid CUDA out of memory, lower the batch size",
    "stopping: Killed `ray::IDLE` (via SIGKILL)",
    "test_oom.py::test_out_of_memory PASSED",
]


@pytest.mark.parametrize("line", INNOCENT)
def test_what_only_sounds_like_a_failure_is_none(line: str) -> None:
    assert verdict(f"{line}\n{STEPS}").failure == F.UNKNOWN


def test_the_first_cause_beats_the_last_line() -> None:
    found = verdict(
        "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.\n*** STEP 1.0 ON n CANCELLED AT 2024 ***\n"
    )
    assert found.failure == F.HOST_OOM and found.evidence[0].decides


def test_an_assert_on_the_gpu_is_no_nccl_failure() -> None:
    assert (
        verdict("CUDA error: device-side assert triggered\nNCCL error: unhandled cuda error\n").failure == F.CUDA_ERROR
    )


def test_the_exception_that_came_before_the_lost_peers_is_the_cause() -> None:
    text = f"{TRACE}KeyError: 'label'\n[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)\n"
    assert verdict(text).failure == F.USER_ERROR


def test_an_error_that_was_survived_is_a_hint_and_no_cause() -> None:
    found = verdict(f"CUDA out of memory, trying again with half the batch\n{STEPS}")
    assert found.failure == F.UNKNOWN and "gpu_oom" in found.hint


def test_a_bare_sigkill_is_not_called_a_lack_of_memory() -> None:
    assert {verdict("", exit_code=code).failure for code in (-9, 137, 247)} == {F.KILLED}
    assert verdict("", exit_code=-9, oom_killed=True).failure == F.HOST_OOM


@pytest.mark.parametrize(
    ("code", "wanted"),
    [(139, F.SEGFAULT), (-7, F.SHM), (129, F.SSH_DROP), (130, F.CANCELLED), (124, F.TIME_LIMIT), (127, F.ENVIRONMENT),
     (2, F.UNKNOWN), (1, F.UNKNOWN), (3221225477, F.SEGFAULT), (-1073741819, F.SEGFAULT)],
)  # fmt: skip
def test_exit_codes_alone(code: int, wanted: F) -> None:
    assert verdict("", exit_code=code).failure == wanted


@pytest.mark.parametrize("code", [130, 132, 133, 134, 135, 136, 139, 152, 153, 159])
def test_a_signal_that_names_its_sender_says_the_same_with_and_without_a_runners_record(code: int) -> None:
    alone, recorded = verdict("", exit_code=code), verdict("", exit_code=code, recorded=F.KILLED)
    assert alone.failure == recorded.failure and alone.failure not in (F.KILLED, F.UNKNOWN)
    assert alone.next_step == recorded.next_step


def test_an_abort_leaves_the_word_to_what_the_log_says() -> None:
    assert verdict("", exit_code=134).failure == F.SEGFAULT
    text = "RuntimeError: CUDA out of memory. Tried to allocate 1 MiB\nAborted (core dumped)\n"
    assert verdict(text, exit_code=134, recorded=F.KILLED).failure == F.GPU_OOM
    assert verdict("KeyError: label\nAborted\n", exit_code=134, recorded=F.KILLED).failure == F.USER_ERROR


def test_metrics_that_were_no_number_are_evidence_as_strong_as_what_they_are() -> None:
    for metric, wanted in (("loss", F.NAN_LOSS), ("train/val_loss", F.NAN_LOSS), ("accuracy", F.USER_ERROR)):
        found = verdict("", exit_code=2, recorded=F.USER_ERROR, not_finite=(metric,))
        assert found.failure == wanted and metric in "".join(item.text for item in found.evidence)
    assert verdict("", exit_code=137, recorded=F.KILLED, not_finite=("loss",)).failure == F.KILLED
    oom = "RuntimeError: CUDA out of memory. Tried to allocate 1 MiB\n"
    assert verdict(oom, exit_code=1, not_finite=("loss",)).failure == F.GPU_OOM


@pytest.mark.parametrize(
    "line", ["epoch 2 loss nan", "loss nan", "train_loss nan acc 0.3", "INFO loss inf, lr 0.1", "step 9 loss -> -inf"]
)
def test_a_loss_that_is_no_number_is_seen_without_a_sign_between(line: str) -> None:
    assert verdict(line).failure == F.NAN_LOSS


@pytest.mark.parametrize(
    "line", ["checks loss nan before each step", "skip loss nan batches 3", "12 the loss nan guard"]
)
def test_words_about_such_a_loss_are_none(line: str) -> None:
    assert verdict(line).failure == F.UNKNOWN


def test_an_end_by_a_cap_has_the_cap_as_evidence() -> None:
    why = "stopped; its cap of 1h00m of running is reached; its checkpoint is safe"
    found = verdict("KeyError: x", exit_code=143, recorded=F.TIME_LIMIT, recorded_why=why)
    assert found.failure == F.TIME_LIMIT and found.evidence[0].decides and why in found.evidence[0].text


def test_success_beats_every_line_of_the_log() -> None:
    noise = "[rank4] ProcessGroupNCCL's watchdog got stuck for 480 seconds\n"
    assert verdict(noise, exit_code=0).failure == F.DONE
    assert verdict("Training completed.\n" + noise).failure == F.DONE
    assert verdict("Training completed.\n" + noise, exit_code=1).failure == F.NCCL_TIMEOUT


def test_the_provider_and_the_record_beat_the_log() -> None:
    assert verdict("CUDA out of memory", provider_state="PREEMPTED").failure == F.PREEMPTED
    assert verdict("CUDA out of memory", provider_state="FAILED").failure == F.GPU_OOM
    assert verdict("CUDA out of memory", recorded=F.STOPPED).failure == F.STOPPED
    assert verdict("RuntimeError: CUDA out of memory", recorded=F.USER_ERROR, exit_code=1).failure == F.GPU_OOM
    assert verdict("bye", recorded=F.USER_ERROR, exit_code=1).failure == F.USER_ERROR


def test_fragmentation_and_diverged_ranks_are_named() -> None:
    oom = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 9 GiB."
    )
    assert "expandable" in verdict(oom + " 900.00 MiB is reserved by PyTorch but unallocated.").next_step
    lines = [
        f"Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType={kind}, T)" for kind in ("A", "B")
    ]
    assert verdict("\n".join(lines)).detail.startswith("diverged ranks")


def test_every_class_has_facts_and_only_what_may_help_is_tried_again() -> None:
    assert set(FACTS) == set(F)
    never = (F.GPU_OOM, F.HOST_OOM, F.NAN_LOSS, F.DISK_FULL, F.AUTH, F.SHM, F.CUDA_ERROR, F.USER_ERROR, F.TIME_LIMIT)
    assert not any(FACTS[failure].retries for failure in never)


def test_every_pattern_has_a_source_and_the_shortcut_never_hides_a_match() -> None:
    index = Index(PATTERNS)
    for pattern in PATTERNS:
        assert pattern.source and 0 < pattern.rank <= 100
    for _, line in LINES:
        slow = {pattern.regex for pattern in PATTERNS if pattern.compiled.search(line)}
        assert {pattern.regex for pattern in index.hits(line)} == slow
    assert needed("(?:abc|xyz)+k?") == ("abc", "xyz")


def test_an_error_after_which_the_program_says_that_it_goes_on_is_no_cause() -> None:
    assert (
        verdict("DEBUG CUDA out of memory. Tried to allocate 1 MiB\nWARNING: skipping this batch\n").failure
        == F.UNKNOWN
    )
    assert verdict("retrying\nRuntimeError: CUDA out of memory. Tried to allocate 1 MiB\n").failure == F.GPU_OOM


def test_source_lines_of_a_boxed_traceback_are_no_evidence() -> None:
    text = "│ ❱  298 │   raise OSError('No space left on device')      │\nValueError: something else\n"
    assert verdict(text).failure == F.USER_ERROR


SOURCE = 'raise OSError(28, "No space left on device: CUDA out of memory Errno 28") if free < 1 else KeyError("label")'
TRACEBACKS = {
    "plain": f'Traceback (most recent call last):\n  File "x.py", line 3, in <module>\n    {SOURCE}\nKeyError: label\n',
    "several lines": f'  File "x.py", line 3, in f\n    f(\n    ^^\n        {SOURCE}\n    )\nKeyError: label\n',
    "a rank": f'[rank0]:   File "x.py", line 3, in f\n[rank0]:     {SOURCE}\n[rank0]: KeyError: label\n',
    "a time": f'09:15:59 |   File "x.py", line 3, in f\n09:16:00 |     {SOURCE}\n09:16:00 | KeyError: label\n',
    "a group": f'  |   File "x.py", line 3, in f\n  |     {SOURCE}\n  | KeyError: label\n',
    "indented": f'  traceback :\n    File "x.py", line 3, in f\n      {SOURCE}\n  KeyError: label\n',
    "IPython": f"Cell In[2], line 3\n      2 # torch.OutOfMemoryError: here\n----> 3 {SOURCE}\n\nKeyError: label\n",
}


@pytest.mark.parametrize("text", TRACEBACKS.values(), ids=TRACEBACKS)
def test_source_lines_of_a_traceback_are_no_evidence(text: str) -> None:
    found = verdict(text)
    assert found.failure == F.USER_ERROR and not [item for item in found.evidence if item.failure == F.GPU_OOM]


def test_the_exception_right_below_a_frame_without_source_is_evidence() -> None:
    for frame, line in (('  File "<string>", line 1, in f', ""), ('[rank0]:   File "<string>", line 1', "[rank0]: ")):
        assert verdict(f"{frame}\n{line}OSError: [Errno 28] No space left on device\n").failure == F.DISK_FULL
