"""What GPUs, CUDA, NCCL and the numbers on them say when they fail."""

# ruff: noqa: E501 - a table: one row a line, so that it can be read down its columns

from __future__ import annotations

from typing import Final

from bridgehead.failures.pattern import Pattern, table
from bridgehead.names import FailureClass as F

_ALLOCATOR = "pytorch c10/cuda/CUDACachingAllocator.cpp"
_CUDA = "pytorch c10/cuda/CUDAException.cpp and cudaGetErrorString"
_NCCL = "pytorch torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp"
_NCCL_CORE = "NVIDIA/nccl src/include/checks.h and src/transport"
_STORE = "pytorch torch/csrc/distributed/c10d/TCPStore.cpp"
_GLOO = "pytorch/gloo gloo/transport/tcp/pair.cc"
_XID = "NVIDIA Xid catalogue"
_DRIVER = "NVIDIA driver and nvidia-smi"
_XLA = "openxla/xla"
_LIBRARIES = "NVIDIA cuBLAS, cuDNN, cuFFT, cuSOLVER status names"
_HF = "huggingface/transformers and accelerate"
_FRAGMENTED = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_PROGRAM_XID = "usually the program's own fault: run it with CUDA_LAUNCH_BLOCKING=1 or under compute-sanitizer"
_INDEX = "a label or an index is out of range: check the data against the number of classes; the same input fails again"
_BIGGER = "the GPUs that it asks for are not in this machine"

HARDWARE: Final = table((
    (F.GPU_HARDWARE, 95, _CUDA, r"uncorrectable (?:ECC|DBE|NVLink) ?(?:errors?)?\b(?! *(?:: *|= *)0)"),
    (F.GPU_HARDWARE, 95, _CUDA, r"CUDA_?ERROR_?ECC_?UNCORRECTABLE|cudaErrorECCUncorrectable|hardware stack error"),
    (F.GPU_HARDWARE, 95, _XID, r"fallen off the bus"),
    (F.GPU_HARDWARE, 95, _XID, r"\bXid\b[^,]{0,60}[ :,]+(?:46|48|6[1234]|7[49]|8[178]|9[2459]|1[12]\d|13[67]|14\d|15[0-9])\b"),
    (F.GPU_HARDWARE, 95, _XID, r"double[- ]bit ECC|\bDBE\b.{0,40}(?:detected|error)|row[- ]remap\w* (?:failure|failed|pending)"),
    (F.GPU_HARDWARE, 94, _DRIVER, r"GPU (?:is|has been) lost|GPU requires (?:a )?reset|lost its GPU|GPU \S{0,40} ?is unhealthy"),
    (F.GPU_HARDWARE, 94, _DRIVER, r"Unable to determine the device handle for (?:GPU|gpu)"),
    (F.GPU_HARDWARE, 94, _DRIVER, r"waiting for RPC (?:response )?from (?:the )?GPU|GSP.{0,30}(?:timeout|timed out|heartbeat)|RmInitAdapter failed"),
    (F.GPU_HARDWARE, 94, "NVIDIA/nccl and fabric manager", r"NVLink.{0,40}(?:fatal|failure|link (?:is )?down)|NVSwitch.{0,40}(?:fatal|failure)"),
    (F.GPU_HARDWARE, 93, "linux mce", r"\[Hardware Error\]|Machine check (?:events|exception)|PCIe Bus Error.{0,60}(?:Fatal|Uncorrect)"),
    (F.GPU_HARDWARE, 93, "linux amdgpu", r"amdgpu.{0,60}(?:GPU reset|ring \S+ timeout|RAS.{0,30}uncorrectable)"),
    (F.GPU_HARDWARE, 90, "Slurm slurmstepd", r"DUE TO NODE FAILURE|\bNODE_FAIL\b"),
    (F.GPU_HARDWARE, 88, _DRIVER, r"(?:thermal|power).{0,30}(?:shutdown|emergency)|GPU.{0,40}overheat"),
    (F.CUDA_ERROR, 86, _XID, r"\bXid\b[^,]{0,60}[ :,]+(?:6|8|13|31|32|38|43|45|68|69)\b", _PROGRAM_XID),
))  # fmt: skip

MEMORY: Final = table((
    (F.GPU_OOM, 88, _ALLOCATOR, r"\b(?:CUDA|HIP|ROCm|XPU|NPU|MUSA|GPU|MPS backend) out[- ]of[- ]memory"),
    (F.GPU_OOM, 88, _ALLOCATOR, r"torch\.(?:cuda\.)?OutOfMemoryError"),
    (F.GPU_OOM, 88, _ALLOCATOR, r"Tried to allocate [\d.]+ ?[KMGT]?i?B.{0,300}(?:total capa?c\w*|GPU|of which|reserved|cached)"),
    (F.GPU_OOM, 88, _CUDA, r"(?:CUDA|HIP) ?(?:error|failure|runtime error|driver error)?.{0,20}[: '\"]+out of memory"),
    (F.GPU_OOM, 88, _CUDA, r"cudaErrorMemoryAllocation|hipErrorOutOfMemory|CUDA_ERROR_OUT_OF_MEMORY"),
    (F.GPU_OOM, 88, _CUDA, r"(?:cuda|hip)(?:Host)?(?:Malloc\w*|MemCreate|MemAlloc\w*)\b.{0,40}(?:failed|error).{0,20}(?:out of memory|memory)"),
    (F.GPU_OOM, 88, _LIBRARIES, r"C\w+_STATUS_ALLOC_FAILED"),
    (F.GPU_OOM, 88, _XLA, r"RESOURCE_?EXHAUSTED.{0,200}(?:out of memory|ran out of memory|failed to allocate|hbm|allocating)"),
    (F.GPU_OOM, 88, _XLA, r"Ran out of memory in memory space (?:hbm|vmem|smem)|Exceeded hbm capacity|program hbm requirement"),
    (F.GPU_OOM, 88, _XLA, r"Out of memory (?:while trying to|allocating) (?:allocate )?\d+ bytes"),
    (F.HOST_OOM, 89, "tensorflow core/common_runtime", r"OOM when allocating tensor.{0,200}by allocator (?:\S*cpu|mklcpu)"),
    (F.GPU_OOM, 88, "tensorflow core/common_runtime", r"OOM when allocating tensor"),
    (F.GPU_OOM, 86, "tensorflow core/common_runtime/bfc_allocator.cc", r"Allocator \(GPU_\d\w*\) ran out of memory"),
    (F.GPU_OOM, 88, "onnxruntime BFCArena", r"Failed to allocate memory for requested buffer of size \d+"),
    (F.GPU_OOM, 88, "cupy, numba, RMM", r"cupy\S*\.OutOfMemoryError|std::bad_alloc: (?:out_of_memory: )?CUDA|std::bad_alloc: cudaError"),
    (F.GPU_OOM, 87, "vllm-project/vllm", r"No available memory for the cache blocks|larger than the maximum number of tokens that can be stored in KV cache"),
    (F.GPU_OOM, 87, "vllm-project/vllm", r"Free memory on device.{0,80}is less than desired GPU memory"),
    (F.GPU_OOM, 87, "ggml, bitsandbytes and others", r"(?:insufficient|not enough|ran out of|exhausted) (?:the )?(?:GPU|video|device|VRAM|CUDA) ?(?:memory|VRAM)?"),
    (F.GPU_OOM, 87, _NCCL_CORE, r"(?:Cuda failure|CUDA calloc|cudaMalloc).{0,40}out of memory"),
    (F.GPU_OOM, 87, _HF, r"No executable batch size found, reached zero"),
))  # fmt: skip

CUDA: Final = table((
    (F.ENVIRONMENT, 87, _CUDA, r"no kernel image is available|cudaErrorNoKernelImageForDevice|CUDA_ERROR_NO_BINARY_FOR_GPU"),
    (F.ENVIRONMENT, 87, _CUDA, r"driver version is insufficient|NVIDIA driver on your system is too old|cudaErrorInsufficientDriver"),
    (F.ENVIRONMENT, 87, _CUDA, r"unsupported (?:PTX version|toolchain)|PTX was compiled with an unsupported|unsupported display driver"),
    (F.ENVIRONMENT, 87, _CUDA, r"forward compatibility was attempted|system not yet initialized|cudaErrorSystemNotReady"),
    (F.ENVIRONMENT, 86, _DRIVER, r"Driver/library version mismatch|cudaErrorCompatNotSupportedOnDevice|CUDA driver initialization failed"),
    (F.NO_GPU, 88, _CUDA, r"Found no NVIDIA driver|No CUDA GPUs are available|no CUDA-capable device|No HIP GPUs are available"),
    (F.NO_GPU, 88, _CUDA, r"CUDA_ERROR_NO_DEVICE|cudaErrorNoDevice|hipErrorNoDevice|cudaErrorDevicesUnavailable"),
    (F.NO_GPU, 88, _CUDA, r"CUDA-capable device\(?s?\)? (?:is/)?are busy or unavailable|invalid device ordinal|invalid device id", _BIGGER),
    (F.NO_GPU, 84, _DRIVER, r"NVIDIA-SMI has failed|couldn't communicate with the NVIDIA driver|Failed to initialize NVML"),
    (F.NO_GPU, 84, _DRIVER, r"\bNo devices were found\b|nvidia-smi: (?:command )?not found|libcuda\.so\S*:? (?:cannot|could not)"),
    (F.NO_GPU, 84, "pytorch torch/serialization.py", r"deserialize object on (?:a )?CUDA device.{0,60}is False"),
    (F.NO_GPU, 84, "docker and the NVIDIA container toolkit", r"could not select device driver.{0,40}gpu|nvidia-container-cli.{0,80}(?:no such device|no devices|not detected)"),
    (F.NO_GPU, 84, "kubernetes scheduler", r"Insufficient (?:nvidia\.com/gpu|amd\.com/gpu|google\.com/tpu)"),
    (F.NO_GPU, 84, "lightning", r"No supported gpu backend found|But your machine only has: \[|(?:requested|asked for) \d+ GPUs?.{0,60}(?:only|available)"),
    (F.NO_GPU, 84, "Colab and Kaggle", r"cannot (?:currently )?connect to (?:a )?GPU|usage limits in Colab|GPU quota (?:has been )?(?:exceeded|reached)|no backend with GPU"),
    (F.NO_GPU, 83, "cloud providers", r"ZONE_RESOURCE_POOL_EXHAUSTED|Insufficient(?:Instance)?Capacity\b|no (?:instances? (?:currently )?available|capacity)|does not have enough resources available"),
    (F.NO_GPU, 83, "cloud providers", r"Quota '?\S*GPUS?\S*'? exceeded|(?:stockout|out of stock|no offers? (?:found|available))"),
    (F.NO_GPU, 82, "common checks", r"\bno (?:usable |available )?(?:CUDA |NVIDIA )?(?:GPUs?|TPUs?|CUDA devices?)(?: devices?)? ?(?:was |were |is |are )?(?:found|available|detected|visible)"),
    (F.NO_GPU, 82, "common checks", r"(?:CUDA|GPU)(?: device)? (?:is |was )?(?:not available|unavailable|not found|not detected)\b|requires? (?:a |an )?(?:CUDA|NVIDIA)?.{0,6}GPU (?:to run|but|and none)"),
    (F.NO_GPU, 82, "jax", r"Unable to initialize backend '(?:cuda|tpu|gpu|rocm)'"),
    (F.CUDA_ERROR, 86, _CUDA, r"device-side assert triggered|cudaErrorAssert\b|CUDA_ERROR_ASSERT", _INDEX),
    (F.CUDA_ERROR, 86, "pytorch aten/src/ATen/native/cuda", r"block: \[\d+, ?\d+, ?\d+\], thread: \[.{0,40}Assertion .{0,300}failed", _INDEX),
    (F.CUDA_ERROR, 86, _CUDA, r"illegal memory access|(?:cuda|hip)ErrorIllegalAddress|CUDA_ERROR_ILLEGAL_ADDRESS"),
    (F.CUDA_ERROR, 86, _CUDA, r"unspecified launch failure|misaligned address|illegal instruction was encountered|invalid program counter"),
    (F.CUDA_ERROR, 86, _CUDA, r"(?:cudaErrorLaunchFailure|CUDA_ERROR_LAUNCH_\w+|launch timed out and was terminated|an illegal instruction was)"),
    (F.CUDA_ERROR, 84, _LIBRARIES, r"\bC(?:UBLAS|UDNN|UFFT|USOLVER|USPARSE|URAND)_(?:STATUS_)?(?:EXECUTION_FAILED|INTERNAL_ERROR|NOT_INITIALIZED|INVALID_VALUE|MAPPING_ERROR|BAD_PARAM\w*|NOT_SUPPORTED|LAUNCH_FAILURE|ARCH_MISMATCH)"),
    (F.CUDA_ERROR, 84, "ROCm", r"Memory access fault by GPU node|HSA_STATUS_ERROR_\w+|hipErrorLaunchFailure|HIP error:"),
    (F.CUDA_ERROR, 80, _CUDA, r"\b(?:CUDA|HIP) (?:driver |kernel |internal )?error(?: \d+)?\b ?:? ?(?!out of memory)[\w(]"),
    (F.CUDA_ERROR, 80, _CUDA, r"cuda runtime error \(\d+\)|\bCUDA_ERROR_[A-Z_]+|\bcudaError[A-Z]\w+|Cuda failure"),
    (F.CUDA_ERROR, 79, _NCCL, r"unhandled cuda error|ncclUnhandledCudaError"),
    (F.CUDA_ERROR, 72, _CUDA, r"CUDA kernel errors might be asynchronously reported|Compile with `?TORCH_USE_CUDA_DSA"),
    (F.USER_ERROR, 82, "pytorch torch/cuda/__init__.py", r"Cannot re-initialize CUDA in forked subprocess", "use the spawn start method"),
))  # fmt: skip

RANKS: Final = table((
    (F.NCCL_TIMEOUT, 70, _NCCL, r"Watchdog caught collective operation timeout|collective operation timeout: Work"),
    (F.NCCL_TIMEOUT, 70, _NCCL, r"ran for \d+ milliseconds before timing out|Timeout at NCCL work|NCCL work: .{0,40}timed out"),
    (F.NCCL_TIMEOUT, 70, _NCCL, r"watchdog got stuck for \d+ seconds|Heartbeat monitor timed out|watchdog thread hang|watchdog.{0,30}hang"),
    (F.NCCL_TIMEOUT, 70, _NCCL, r"due to (?:a )?collective timeout|detected a collective timeout|collective timeout from rank"),
    (F.NCCL_TIMEOUT, 70, _NCCL, r"\b(?:NCCL|RCCL|HCCL|ProcessGroup\w*|gloo|all_?reduce|all_?gather|barrier|broadcast|reduce_?scatter|all_?to_?all)\b.{0,60}\b(?:timed out|time[- ]?out(?: (?:error|occurred|expired|exceeded|reached|detected|after)|[.!:]|\s*$))"),
    (F.NCCL_TIMEOUT, 70, _GLOO, r"Timed out waiting \d+ ?ms for (?:recv|send)|(?:failed to pass|timed out in|reached|in) monitored_?barrier"),
    (F.NCCL_TIMEOUT, 69, "horovod stall inspector", r"submitted to be reduced, gathered or broadcasted by subset of ranks|Stalled (?:ranks|ops)"),
    (F.NCCL_TIMEOUT, 66, _STORE, r"wait timeout after \d+ ?ms|Timed out after \d+ seconds waiting for clients|client socket has timed out after|\bSocket Timeout\b"),
    (F.NCCL_TIMEOUT, 66, "pytorch elastic rendezvous", r"RendezvousTimeoutError|rendezvous.{0,60}tim(?:ed out|eout)|DistStoreError"),
    (F.NCCL_TIMEOUT, 61, _NCCL, r"(?:Some NCCL operations have failed or timed out|taking? the entire process down)"),
    (F.USER_ERROR, 67, _NCCL_CORE, r"ncclInvalidUsage|Duplicate GPU detected|ncclInvalidArgument", "two ranks share a GPU, or the ranks' calls differ"),
    (F.SHM, 91, _NCCL_CORE, r"(?:shared memory segment|/dev/shm/nccl|shm_?open|ftruncate|fallocate).{0,120}(?:fail|error|no space|NCCL)"),
    (F.NCCL_PEER_LOST, 64, _NCCL_CORE, r"ncclRemoteError|remote process (?:has )?exit(?:ed|ing)|connection closed by remote peer|remote peer .{0,60}(?:closed|exited|died)"),
    (F.NCCL_PEER_LOST, 63, _NCCL_CORE, r"NET/\w+.{0,120}(?:error|failed|timeout|closed|reset|refused|UNDELIVERABLE)"),
    (F.NCCL_PEER_LOST, 63, _NCCL_CORE, r"Got completion (?:from peer .{0,60})?with (?:error|status)|IBV_WC_\w+_ERR|socketProgress.{0,60}(?:closed|reset|error|fail)|ibv_\w+ failed"),
    (F.NCCL_PEER_LOST, 62, _GLOO, r"\[?\S*gloo/transport.{0,120}(?:closed by peer|reset by peer|Connection refused|Broken pipe|timeout)"),
    (F.NCCL_PEER_LOST, 62, _GLOO, r"Connection closed by peer \[|Read error \[.{0,60}\]:\d+: Connection reset"),
    (F.NCCL_PEER_LOST, 61, _STORE, r"(?:recvValue|sendBytes|recvBytes|recvVector) failed|failed to recv, got 0 bytes|TCPStore.{0,80}(?:Broken pipe|reset by peer|Connection refused|closed)"),
    (F.NCCL_PEER_LOST, 61, "pytorch elastic rendezvous", r"RendezvousConnectionError|RendezvousClosedError|connection to the C10d store has failed"),
    (F.NCCL_PEER_LOST, 60, _NCCL, r"NCCL communicator (?:was|has been) aborted|(?:peer|another rank|other rank|remote rank).{0,30}(?:died|exited|failed|lost|aborted)"),
    (F.NCCL_PEER_LOST, 59, _NCCL_CORE, r"ncclSystemError|unhandled system error|ncclInternalError|\bNCCL error\b.{0,200}(?:internal error|network)"),
    (F.NCCL_PEER_LOST, 58, "horovod, Open MPI, UCX", r"Horovod has been shut down|lost communication with a remote daemon|UCX\s+ERROR.{0,100}(?:reset|closed|timeout|unreachable)|HorovodInternalError"),
    (F.NCCL_PEER_LOST, 57, _NCCL, r"DistBackendError: NCCL error|\bNCCL (?:error|failure)\b"),
))  # fmt: skip

NUMBERS: Final = table((
    (F.NAN_LOSS, 85, "facebookresearch/detectron2 train_loop.py", r"(?:became|becomes|is|was|are|turned|has|have|contains?|got|went to|went|hit|in) (?:either )?(?:a )?(?:[`'\"]?(?:inf(?:inite|inity)?|NaNs?)[`'\"]?)(?: ?(?:or|/|and|,) ?[`'\"]?(?:NaNs?|inf\w*)[`'\"]?)?(?![\w.-])"),
    (F.NAN_LOSS, 85, "facebookresearch/mae and detr engine", r"\bloss\w*\b.{0,20}\b(?:is|was|became|becomes|=|:|of|went)? ?[-+]?(?:nan|inf)\b.{0,60}(?:stop|exit|abort|terminat|quit|break)"),
    (F.NAN_LOSS, 85, "deepspeed and fairseq loss scalers", r"loss scale already at minimum|Minimum loss scale reached|loss scale (?:is |has )?(?:reached|at) (?:the |its )?minim"),
    (F.NAN_LOSS, 85, "common checks", r"\b(?:NaN|inf|nan/inf|infinite|non-?finite|not finite)\b.{0,40}\b(?:detected|encountered|found|loss|losses|gradients?|grads?|grad[_ ]norm|training|weights|activations?|outputs?|parameters)\b"),
    (F.NAN_LOSS, 85, "common checks", r"\b(?:loss|losses|gradients?|grads?|grad[_ ]norm|weights|outputs?|parameters)\b.{0,60}\b(?:non-?finite|not finite|not a number|isn't finite|diverged|exploded)\b"),
    (F.NAN_LOSS, 85, "pytorch anomaly mode and clip_grad", r"returned nan values in its \d+|non-finite, so it cannot be clipped|total norm .{0,80}non-finite"),
    (F.NAN_LOSS, 85, "lightning", r"is not finite\. Previous best value|nan or inf values? in|Detected nan and/or inf"),
    (F.NAN_LOSS, 85, "tensorflow and keras", r"NanLossDuringTraining|Model diverged with loss = NaN|Tensor had (?:NaN|Inf)|Invalid loss, terminating training|InvalidArgumentError.{0,60}check_?numerics"),
    (F.NAN_LOSS, 84, "pytorch torch/distributions", r"found invalid values:|probability tensor contains either|tensor\(\[*\s*(?:nan|inf)\b"),
    (F.NAN_LOSS, 84, "numpy", r"FloatingPointError: (?:invalid value|overflow|divide)|FloatingPointError.{0,60}(?:loss|nan|inf)"),
    (F.NAN_LOSS, 82, "common checks", r"(?:training|loss|model) (?:has |is )?(?:diverg(?:ed|ing)|explod(?:ed|ing))\b"),
    (F.NAN_LOSS, 72, "progress lines of many trainers", r"\b\w*loss\w*['\"]?\s*[:=]\s*['\"]?(?:tensor\()?[-+]?(?:nan|inf)\b"),
    (F.NAN_LOSS, 72, "progress lines of many trainers", r"(?:\d.{0,200}|^\W*)\b\w*loss\w*['\"]?(?:\s+|\s*(?:->|=>|→|\|)\s*)(?:tensor\()?[-+]?(?:nan|inf)\b(?!\s+[a-z]+(?:\s+[a-z]|\s*$))|\b\w*loss\w*\s+[-+]?(?:nan|inf)(?:\s*[,;|]\s*\S{1,40}|\s+(?:lr|acc\w*|grad\w*|step|epoch|iter|val\w*|ppl))\s*[:=]?\s*[-\d]"),
    (F.NAN_LOSS, 48, "scikit-learn", r"Input (?:\w+ )?contains (?:NaN|infinity)"),
    (F.NAN_LOSS, 46, "progress lines of many trainers", r"\bgrad_?norm['\"]?\s*[:=]\s*['\"]?(?:nan|inf)\b"),
))  # fmt: skip

PATTERNS: Final[tuple[Pattern, ...]] = (*HARDWARE, *MEMORY, *CUDA, *RANKS, *NUMBERS)
