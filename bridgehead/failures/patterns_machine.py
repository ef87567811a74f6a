"""What the machine says: memory, disks, mounts, processes, files."""

# ruff: noqa: E501 - a table: one row a line, so that it can be read down its columns

from __future__ import annotations

from typing import Final

from bridgehead.failures.pattern import Pattern, table
from bridgehead.names import FailureClass as F

_LOADER = "pytorch torch/utils/data and _utils/signal_handling.py"
_ERRNO = "errno texts of libc"
_KERNEL = "linux mm/oom_kill.c"
_SLURM = "Slurm slurmstepd and srun"
_K8S = "kubernetes kubelet and pod status"
_RAY = "ray core memory monitor"
_WRITER = "pytorch caffe2/serialize/inline_container.cc"
_SAFETENSORS = "huggingface/safetensors"
_DRIVE = "googlecolab/colabtools and DriveFS"
_GLIBC = "glibc malloc"
_ELASTIC = "pytorch torch/distributed/elastic"
_QUOTA = "a quota, not a full disk: quota -s or the drive's own page shows it; delete, or ask for more"
_WATCHES = "raise fs.inotify.max_user_watches"
_EIO = "an I/O error while writing: df says whether the disk is full; if it is not, the disk or mount is failing"
_CRASHED = "a worker died: the kernel's log says whether memory ran out"

MEMORY: Final = table((
    (F.HOST_OOM, 88, _SLURM, r"Detected \d+ oom[-_ ]kill event|oom[-_ ]kill event|have been OOM Killed|cgroup out-of-memory handler"),
    (F.HOST_OOM, 88, _SLURM, r"task \d[\d,-]*: Out Of Memory|\bOUT_OF_ME(?:MORY)?\b|exceeded (?:job |step |virtual )?memory limit|JOB EXCEEDED MEMORY"),
    (F.HOST_OOM, 88, "PBS, LSF, Grid Engine", r"TERM_MEMLIMIT|PBS: job killed: (?:mem|vmem|pmem)|exceeds? (?:the )?(?:job )?(?:hard )?limit \S*(?:h_vmem|mem)"),
    (F.HOST_OOM, 88, _KERNEL, r"Out of memory: Kill|Memory cgroup out of memory|oom-kill:|invoked oom-killer|oom_reaper|Killed process \d+.{0,80}total-vm"),
    (F.HOST_OOM, 88, "systemd-oomd and earlyoom", r"systemd-oomd.{0,60}kill|earlyoom.{0,60}(?:sending|SIG)|killed by the (?:kernel )?oom[- ]killer|\bOOM[- ]killer\b"),
    (F.HOST_OOM, 89, _RAY, r"ray\.exceptions\.OutOfMemoryError|OutOfMemoryError: Task was killed|killed due to memory pressure|node running low on memory|Ray killed (?:this|the) worker"),
    (F.HOST_OOM, 88, _K8S, r"\bOOM ?Killed\b|low on resource: memory|MemoryPressure\b.{0,40}(?:evict|True)"),
    (F.HOST_OOM, 88, _LOADER, r"DataLoader worker .{0,40}killed by signal: Killed"),
    (F.HOST_OOM, 88, "Colab and Kaggle", r"(?:after )?using (?:up )?all (?:the )?available RAM|tried to allocate more memory than is available|ran out of RAM"),
    (F.HOST_OOM, 87, "pytorch c10/core/CPUAllocator", r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|could not allocate memory: you tried to allocate"),
    (F.HOST_OOM, 86, "CPython and numpy", r"\b_?(?:Array)?MemoryError\b|Unable to allocate [\d.]+ ?[KMGTP]i?B for an array"),
    (F.HOST_OOM, 86, _ERRNO, r"\[?Errno 12\]?|Cannot allocate memory|ENOMEM\b|not enough (?:system |host |main |physical )?(?:RAM|memory) (?:to|available|resources)"),
    (F.HOST_OOM, 86, "C++, Java, Node, Go", r"std::bad_alloc|java\.lang\.OutOfMemoryError|heap out of memory|fatal error: runtime: out of memory|Insufficient memory for the Java"),
    (F.HOST_OOM, 84, "common checks", r"\b(?:system|host|CPU|main|node|machine|container)(?: is| has)? (?:ran |run |running )?out of (?:memory|RAM)\b|\b(?:host|system|CPU)[- ]OOM\b|RAM (?:was |is )?exhausted"),
    (F.HOST_OOM, 83, "dask distributed nanny", r"exceeded \d+% memory budget|Worker .{0,60}(?:out of memory|memory budget)"),
    (F.HOST_OOM, 66, "many programs", r"\bout[- ]of[- ]memory\b|\bOOM\b.{0,20}(?:kill|error|crash)|ran out of memory"),
))  # fmt: skip

SHARED_MEMORY: Final = table((
    (F.SHM, 91, _LOADER, r"killed by signal: Bus error|insufficient shared memory|out of shared memory|unexpected bus error"),
    (F.SHM, 92, _ERRNO, r"(?:/dev/shm|/torch_\d|shm_open|shared memory|shmget|shmat).{0,160}(?:no space|not enough|too small|is full|Success \(0\)|exhausted|insufficient)"),
    (F.SHM, 92, _ERRNO, r"no space left on device.{0,80}(?:/dev/shm|/torch_\d|shared memory|psm_|sem\.)"),
    (F.SHM, 90, "pytorch ATen/MapAllocator.cpp", r"unable to (?:open|write|resize|mmap|allocate|create).{0,30}(?:shared memory|</torch_\d)"),
    (F.SHM, 86, "pytorch torch/multiprocessing", r"received 0 items of ancdata|torch_shm_manager.{0,60}(?:error|fail|could not)", "raise ulimit -n, or the file_system sharing strategy"),
    (F.SHM, 85, "CPython multiprocessing.shared_memory, Plasma", r"(?:shared[ _]memory|/dev/shm|object store).{0,60}(?:error|fail|cannot|could not|unable|ran out)"),
    (F.SHM, 62, "linux signal(7)", r"task \d[\d,-]*: Bus error|\bBus error\b|SIGBUS\b|Signal 7\b|exitcode\s*:?=?\s*-7\b|Fatal Python error: Bus"),
    (F.SHM, 46, _RAY, r"/dev/shm has only \d+ bytes available"),
))  # fmt: skip

DISK: Final = table((
    (F.ENVIRONMENT, 92, "linux inotify", r"inotify.{0,80}(?:no space|limit|watches)|limit of inotify", _WATCHES),
    (F.DISK_FULL, 90, _ERRNO, r"No space left on (?:the )?device|\bENOSPC\b|\[?Errno 28\]?|os error 28|StorageFull|WinError 112|not enough space on the disk"),
    (F.DISK_FULL, 90, _ERRNO, r"Disk quota exceeded|\bEDQUOT\b|\[?Errno 122\]?|os error 122|QuotaExceeded\b.{0,60}(?:disk|storage)|file size limit exceeded", _QUOTA),
    (F.DISK_FULL, 90, _DRIVE, r"storage ?quota ?(?:has been |was |is )?(?:exceeded|full|reached)|storageQuotaExceeded|Drive storage (?:is )?full|out of storage", _QUOTA),
    (F.DISK_FULL, 89, _WRITER, r"PytorchStreamWriter failed|file write failed|inline_container\.cc:\d+\] \. (?:unexpected pos|write)|unexpected pos \d+ vs \d+"),
    (F.DISK_FULL, 86, "pytorch torch/csrc/serialization.cpp", r"write\(\): fd \d+ failed|fwrite\S* (?:failed|error)|short write\b", _EIO),
    (F.DISK_FULL, 90, _K8S, r"low on resource: (?:ephemeral-storage|imagefs|nodefs)|ephemeral[- ](?:local )?storage.{0,60}exceed|DiskPressure|exceeds? (?:the )?(?:total )?limit of (?:local )?ephemeral"),
    (F.DISK_FULL, 89, "sqlite, HDF5, tar, zip, ray", r"database or disk is full|OutOfDiskError|errno = 28|(?:local )?disk is (?:\d+% )?full|disk (?:is |was )?(?:almost )?full\b|file ?system (?:is |was )?full"),
    (F.DISK_FULL, 88, "many programs", r"(?:not enough|insufficient|out of|no|low|ran out of|no more|lack of|free) (?:free |available |local )?(?:disk|storage)[- ]?(?:space|storage|capacity)?(?:\b.{0,40}(?:left|available|free|remain|error|abort|full)|\b *[.:!]|$)"),
    (F.DISK_FULL, 88, "CPython tempfile, http", r"No usable temporary directory|507 Insufficient Storage|InsufficientStorage|XMinioStorageFull"),
    (F.DISK_FULL, 88, _ERRNO, r"\[?Errno 27\]?|File too large|no free inodes|out of inodes"),
))  # fmt: skip

MOUNTS: Final = table((
    (F.MOUNT_LOST, 92, _ERRNO, r"Transport endpoint is not connected|\[?Errno 10[78]\]|os error 107|transport endpoint shutdown|ENOTCONN\b"),
    (F.MOUNT_LOST, 92, _ERRNO, r"Stale (?:NFS )?file handle|\[?Errno 116\]|\bESTALE\b|os error 116"),
    (F.MOUNT_LOST, 91, _ERRNO, r"\[?Errno 5\] .{0,60}/(?:content/drive|gdrive|mnt|drive|media|nfs|data|gcs|s3|workspace)|/(?:content/drive|gdrive|gcs|mnt)/?.{0,200}Input/output error"),
    (F.MOUNT_LOST, 91, _ERRNO, r"\[?Errno (?:112|121)\].{0,40}(?:Host is down|Remote I/O)|Remote I/O error|\bHost is down\b|EHOSTDOWN|EREMOTEIO"),
    (F.MOUNT_LOST, 91, "linux nfs, cifs, lustre, fuse", r"nfs: server \S+ not responding|NFS.{0,40}timed out|CIFS.{0,60}(?:has not responded|reconnect)|LustreError|evicted by \S*(?:OST|MDT)|\bfuse\S*:.{0,80}(?:disconnect|abort|no longer|terminated)"),
    (F.MOUNT_LOST, 91, _DRIVE, r"mount failed|timed out during drive mount|Mountpoint must not|drive\.mount.{0,80}(?:error|fail)|DriveFS.{0,60}(?:crash|exit|fail|died|not)"),
    (F.MOUNT_LOST, 91, "many programs", r"\b(?:un-?mounted|mount(?: ?point)?s?)\b.{0,80}\b(?:lost|disappeared|gone|went away|not mounted|disconnected|unavailable|not responding|dropped|died|dead|stale|vanished)\b"),
    (F.MOUNT_LOST, 91, "many programs", r"(?:lost|losing|no longer) (?:the |its |a )?(?:connection to )?(?:\S+ )?(?:mount\b|mounted|file ?system|Google Drive|network (?:drive|share|volume))"),
    (F.MOUNT_LOST, 90, _K8S, r"MountVolume\.\S+ failed|FailedMount\b|Unable to attach or mount volumes|FailedAttachVolume"),
    (F.MOUNT_LOST, 90, "gcsfuse, s3fs, goofys, rclone, sshfs", r"(?:gcsfuse|s3fs|goofys|rclone|sshfs|mountpoint-s3|blobfuse|juicefs|geesefs)\b.{0,120}(?:error|fail|crash|exit|not mounted|timeout|died|refused|killed)"),
    (F.MOUNT_LOST, 88, _ERRNO, r"\[?Errno 103\].{0,40}|(?<!Network error: )Software caused connection abort"),
    (F.MOUNT_LOST, 78, _ERRNO, r"\[?Errno 5\] Input/output error|(?:OSError|IOError|cp|ls|stat|rsync|tar|cannot \w+).{0,200}: Input/output error|\bEIO\b"),
    (F.MOUNT_LOST, 78, _ERRNO, r"\[?Errno 30\]|Read-only file system|Structure needs cleaning|superblock.{0,40}(?:bad|corrupt|invalid)"),
))  # fmt: skip

FILES: Final = table((
    (F.CHECKPOINT_CORRUPT, 84, "pytorch caffe2/serialize/inline_container.cc", r"PytorchStreamReader failed|failed finding central directory|failed reading zip archive|invalid header or archive is corrupted"),
    (F.CHECKPOINT_CORRUPT, 84, "pytorch torch/serialization.py", r"unexpected EOF, expected \d+ more bytes|(?:file|checkpoint|archive|weights?|model|data) (?:\S+ )?(?:might|may|is|are|was|were|seems?|appears?|looks)(?: to)?(?: be)? (?:\w+ly )?(?:corrupt|truncat|damag|incomplete)"),
    (F.CHECKPOINT_CORRUPT, 84, "pytorch torch/serialization.py", r"Invalid magic number|corrupt(?:ed)? file|storage has wrong (?:byte )?size|unpickling stack underflow"),
    (F.CHECKPOINT_CORRUPT, 84, "CPython pickle", r"UnpicklingError|pickle data was truncated|invalid load key|Ran out of input|bad pickle data|could not find MARK"),
    (F.CHECKPOINT_CORRUPT, 84, _SAFETENSORS, r"HeaderTooLarge|HeaderTooSmall|InvalidHeader\w*|MetadataIncompleteBuffer|InvalidOffset|Error while deserializing"),
    (F.CHECKPOINT_CORRUPT, 84, "CPython zipfile, tarfile, gzip, zlib", r"BadZipFile|File is not a zip file|Bad CRC-32|CRC check failed|tarfile\.ReadError|Compressed file ended before|Not a gzipped file|incorrect (?:header|data) check|Truncated ZIP"),
    (F.CHECKPOINT_CORRUPT, 84, "HDF5", r"truncated file: eof|file signature not found|bad object header|unable to (?:synchronously )?open file .{0,40}(?:truncated|signature|bad)"),
    (F.CHECKPOINT_CORRUPT, 84, "tensorflow", r"DataLossError|Data loss: |corrupted record at|Checksum does not match|Unable to open table file"),
    (F.CHECKPOINT_CORRUPT, 84, "many programs", r"(?:checkpoint|ckpt|snapshot|state[ _]?dict|weights?|safetensors|model file|shard)\b.{0,80}\b(?:corrupt(?:ed|ion)?|damaged|truncated|incomplete|unreadable|invalid header|half-written|zero bytes|empty file)\b"),
    (F.CHECKPOINT_CORRUPT, 83, "many programs", r"\b(?:corrupt(?:ed)?|damaged|truncated|incomplete|broken) (?:or \w+ )?(?:checkpoint|ckpt|snapshot|weights?|model file|safetensors|pickle|archive|shard)\b"),
    (F.CHECKPOINT_CORRUPT, 82, "many programs", r"(?:checksum|sha-?256|sha1|md5|hash|digest|crc)\w*\b.{0,40}(?:mismatch|do(?:es)?(?: not|n't) match|differ|invalid|wrong)"),
    (F.CHECKPOINT_CORRUPT, 80, "huggingface/transformers modeling_utils.py", r"Unable to load weights from (?:pytorch )?checkpoint|unable to read (?:the )?checkpoint|(?:file|load\w*) \S+\.(?:pt|pth|bin|ckpt|safetensors)\b.{0,60}(?:EOF|truncat|corrupt)"),
    (F.USER_ERROR, 60, "pytorch nn/modules/module.py", r"Error\(s\) in loading state_dict|size mismatch for \S+: copying|doesn't match the size of optimizer's group", "the checkpoint is of another model: give it the config it was made with"),
))  # fmt: skip

PROCESSES: Final = table((
    (F.SEGFAULT, 58, "linux signal(7)", r"segmentation fault|\bSIG?SEGV\b|SEGSEGV|\bsegfault(?:ed)?\b|signal 11\b|signal: 11\b"),
    (F.SEGFAULT, 58, _ELASTIC, r"exit ?code\s*[:=]?\s*(?:-11|139)\b|exit(?:ed)? (?:with )?(?:code|status)?:? ?(?:-11|139)\b|returned non-zero exit status (?:-11|139)\b"),
    (F.SEGFAULT, 58, "Windows status codes", r"0xC0000005|3221225477|-1073741819|access violation"),
    (F.SEGFAULT, 57, _GLIBC, r"double free or corruption|(?:free|malloc|realloc)\(\): (?:invalid|corrupt|memory|unaligned|unsorted|mismatch)|munmap_chunk\(\)|corrupted (?:size vs|double-linked)|stack smashing detected|malloc_consolidate"),
    (F.ENVIRONMENT, 60, "linux signal(7)", r"illegal instruction(?! was)|\bSIGILL\b|signal 4\b", "a binary built for another CPU: install the build for this one"),
    (F.KILLED, 42, _LOADER, r"DataLoader worker .{0,60}(?:exited unexpectedly|killed by signal)", _CRASHED),
    (F.KILLED, 42, "CPython concurrent.futures, joblib", r"BrokenProcessPool|process pool was terminated abruptly|TerminatedWorkerError|worker process managed by the executor was unexpectedly", _CRASHED),
    (F.KILLED, 41, "ray", r"RayActorError|WorkerCrashedError|(?:actor|worker) died (?:unexpectedly|before|because)|worker.{0,40}(?:crashed|died) unexpectedly|ActorDiedError", _CRASHED),
    (F.KILLED, 41, "Jupyter and Colab", r"kernel (?:appears to have |has )?died|session crashed for an unknown reason|kernel.{0,20}restarting", _CRASHED),
    (F.KILLED, 40, _ELASTIC, r"(?<!via )\bSIGKILL\b|signal 9\b|signal: 9\b|signal: killed|exit ?code\s*[:=]?\s*(?:-9|137|247)\b|exit(?:ed)? (?:with )?(?:code|status)?:? ?(?:-9|137|247)\b|exit status (?:-9|137|247)\b"),
    (F.KILLED, 40, "bash and srun", r"(?:^|[\s:])Killed(?:\s*$|\s{2,}\S|\s+\(core dumped\)|\s+(?:python|torchrun|bash|accelerate|\./))|task \d[\d,-]*: Killed"),
    (F.KILLED, 36, _ELASTIC, r"Received (?:15|Signals\.SIGTERM)|closing signal (?:15|SIGTERM)|got signal: 15|signal 15\b|(?:received|got|caught|sen[dt]\w*|closing|signal|by|with|due to)\W{1,4}(?:signal\W{1,3})?SIGTERM\b|SIGTERM\W{0,2} received|Signals\.SIGTERM|exit ?code\s*[:=]?\s*(?:-15|143)\b|exit(?:ed)? (?:with )?(?:code|status)?:? ?(?:-15|143)\b|task \d[\d,-]*: Terminated|(?:^|[\s:])Terminated(?:\s*$|\s{2,})"),
    (F.SEGFAULT, 35, _ELASTIC, r"\bSIGABRT\b|signal 6\b|exit ?code\s*[:=]?\s*(?:-6|134)\b|Aborted(?: \(core dumped\))?\s*$|terminate called after throwing", "it aborted itself: the cause is in the lines before, or in another rank's log"),
    (F.UNKNOWN, 30, _ELASTIC, r"ChildFailedError|error_file: <N/A>|exit ?code\s*[:=]\s*[1-9]\d*\b|returned non-zero exit status [1-9]|Exited with exit code [1-9]|exited with (?:code|status) [1-9]", "only says that a process failed: read that process's own log, or wrap main with torch's @record"),
    (F.UNKNOWN, 29, "Open MPI", r"MPI_ABORT was invoked|mpirun noticed that process", "one rank gave up: its own log says why"),
))  # fmt: skip

PATTERNS: Final[tuple[Pattern, ...]] = (*MEMORY, *SHARED_MEMORY, *DISK, *MOUNTS, *FILES, *PROCESSES)
