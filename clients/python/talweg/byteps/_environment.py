# SPDX-License-Identifier: Apache-2.0
"""The table of BytePS's environment variables, with their effect. docs/byteps.md shows it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from talweg._compat.environment import (
    ANY,
    SWITCH,
    Effect,
    Kind,
    Table,
    Variable,
    choice,
    decimal,
    number,
    text,
)

_MANY = 2**31 - 1
# An item of a list, as BytePS reads it: blanks may surround it, and -1 stands for nothing.
_INTEGER = r"\s*(-1|\d{1,9})\s*"
_CORE_MAX = 65535
_LOG_LEVELS = {
    "TRACE": ("DEBUG", "debug"),
    "DEBUG": ("DEBUG", "debug"),
    "INFO": ("INFO", "info"),
    "WARNING": ("WARNING", "warning"),
    "ERROR": ("ERROR", "error"),
    "FATAL": ("CRITICAL", "error"),
}
# libfabric's provider for each value of DMLC_ENABLE_RDMA.
PROVIDERS = {"0": "tcp", "1": "verbs", "ibverbs": "verbs", "fabric": "efa"}


def _honoured(
    name: str,
    kind: Kind,
    default: str,
    meaning: str,
    refused: tuple[str, ...] = (),
    remedy: str = "",
) -> Variable:
    return Variable(name, kind, default, Effect.HONOURED, meaning, refused, remedy)


def _launched(name: str, kind: Kind, default: str, meaning: str, without: str = "") -> Variable:
    """A variable of what bpslaunch does before a rank's program begins, when init() is too late."""
    return Variable(
        name, kind, default, Effect.HONOURED, meaning, launcher="bpslaunch", without=without
    )


def _none(name: str, kind: Kind, default: str, meaning: str) -> Variable:
    return Variable(name, kind, default, Effect.NONE, meaning)


def _lists_of_cores() -> Kind:
    def is_list(text: str) -> bool:
        parts = [re.fullmatch(r"(\d{1,9})(-(\d{1,9}))?", part) for part in text.split(",")]
        return all(
            part is not None and int(part[1]) <= int(part[3] or part[1]) <= _CORE_MAX
            for part in parts
        )

    allowed = (
        "a list of cores for each rank, as in 1,4-5,7-11,12:20-25, where a range has its lower core "
        f"first and no core is above {_CORE_MAX}"
    )
    return Kind(allowed, lambda text: all(is_list(section) for section in text.split(":")))


_ROLES = [
    _honoured(
        "DMLC_ROLE",
        choice("worker", "server", "scheduler", "joint"),
        "worker",
        "What bpslaunch starts: this node's agent and ranks, an aggregator, the scheduler, or a "
        "worker and a server of one machine.",
    ),
    _honoured(
        "DMLC_PS_ROOT_URI",
        text("a host name or an address", r"[^\s:/]+|\[[0-9a-fA-F:]+\]"),
        "",
        "The scheduler's host; the scheduler listens on this address.",
    ),
    _honoured("DMLC_PS_ROOT_PORT", number(1, 65535), "", "The scheduler's port."),
    _honoured("DMLC_WORKER_ID", number(0, 65535), "", "The node's number in the job (node_rank)."),
    _honoured(
        "DMLC_NUM_WORKER",
        number(1, 65536),
        "1",
        "How many nodes the job has. With one, no scheduler and no server is needed.",
    ),
    _honoured(
        "DMLC_NUM_SERVER",
        number(1, 65536),
        "1",
        "How many aggregators a worker waits for before it joins. Must be set where the job has "
        "several workers.",
    ),
    _honoured(
        "DMLC_INTERFACE",
        text("the name of a network interface", r"\S{1,64}"),
        "",
        "The interface whose address a worker's and a server's daemons bind, and their connections "
        "come from. A worker or a server without it fails. A scheduler listens on DMLC_PS_ROOT_URI, "
        "and says that it lacks the interface.",
    ),
    _honoured(
        "DMLC_NODE_HOST",
        text("a host name or an address", r"\S{1,255}"),
        "",
        "The address under which others reach this machine (advertise).",
    ),
    _honoured(
        "DMLC_PORT",
        number(0, 65535),
        "0",
        "The port on which a server takes gradients; 0: a free one.",
    ),
    _honoured(
        "DMLC_ENABLE_RDMA",
        choice("0", "1", "ibverbs", "fabric", "ucx"),
        "0",
        "The transport between agents and aggregators: 0 tcp, 1 and ibverbs verbs, fabric efa. "
        "Workers and servers without an RDMA device fail.",
        ("ucx",),
        "set ibverbs, or 0 for TCP",
    ),
    _none("DMLC_LOCAL", SWITCH, "0", "Processes of one host always meet in shared memory."),
    _honoured(
        "DMLC_USE_KUBERNETES",
        SWITCH,
        "0",
        "1: scheduler and servers bind 0.0.0.0 instead of an address of their own.",
    ),
    _honoured(
        "NVIDIA_VISIBLE_DEVICES",
        text("a comma-separated list, all, none or void", r"(?s).*[^\s,].*"),
        "",
        "One rank for each entry. Where there is no GPU the ranks run on CPUs; a line says so once.",
    ),
]

_RANKS = [
    _honoured(
        "BYTEPS_LOCAL_RANK", number(0, 1023), "0", "The rank on its node; bpslaunch sets it."
    ),
    _honoured(
        "BYTEPS_LOCAL_SIZE",
        number(1, 1024),
        "1",
        "How many ranks the node has, more than any BYTEPS_LOCAL_RANK; bpslaunch sets it.",
    ),
    _honoured(
        "BYTEPS_GLOBAL_RANK",
        number(0, _MANY),
        "",
        "The rank in the job; with the local rank it says which node this is, in place of DMLC_WORKER_ID.",
    ),
    _honoured(
        "BYTEPS_SOCKET_PATH",
        text("the absolute path of a directory", r"/.*"),
        "/tmp",
        "Where the agent's socket lies when no launcher has started one. The socket's whole path has "
        "at most 107 bytes.",
    ),
    _honoured(
        "BYTEPS_JOB_ID",
        text("at most 128 characters without control characters", r"[^\x00-\x1f\x7f]{1,128}"),
        "",
        "The job's name, the same at all of its processes; byteps unless set. A scheduler or a server "
        "without it serves the first job that comes.",
    ),
]

_DATA = [
    _honoured(
        "BYTEPS_PARTITION_BYTES",
        number(4096, _MANY),
        "",
        "The largest slice (slice_bytes_max), rounded up to a multiple of 64 and at most 1 GiB; 1 MiB "
        "unless set.",
    ),
    _honoured(
        "BYTEPS_MIN_COMPRESS_BYTES",
        number(0, _MANY),
        "65536",
        "A smaller tensor is not compressed by compression_params, and travels plain "
        "(encoding_bytes_min) where TALWEG_ENCODING rounds what travels. Compression.fp16 casts every "
        "tensor.",
    ),
    _honoured(
        "BYTEPS_FORCE_DISTRIBUTED",
        SWITCH,
        "0",
        "1: scheduler and servers also for one worker. Without it scheduler and servers wait for a "
        "job's only worker for two minutes, and end.",
    ),
    _honoured(
        "BYTEPS_KEY_HASH_FN",
        choice("naive", "built_in", "djb2", "sdbm", "mixed"),
        "",
        "The hash of a slice's key that selects its server (dealing), the same at all workers. The key "
        "is 65536 times a number made of the tensor's name, plus the slice's number in the tensor. "
        "mixed needs BYTEPS_ENABLE_MIXED_MODE=1. Unset: long tensors are striped over all servers by "
        "weight, which balances better than any hash.",
    ),
    _honoured(
        "BYTEPS_BUILT_IN_HASH_COEF",
        number(1, _MANY),
        "1",
        "What the hash of BYTEPS_KEY_HASH_FN=built_in is multiplied by. It is a fixed 64-bit hash, the "
        "same on all machines.",
    ),
    _honoured(
        "BYTEPS_ENABLE_MIXED_MODE",
        SWITCH,
        "0",
        "1: slices are dealt by djb2 in proportion to the servers' weights, whatever "
        "BYTEPS_KEY_HASH_FN says. The scheduler weighs servers on hosts of their own against those "
        "beside workers by BytePS's formula.",
    ),
    _honoured(
        "BYTEPS_MIXED_MODE_BOUND",
        number(1, _MANY),
        "101",
        "How many points mixed mode divides among the servers; at least DMLC_NUM_SERVER.",
    ),
    _none("BYTEPS_THREADPOOL_SIZE", number(0, 1024), "0", "An agent has one data thread."),
    _none(
        "BYTEPS_REDUCE_ROOTS",
        text("-1, or a comma-separated list of local ranks", rf"{_INTEGER}(,{_INTEGER})*"),
        "",
        "The agent, or all ranks of a node together, sum what the node's ranks have pushed.",
    ),
    _honoured(
        "BYTEPS_SCHEDULING_CREDIT",
        number(0, _MANY),
        "0",
        "Slices in flight to a server (credit_bytes is so many slices, 64 KiB to 64 GiB); 0: 8 MiB. "
        "Priorities always count.",
    ),
    _none("BYTEPS_OMP_THREAD_PER_GPU", number(1, 1024), "4", "Sums are vectorised, on one thread."),
    _honoured(
        "BYTEPS_ENABLE_ASYNC",
        SWITCH,
        "0",
        "DistributedOptimizer (and MXNet's DistributedTrainer) adds up the steps of ranks that do not "
        "wait for each other (docs/asynchronous.md). DistributedDataParallel, CrossBarrier, "
        "DistributedGradientTape, MirroredStrategy and the KVStore refuse it.",
    ),
    _none("BYTEPS_ENABLE_IPC", SWITCH, "0", "Processes of one host always meet in shared memory."),
]

_GPU = [
    _none(
        "BYTEPS_PCIE_SWITCH_SIZE",
        number(1, 1024),
        "8",
        "The agent finds the machine's topology itself.",
    ),
    _none(
        "BYTEPS_NCCL_NUM_RINGS",
        number(1, 64),
        "1",
        "NCCL is used between GPUs of a node alone, by the agent.",
    ),
    _none("BYTEPS_NCCL_GROUP_SIZE", number(1, 1024), "4", "See BYTEPS_NCCL_NUM_RINGS."),
    _none("UCX_HANDLE_ERRORS", ANY, "none", "UCX is not used."),
]

_SERVER = [
    _honoured(
        "BYTEPS_SERVER_ENGINE_THREAD",
        number(0, 1024),
        "1",
        "Threads that sum in each server, 1 to 64: the aggregator's lanes, which share its memory.",
    ),
    _honoured(
        "BYTEPS_SERVER_ENABLE_SCHEDULE",
        SWITCH,
        "0",
        "1: results that wait for a worker's connection leave by their tensor's priority "
        "(results_by_priority). What workers send always leaves by priority.",
    ),
    _none(
        "BYTEPS_SERVER_ENGINE_BLOCKING", SWITCH, "0", "An aggregator has no queue of operations."
    ),
    _honoured("BYTEPS_SERVER_DEBUG", SWITCH, "0", "1: a server logs at level debug."),
    _none(
        "BYTEPS_SERVER_DEBUG_KEY",
        number(0, _MANY),
        "0",
        "Tensors have names and no keys: `talweg status` shows the open ones.",
    ),
    _none("PS_KEY_LOG", SWITCH, "0", "Tensors have names and no keys."),
    _none("MXNET_OMP_MAX_THREADS", number(1, 1024), "4", "A lane sums on one thread."),
]

_DEBUG = [
    _honoured(
        "BYTEPS_LOG_LEVEL",
        text(f"{choice(*_LOG_LEVELS).allowed}, in any case", f"(?i){'|'.join(_LOG_LEVELS)}"),
        "WARNING",
        "What the package, the launcher and the daemons write to stderr.",
    ),
    _honoured(
        "BYTEPS_LOG_HIDE_TIME",
        SWITCH,
        "0",
        "1: the package's and the launcher's lines have no time.",
    ),
    _honoured(
        "BYTEPS_DEBUG_SAMPLE_TENSOR",
        text("a key, decimal or hexadecimal", "(0[xX][0-9a-fA-F]+|[0-9]+)?"),
        "",
        "With BYTEPS_LOG_LEVEL=DEBUG each rank logs the first and the last element of a slice when it "
        "is pushed and when its result is taken. The key is the tensor's number, in the order of their "
        "first pushes, times 65536, plus the slice's; each tensor's keys are logged.",
    ),
    _honoured(
        "BYTEPS_TRACE_ON",
        SWITCH,
        "0",
        "1: each rank writes BYTEPS_TRACE_DIR/LOCAL_RANK/comm.json, a Chrome trace with an event a "
        "push_pull, and for each key one from the call until the bytes are handed over (PUSH), and "
        "one until the result was taken (PULL). It is written when all traced tensors have passed "
        "their last traced round, and when the rank leaves the job; it goes on after resume(). The "
        "node's agent writes agent_NODE.json beside them: what it spent that time with. "
        "TensorFlow's pushes go through Python then.",
    ),
    _honoured(
        "BYTEPS_TRACE_START_STEP",
        number(1, _MANY),
        "10",
        "The first round of each tensor that is traced.",
    ),
    _honoured(
        "BYTEPS_TRACE_END_STEP",
        number(2, _MANY),
        "20",
        "The last round that is traced; larger than the first.",
    ),
    _honoured("BYTEPS_TRACE_DIR", ANY, ".", "Where the traces go."),
    _honoured("BYTEPS_TELEMETRY_ON", SWITCH, "1", "0: get_pushpull_speed() has no samples."),
    _launched(
        "BYTEPS_ENABLE_GDB",
        SWITCH,
        "0",
        "1: bpslaunch runs the command in gdb, which prints a backtrace.",
        without="0",
    ),
    _honoured(
        "PS_VERBOSE",
        number(0, 6),
        "0",
        "1: the daemons log at level info: who joins, connects and leaves. 2 and more: at level "
        "debug, with a line for each message sent and received.",
    ),
]

_LIVENESS = [
    _honoured(
        "PS_HEARTBEAT_INTERVAL",
        number(0, _MANY),
        "0",
        "How many seconds pass between two renewals of a worker's or a server's lease (renew_ms), at "
        "most half the lease; 0: a fifth of it.",
    ),
    _honoured(
        "PS_HEARTBEAT_TIMEOUT",
        number(0, 3600),
        "0",
        "After how many seconds of silence a process counts as lost (the scheduler's lease); 0: 10.",
    ),
    _none(
        "PS_RESEND", SWITCH, "0", "The transports are reliable; a broken connection is made anew."
    ),
    _none("PS_RESEND_TIMEOUT", number(0, _MANY), "1000", "See PS_RESEND."),
]

_CORE = [
    _launched(
        "BYTEPS_NUMA_ON",
        SWITCH,
        "1",
        "bpslaunch binds each rank to cores, on its GPU's NUMA node; 0: it does not.",
        without="0",
    ),
    _launched(
        "BYTEPS_NUMA_DEFAULT_QUOTA",
        number(1, 65536),
        "",
        "Physical cores of each rank but the node's last; cores / ranks unless set.",
    ),
    _launched(
        "BYTEPS_NUMA_ROOT_QUOTA",
        number(0, 65536),
        "0",
        "Physical cores of the node's last rank; 0: the rest.",
        without="0",
    ),
    _launched(
        "BYTEPS_CPU_BLACKLIST",
        text("-1, or a comma-separated list of cores", rf"{_INTEGER}(,{_INTEGER})*"),
        "-1",
        "Logical cores that the automatic assignment, and the node's agent, leave out.",
        without="-1",
    ),
    _launched(
        "BYTEPS_VISIBLE_CPU_CORES",
        _lists_of_cores(),
        "",
        "The cores of each rank of the node, instead of the automatic assignment. The node's agent "
        "runs on any of them.",
    ),
    _launched(
        "BYTEPS_MULTITHREADED_CPU",
        SWITCH,
        "1",
        "1: a rank gets both logical cores of a physical one.",
        without="1",
    ),
]

_SCHEDULER = [
    _none("BYTESCHEDULER_PARTITION", number(1, _MANY), "1000000", "See BYTEPS_PARTITION_BYTES."),
    _none("BYTESCHEDULER_CREDIT", decimal(0, 1e18), "4000000", "See BYTEPS_SCHEDULING_CREDIT."),
    _none("BYTESCHEDULER_CREDIT_TUNING", SWITCH, "1", "Nothing is tuned at run time."),
    _none("BYTESCHEDULER_PARTITION_TUNING", SWITCH, "0", "Nothing is tuned at run time."),
]

_EXAMPLES = [
    _honoured(
        "EVAL_TYPE",
        text("the name of one of the script's examples"),
        "",
        "Which example program a start script runs. For another name the script lists those that "
        "it has.",
    ),
    Variable(
        "P4ML_APP",
        number(0, _MANY),
        "0",
        Effect.NONE,
        "There is no switch that sums: aggregators do, as in P4ML without a switch.",
        warns=True,
    ),
]

# deploy/wheel/checkout_backend.py gives the same reasons when a checkout is installed.
_NO_PLUGIN = "No module is compiled against a framework; each finds its own when it is imported."
_NO_CUDA = "Nothing is compiled against CUDA or NCCL; the agent opens a GPU's driver when it runs."
_NO_UCX = "libfabric carries the data, by the provider that DMLC_ENABLE_RDMA chooses at run time."
_NO_MPI = "There is no MPI; mpirun starts programs without it."
_NO_CLONE = "deploy/images/build makes images from wheels, and clones nothing."
_BUILD = [
    *(
        _none(f"BYTEPS_WITHOUT_{name}", ANY, "", _NO_PLUGIN)
        for name in ("TENSORFLOW", "PYTORCH", "MXNET")
    ),
    *(
        _honoured(
            f"BYTEPS_WITH_{name}",
            ANY,
            "",
            f"1: pip and setup.py refuse to install a checkout where {module} is not installed.",
        )
        for name, module in (("TENSORFLOW", "tensorflow"), ("PYTORCH", "torch"), ("MXNET", "mxnet"))
    ),
    _none("BYTEPS_WITHOUT_PRESETUP", ANY, "", "Nothing is fetched before the build."),
    *(
        _none(name, ANY, default, why)
        for name, default, why in (
            ("BYTEPS_WITH_UCX", "", _NO_UCX),
            ("BYTEPS_UCX_HOME", "", _NO_UCX),
            ("BYTEPS_UCX_PREFIX", "/usr/local", _NO_UCX),
            ("BYTEPS_UCX_TARBALL_PATH", "", _NO_UCX),
            ("BYTEPS_NCCL_HOME", "/usr/local/nccl", _NO_CUDA),
            ("BYTEPS_NCCL_INCLUDE", "", _NO_CUDA),
            ("BYTEPS_NCCL_LIB", "", _NO_CUDA),
            ("BYTEPS_NCCL_LINK", "SHARED", _NO_CUDA),
            ("BYTEPS_CUDA_HOME", "/usr/local/cuda", _NO_CUDA),
            ("BYTEPS_CUDA_INCLUDE", "", _NO_CUDA),
            ("BYTEPS_CUDA_LIB", "", _NO_CUDA),
            ("BYTEPS_USE_MPI", "", _NO_MPI),
            ("BYTEPS_MPICXX_SHOW", "", _NO_MPI),
            ("BYTEPS_SERVER_MXNET_PATH", "", _NO_PLUGIN),
            ("MXNET_SOURCE_ROOT", "", _NO_PLUGIN),
            ("MXNET_USE_MKLDNN", "", _NO_PLUGIN),
            ("BYTEPS_BASE_PATH", "/usr/local", _NO_CLONE),
            ("BYTEPS_PATH", "/usr/local/byteps", _NO_CLONE),
            ("BYTEPS_GIT_LINK", "", _NO_CLONE),
            ("BYTEPS_BRANCH", "", _NO_CLONE),
        )
    ),
]

TABLE = Table(
    "BytePS",
    [
        ("Roles and addresses", _ROLES),
        ("Ranks", _RANKS),
        ("Data path", _DATA),
        ("GPUs", _GPU),
        ("Servers", _SERVER),
        ("Debugging and traces", _DEBUG),
        ("Liveness", _LIVENESS),
        ("Cores", _CORE),
        ("ByteScheduler", _SCHEDULER),
        ("Examples", _EXAMPLES),
        ("Building", _BUILD),
    ],
    ("BYTEPS_", "DMLC_", "BYTESCHEDULER_"),
)


def log_levels(environment: Mapping[str, str]) -> tuple[str, str]:
    """Returns the levels of BYTEPS_LOG_LEVEL for Python's logging and for the daemons."""
    return _LOG_LEVELS[TABLE.value(environment, "BYTEPS_LOG_LEVEL").upper()]
