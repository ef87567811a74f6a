"""What schedulers, providers, connections, credentials, trackers and Python itself say."""

# ruff: noqa: E501 - a table: one row a line, so that it can be read down its columns

from __future__ import annotations

from typing import Final

from bridgehead.failures.pattern import Pattern, table
from bridgehead.names import FailureClass as F

_SLURM = "Slurm slurmstepd, srun, sbatch"
_K8S = "kubernetes pod status and events"
_HF = "huggingface/huggingface_hub errors"
_WANDB = "wandb/wandb sdk"
_SSH = "openssh-portable clientloop.c, sshconnect.c, packet.c"
_ELASTIC = "pytorch torch/distributed/elastic"
_IMPORT = "CPython import system"
_PIP = "pypa/pip"
_LD = "glibc ld.so"
_HTTP = "urllib3, requests, httpx"
_PYTHON = "CPython exceptions"
_NETWORK = "the network or the service was not to be reached: try once more, or bring the files beforehand"
_PORT = "another process has the port: end it, or choose another MASTER_PORT"
_LIMITS = "raise the limit: ulimit -n for files, ulimit -u for processes"
_RATE = "the service limits the rate: wait, sign in, or bring the files beforehand"
_ABRUPT = "the end of a job, not its cause: the lines before and the scheduler's own record say why"
_HF_ID = "a wrong name, or a private repository without a token"

SCHEDULERS: Final = table((
    (F.TIME_LIMIT, 80, _SLURM, r"DUE TO TIME[ _]?LIMIT|\bTIMEOUT\b.{0,30}(?:slurm|job|sacct)|slurm.{0,60}time limit"),
    (F.TIME_LIMIT, 80, "PBS, LSF, Grid Engine", r"wall ?-?time.{0,60}(?:exceed|limit|reached|expired)|TERM_RUNLIMIT|job killed: walltime|exceeded hard wallclock|h_rt\b.{0,40}exceed|(?:reach\w*|exceed\w*) .{0,30}(?:run|wall ?)-?(?:time|limit)"),
    (F.TIME_LIMIT, 80, _K8S, r"DeadlineExceeded\b(?!: 5|.{0,30}grpc)|active longer than specified deadline|activeDeadlineSeconds.{0,40}exceed"),
    (F.TIME_LIMIT, 80, "hosted runners and notebooks", r"exceeded (?:the |its )?max\w* (?:execution |run ?-?|allowed )?(?:time|duration|runtime)|max_duration.{0,30}exceed|MaxRuntimeExceeded|MAX_DURATION|exceeded maximum run ?time|reach\w* (?:its |the )?max\w* (?:duration|lifetime|session)"),
    (F.TIME_LIMIT, 79, "modal, submitit, coreutils timeout", r"FunctionTimeoutError|hit its timeout of|job is timed-out|timeout: sending signal|Job (?:has )?timed out|job \S{0,40} ?exceeded (?:its |the )?(?:time|timeout)"),
    (F.TIME_LIMIT, 78, "many programs", r"\b(?:exceeded|reached|hit|over|past|expired?) (?:the |its )?(?:\S+ )?(?:time|runtime|duration|walltime|wall-clock|session) ?-?(?:limit|cap|quota|budget)|time ?limit (?:was |has been |is )?(?:reached|exceeded|expired|hit)"),
    (F.TIME_LIMIT, 78, "Colab", r"disconnected (?:due to|because of|after) .{0,40}(?:inactivity|idle|maximum|12 hours|24 hours)"),
    (F.PREEMPTED, 80, _SLURM, r"DUE TO (?:JOB )?PREEMPTION|JOB REQUEUE|DUE TO (?:JOB )?REQUEUE|\bPREEMPTED\b"),
    (F.PREEMPTED, 80, "cloud providers", r"\b(?:spot|preemptible|interruptible|low[- ]priority)\b.{0,80}\b(?:interrupt\w*|terminat\w*|preempt\w*|reclaim\w*|evict\w*|shut ?down|stopp\w+|taken back|outbid)\b"),
    (F.PREEMPTED, 80, "cloud providers", r"\b(?:interruption notice|rebalance recommendation|instance-action|instances\.preempted|ScheduledEvents?.{0,40}Preempt|TERMINATE_ON_HOST_MAINTENANCE)"),
    (F.PREEMPTED, 80, "cloud providers", r"\b(?:VM|instance|node|worker|pod|job|machine|TPU|host|task|container|allocation)\b.{0,60}\b(?:was|is being|has been|being|got|were|will be|is) (?:preempted|reclaimed|evicted by)"),
    (F.PREEMPTED, 80, _K8S, r"EvictionByEvictionAPI|DisruptionTarget|PreemptionByScheduler|Preempted (?:by|in order)|TaintManagerEviction|DeletionByTaintManager|TerminationByKubelet|Deleted by (?:node|autoscaler)"),
    (F.PREEMPTED, 79, "facebookincubator/submitit", r"this job is preempted|preempt(?:ion|ed)?\b.{0,40}(?:signal|requeue|checkpoint|resum|notice|detected|imminent|received)|(?:received|got|caught|detected).{0,40}preempt"),
    (F.PREEMPTED, 74, _K8S, r"^\W*(?:Reason|Status):?\s+Evicted\b|\bNodeShutdown\b|reason: (?:Evicted|Shutdown|Preempting)|node .{0,60}(?:drain(?:ed|ing)|cordoned)|Node is shutting down"),
    (F.SUBMIT_ERROR, 80, _SLURM, r"job submission failed|Unable to allocate resources|(?:sbatch|salloc): error|(?:srun|sbatch).{0,40}Unable to (?:create|confirm|submit|contact)"),
    (F.SUBMIT_ERROR, 79, _SLURM, r"Unable to contact slurm controller|Socket timed out on send/recv|Requested node configuration is not available|Invalid (?:account|partition|qos|feature|job id|generic resource)\b.{0,60}(?:specified|specification|combination|name)?"),
    (F.SUBMIT_ERROR, 79, _SLURM, r"(?:QOS|Assoc|Assoc\w*)(?:Max|Grp)\w*Limit\b|violates accounting/QOS policy|slurm_\w+ error"),
    (F.SUBMIT_ERROR, 84, "PBS, LSF, Grid Engine", r"\bqsub: |Unable to run job|(?:bsub|LSF).{0,60}(?:Request aborted|not submitted|reject)|Job (?:was )?(?:rejected|not submitted)"),
    (F.SUBMIT_ERROR, 79, _K8S, r"admission webhook .{0,80}denied|Error from server \(\w+\).{0,60}(?:creating|create)|is forbidden: exceeded quota|error when creating"),
    (F.SUBMIT_ERROR, 78, "many programs", r"(?:failed|unable|could not|cannot|error|couldn't)(?: to| while| when| in)? (?:submit|submitting|schedule|enqueue|launching|creating the)(?: the| a)? ?(?:job|task|run|workload|batch|pod|sbatch)|(?:job|task|run) submi\w+ (?:has )?(?:failed|error|rejected|timed out)"),
    (F.CANCELLED, 45, _PYTHON, r"\bKeyboardInterrupt\b|Keyboard interrupt|\bSIGINT\b|signal 2\b|signal: 2\b|(?:interrupted|aborted) by (?:the )?user|\^C\s*$"),
    (F.CANCELLED, 44, "hosted runners and schedulers", r"(?:operation|workflow|run|job|task|sweep|experiment)s? (?:\S+ )?(?:was|were|has been|is|got) cancell?ed|cancell?ed by (?:the )?(?:user|uid|\d+|\w+@)|\bscancel\b|user[- ]requested (?:cancel|abort|stop|termination)|cancell?ation requested|killed by (?:the )?user"),
    (F.CANCELLED, 35, _SLURM, r"CANCELLED AT (?!.{0,60}DUE TO)|CANCELLED by \d+|\bCANCELLED\b(?!.{0,80}DUE TO)", _ABRUPT),
    (F.UNKNOWN, 24, _SLURM, r"CANCELLED AT .{0,60}DUE TO|Job step aborted|Terminating job step", _ABRUPT),
    (F.VM_LOST, 54, "ray, cloud providers", r"node .{0,120}marked dead|missed too many heartbeats|(?:VM|instance|node|machine|host|pod) .{0,60}(?:is unreachable|became unreachable|not reachable|went away|NodeLost|NotReady)"),
))  # fmt: skip

CONNECTIONS: Final = table((
    (F.AUTH, 83, _SSH, r"Permission denied \((?:publickey|password|gssapi|keyboard)|Host key verification failed|Too many authentication failures|no supported authentication methods|REMOTE HOST IDENTIFICATION HAS CHANGED"),
    (F.SSH_DROP, 93, "PuTTY network.c", r"Network error: (?:Software caused|Connection)|Remote side unexpectedly closed"),
    (F.SSH_DROP, 69, _SSH, r"client_loop: send disconnect|packet_write_(?:wait|poll)|ssh_dispatch_run_fatal|(?:kex|ssh)_exchange_identification|banner exchange|Write failed: Broken pipe"),
    (F.SSH_DROP, 69, _SSH, r"\bssh: (?:connect to|Could not resolve|\S+: )|mux_client_\w+|Connection (?:to \S+ )?(?:closed|reset|timed out|aborted)? ?(?:by|with)? ?\S* ?port \d+|Disconnected from \S+ port|channel \d+: open failed"),
    (F.SSH_DROP, 69, _SSH, r"Connection to \S+ (?:port \d+ )?(?:closed|timed out|lost|aborted|was lost|has been (?:closed|lost))|Timeout, server \S+ not responding|Shared connection to|ssh (?:connection|session|tunnel|client)\b.{0,60}(?:lost|closed|failed|dropped|reset|broken|timed out|died|terminated|disconnect)"),
    (F.SSH_DROP, 69, _ELASTIC, r"closing signal (?:SIGHUP|1\b)|got signal: 1\b|Received (?:1|Signals\.SIGHUP|SIGHUP) (?:death )?signal|\bSIGHUP\b|signal 1\b|exit ?code\s*[:=]?\s*(?:-1|129)\b|exit(?:ed)? (?:with )?(?:code|status)?:? ?(?:-1|129)\b"),
    (F.SSH_DROP, 68, "paramiko, asyncssh, fabric", r"paramiko\.|SSHException|asyncssh\.\w+|Error reading SSH protocol banner|NoValidConnectionsError|SSH session not active"),
    (F.SSH_DROP, 68, "rsync, scp, mosh", r"rsync error: .{0,80}\(code (?:255|12|30|35)\)|rsync: (?:connection unexpectedly closed|\[\w+\] .{0,40}Broken pipe)|\blost connection\b|(?:^|[\s:])Hangup\s*$"),
    (F.SSH_DROP, 66, "many programs", r"(?:tunnel|port.?forward\w*|vpn|terminal|remote session)\b.{0,60}(?:lost|closed|failed|dropped|broken|disconnect|died|down|refused)"),
))  # fmt: skip

CREDENTIALS: Final = table((
    (F.AUTH, 83, _HF, r"GatedRepo|gated repo|is restricted\. You must|must (?:have access|be authenticated)|LocalTokenNotFound|Invalid user token|Token is required|ask for access|awaiting a review"),
    (F.AUTH, 83, _HTTP, r"\b40[13]\b.{0,20}(?:Client Error|Unauthorized|Forbidden|Authenti)|HTTP(?:Error|/[\d.]+|\s\w+)?:? ?\(?40[13]\b|status(?:[_ ]code)?\W{1,3}40[13]\b|returned (?:error: )?40[13]\b|\b(?:Unauthorized|Unauthenticated|UNAUTHENTICATED)\b"),
    (F.AUTH, 83, "AWS, GCS, Azure", r"AccessDenied|Access ?Denied|InvalidAccessKeyId|SignatureDoesNotMatch|Expired ?Token|InvalidClientTokenId|NoCredentials|security token included|Unable to locate credentials|UnrecognizedClientException|AuthorizationFailure|PERMISSION_DENIED"),
    (F.AUTH, 83, "google-auth", r"DefaultCredentialsError|(?:default )?credentials were not found|Could not automatically determine credentials|RefreshError|invalid_grant|insufficient (?:authentication )?(?:scopes?|permissions?)|insufficientPermissions|expired or revoked"),
    (F.AUTH, 83, _WANDB, r"api_key not configured|No API key configured|API key (?:is |was )?(?:not (?:configured|found|valid|set)|invalid|missing|incorrect|expired)|(?:invalid|missing|incorrect|wrong|no|expired) API[ _-]?key|user is not logged in|call wandb\.login|You don't have permission|do(?:es)? not have (?:the )?permission|permission denied to access"),
    (F.AUTH, 83, "git and docker", r"Authentication failed|could not read (?:Username|Password) for|requested access to the resource is denied|pull access denied|no basic auth credentials|Bad credentials"),
    (F.AUTH, 83, "kaggle, gdown", r"Could not find kaggle\.json|must accept this competition|Cannot retrieve the public link|You need to (?:log|sign) in|Please (?:log|sign) in|Login required"),
    (F.AUTH, 82, "many programs", r"\b(?:authenticat\w+|authoriz\w+|credentials?|access token|auth token|(?:\w+_)?token|password|login|secret key|api[ _-]?key)\b.{0,60}\b(?:fail\w*|invalid|expired|revoked|missing|denied|required|rejected|incorrect|refused|not (?:found|valid|set|provided|authorized))\b"),
    (F.AUTH, 82, "many programs", r"\b(?:invalid|expired|missing|wrong|bad|revoked|no valid|unable to (?:find|load|refresh)|failed to (?:refresh|authenticate|authorize|log ?in))\b.{0,20}\b(?:credentials?|tokens?|password|authenticat\w*|authorization)\b(?! (?:id|ids|count|index|embedding))"),
    (F.AUTH, 72, _HF, r"RepositoryNotFoundError|If this is a private repository", _HF_ID),
))  # fmt: skip

TRACKERS: Final = table((
    (F.TRACKER, 82, _WANDB, r"Run initialization has timed out|wandb\.(?:sdk|errors|apis|old)\S*\.?(?:CommError|UsageError|\w*Timeout\w*|Mailbox\w*|ServicePoll\w*|ServiceStart\w*|\w*Error)\b|\bCommError\b"),
    (F.TRACKER, 82, _WANDB, r"(?:communicating with|problem with|error in|starting|start) (?:the )?wandb|wandb (?:backend |service |internal |core )?(?:process|service|backend).{0,60}(?:shut ?down|died|failed|exit|not (?:running|respond)|crash|timed out|timeout)|wandb-core.{0,60}(?:exit|crash|fail|died|panic)|wandb init(?:ialization)? (?:failed|timed)"),
    (F.TRACKER, 82, _WANDB, r"(?:api\.wandb\.ai|wandb).{0,160}(?:Max retries|Connection ?(?:Error|refused|reset|aborted)|timed out|ReadTimeout|HTTP 5\d\d|rate limit|429|\b50[0234]\b)|filestream.{0,60}(?:fatal|error|fail)"),
    (F.TRACKER, 82, "mlflow tracking client", r"mlflow\S*\.?(?:MlflowException|RestException)|(?:API request to|mlflow).{0,160}(?:failed with|Max retries|refused|timed out|exception|error code)"),
    (F.TRACKER, 82, "neptune, comet, clearml, aim, trackio, swanlab", r"\b(?:neptune|comet(?:_ml|ml)?|clearml|trains|aim|trackio|swanlab|dvclive)\b.{0,120}(?:error|exception|timed out|timeout|fail|refused|unreachable|lost|offline)|COMET (?:ERROR|WARNING)|Neptune\w*(?:Exception|Error|Lost)"),
    (F.TRACKER, 76, "tensorboard", r"tensorboard.{0,80}(?:error|exception|failed|refused)|SummaryWriter.{0,60}(?:error|failed)"),
    (F.TRACKER, 48, _WANDB, r"wandb:? (?:ERROR|Network error)|wandb.{0,60}entering retry loop"),
))  # fmt: skip

ENVIRONMENT: Final = table((
    (F.ENVIRONMENT, 81, _IMPORT, r"\bModuleNotFoundError\b|\bImportError\b|No module named|cannot import name|DLL load failed|PackageNotFoundError"),
    (F.ENVIRONMENT, 82, _LD, r"cannot open shared object file|undefined symbol|version `?\S*(?:GLIBC|GLIBCXX|CXXABI)\S* not found|symbol lookup error|Could not load (?:dynamic )?library|Unable to load .{0,40}librar|libcudnn\S* .{0,60}(?:not found|cannot|error)"),
    (F.ENVIRONMENT, 82, "pytorch torch/utils/cpp_extension.py", r"detected CUDA version .{0,60}mismatches|CUDA_HOME (?:environment variable )?is not set|Ninja is required|Error building extension|nvcc\b.{0,20}not found|not compiled with (?:CUDA|ROCm|NCCL|flash|\w+ support)|compiled without (?:CUDA|GPU)"),
    (F.ENVIRONMENT, 82, "pytorch torch/cuda/__init__.py", r"is not compatible with the current PyTorch|cuDNN version incompatib|incorrectly set up environment|(?:CUDA|cuDNN|NCCL|driver) versions? .{0,60}(?:mismatch|incompatib|does not match|too old|not supported|older than)|only supports Ampere|does(?:n't| not) support bf16|sm_\d+ is not"),
    (F.ENVIRONMENT, 81, _PIP, r"Could not find a version that satisfies|No matching distribution|ResolutionImpossible|subprocess-exited-with-error|Failed building wheel|Failed to build |metadata-generation-failed|dependency (?:conflict|resolver)|Could not build wheels|externally-managed-environment"),
    (F.ENVIRONMENT, 81, "setuptools, conda, uv, apt", r"DistributionNotFound|VersionConflict|ResolvePackageNotFound|UnsatisfiableError|PackagesNotFoundError|CommandNotFoundError|No solution found when resolving|Unable to locate package|unmet dependencies|EnvironmentNotWritable|could not find conda environment"),
    (F.ENVIRONMENT, 81, "many programs", r"\brequires? (?:\S+ )?(?:python|torch|pytorch|numpy|transformers|cuda|[a-z_-]{3,24}) ?(?:version )?(?:[><=~!]=?|\d|to be installed|>=)|is required but|please (?:upgrade|install|downgrade|reinstall)|incompatible (?:version|with (?:numpy|torch|python|the installed))|needs to be installed"),
    (F.ENVIRONMENT, 81, "numpy 1.24 and 2.0", r"module 'numpy' has no attribute|dtype size changed|compiled using NumPy 1|numpy\.core\.multiarray failed|binary incompatibility|A module that was compiled"),
    (F.ENVIRONMENT, 80, "bash, env, modules", r"command not found|bad interpreter|cannot execute binary file|exec format error|is not recognized as an internal|env: .{0,60}No such file|unknown: \"?module|module\(s\) are unknown|Unable to locate a modulefile|executable file not found"),
    (F.ENVIRONMENT, 80, "docker and kubernetes", r"ImagePull\w+|ErrImage\w+|manifest (?:unknown|for \S+ not found)|Error response from daemon|unsatisfied condition: |CreateContainer(?:Config)?Error|no matching manifest|image \S+ not found|failed to create (?:shim|containerd)"),
    (F.ENVIRONMENT, 79, "errno texts of libc", r"Too many open files|\[?Errno 24\]?|EMFILE|can't start new thread|Resource temporarily unavailable|pthread_create failed|Thread creation failed|\[?Errno 11\]", _LIMITS),
    (F.ENVIRONMENT, 78, "pytorch elastic, gloo", r"Address already in use|EADDRINUSE|\[?Errno 98\]?|failed to listen on any local network|port \d+ is (?:already )?(?:in use|taken)", _PORT),
    (F.ENVIRONMENT, 76, _HTTP, r"Name or service not known|Temporary failure in name resolution|Could not resolve host|getaddrinfo failed|NameResolutionError|Network is unreachable|No route to host|CERTIFICATE_VERIFY_FAILED|SSLError|SSLCertVerification", _NETWORK),
    (F.ENVIRONMENT, 74, _HF, r"couldn't connect to '?https?://|LocalEntryNotFound|OfflineModeIsEnabled|cannot find the requested files in the (?:disk|local) cache|couldn't find .{0,40}in the cached files", _NETWORK),
    (F.ENVIRONMENT, 72, _HTTP, r"Max retries exceeded|(?:Connect|Read|Connection)Timeout\b|\bConnectionError\b|Remote end closed connection|RemoteDisconnected|IncompleteRead|ChunkedEncodingError|(?:50[0234]) (?:Server Error|Bad Gateway|Service Unavailable|Gateway)", _NETWORK),
    (F.ENVIRONMENT, 72, _HTTP, r"429 (?:Client Error|Too Many)|Too Many Requests|rate ?limit(?:ed| exceeded| reached)|RateLimitError|Too many users have viewed or downloaded", _RATE),
))  # fmt: skip

# CamelCase is what tells an exception from the word error, so these heed case.
PROGRAM: Final = table((
    (F.USER_ERROR, 56, "CPython argparse, click, hydra", r"error: (?:the following arguments are required|unrecognized arguments|argument |ambiguous option|one of the arguments|invalid choice)|Error: (?:No such option|Missing (?:option|argument|parameter)|Invalid value|Got unexpected)|hydra\.errors\.|omegaconf\.errors\.|can't open file "),
    (F.USER_ERROR, 52, _PYTHON, r"\b(?:SyntaxError|IndentationError|TabError|NameError|UnboundLocalError|ZeroDivisionError|RecursionError)\b"),
    (F.USER_ERROR, 50, _PYTHON, r"(?:^|[\s\]|>(:])(?:[A-Za-z_]\w*\.)*(?!CalledProcessError|ChildFailedError|SignalException)[A-Z]\w*(?:Error|Exception|Refused|NotFound|Failure)(?:: |:?\s*$|\()"),
    (F.USER_ERROR, 50, _PYTHON, r"(?:^|[\s\]|>])(?:StopIteration|SystemExit|AssertionError|NotImplementedError|Exception)(?::|\s*$)"),
    (F.USER_ERROR, 46, "other languages", r"thread '.{0,60}' panicked at|^panic: |goroutine \d+ \[running\]|Uncaught \w*(?:Error|Exception)|Exception in thread|fatal error: .{0,120}(?:No such file|not found)"),
    (F.USER_ERROR, 44, "bash, make", r"No such file or directory|syntax error near|unbound variable|Is a directory\b|Not a directory\b|Permission denied\b|File exists\b"),
), exact=True)  # fmt: skip

PATTERNS: Final[tuple[Pattern, ...]] = (
    *SCHEDULERS, *CONNECTIONS, *CREDENTIALS, *TRACKERS, *ENVIRONMENT, *PROGRAM,
)  # fmt: skip
