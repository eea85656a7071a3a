# SPDX-License-Identifier: Apache-2.0
"""All environment variables of Horovod, and what each does here. docs/horovod.md shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from talweg._compat.daemons import is_first_here
from talweg._compat.environment import (
    ANY,
    Effect,
    Kind,
    Table,
    Variable,
    decimal,
    number,
)

_MANY = 2**31 - 1
LOG_LEVELS = {
    "trace": "DEBUG",
    "debug": "DEBUG",
    "info": "INFO",
    "warning": "WARNING",
    "error": "ERROR",
    "fatal": "CRITICAL",
}
# Horovod accepts upper and lower case.
_LEVEL = Kind(
    "trace, debug, info, warning, error or fatal", lambda text: text.lower() in LOG_LEVELS
)
# Horovod takes every value but 0 and the empty one for set.
_FLAG = Kind("0 or 1", lambda text: text.lower() in ("0", "1", "true", "false"))


def _honoured(name: str, kind: Kind, default: str, meaning: str) -> Variable:
    return Variable(f"HOROVOD_{name}", kind, default, Effect.HONOURED, meaning)


def _none(name: str, kind: Kind, default: str, meaning: str) -> Variable:
    return Variable(f"HOROVOD_{name}", kind, default, Effect.NONE, meaning)


_LAUNCHER = "horovodrun sets it for programs that read it; hvd.init() asks the node's agent."
_LAUNCHED_AS_GLOO = "horovodrun sets gloo, as jobs run without MPI. There is neither MPI nor Gloo."
_PLACES = [
    _none("RANK", number(0, _MANY), "", _LAUNCHER),
    _none("SIZE", number(1, _MANY), "", _LAUNCHER),
    _none("LOCAL_RANK", number(0, 1023), "", _LAUNCHER),
    _none("LOCAL_SIZE", number(1, 1024), "", _LAUNCHER),
    _none("CROSS_RANK", number(0, _MANY), "", _LAUNCHER),
    _none("CROSS_SIZE", number(1, _MANY), "", _LAUNCHER),
    _none("HOSTNAME", ANY, "", _LAUNCHER),
    _none("GLOO_RENDEZVOUS_ADDR", ANY, "", "Talweg's scheduler brings the nodes together."),
    _none("GLOO_RENDEZVOUS_PORT", number(0, 65535), "", "See HOROVOD_GLOO_RENDEZVOUS_ADDR."),
    _none(
        "GLOO_IFACE",
        ANY,
        "",
        "horovodrun sets it to the first of --network-interfaces. Set the agents' `interface` "
        "option instead.",
    ),
    _none("CONTROLLER", ANY, "", _LAUNCHED_AS_GLOO),
    _none("CPU_OPERATIONS", ANY, "", _LAUNCHED_AS_GLOO),
    _honoured(
        "ELASTIC",
        _FLAG,
        "0",
        "horovodrun --min-np sets 1. init() raises for it in a job whose nodes cannot come and go.",
    ),
]

_FUSED = "Small tensors travel many to a frame; nothing waits for a cycle."
_TUNED = "Nothing is tuned at run time."
_TUNING = [
    _none("FUSION_THRESHOLD", number(0, 1 << 40), "134217728", _FUSED),
    _none("CYCLE_TIME", decimal(0, 1e6), "1", _FUSED),
    _none("CACHE_CAPACITY", number(0, _MANY), "1024", "A tensor is agreed on once, by its name."),
    _none("HIERARCHICAL_ALLREDUCE", _FLAG, "0", "The agent reduces a node's ranks first, always."),
    _none("HIERARCHICAL_ALLGATHER", _FLAG, "0", "The agent brings a node's ranks together."),
    _none("TORUS_ALLREDUCE", _FLAG, "0", "Sums are made by aggregators."),
    _none(
        "NUM_NCCL_STREAMS",
        number(1, 64),
        "1",
        "NCCL is used between GPUs of a node alone, by the agent.",
    ),
    _none("BATCH_D2D_MEMCOPIES", _FLAG, "1", _FUSED),
    _none("DISABLE_GROUP_FUSION", _FLAG, "0", _FUSED),
    _none(
        "ENABLE_ASYNC_COMPLETION", _FLAG, "0", "The agent takes tensors from GPUs in stream order."
    ),
    Variable(
        "HOROVOD_ENABLE_XLA_OPS",
        _FLAG,
        "0",
        Effect.NONE,
        "XLA cannot compile Talweg's operations, and a function of TensorFlow that it compiles "
        "raises: pass jit_compile=False.",
        warns=True,
    ),
    _none("THREAD_AFFINITY", ANY, "", "A rank has no background thread."),
    _none("ADASUM_MPI_CHUNK_SIZE", number(1, 1 << 40), "1073741824", "Talweg cuts tensors itself."),
    _none("AUTOTUNE", _FLAG, "0", _TUNED),
    _none("AUTOTUNE_LOG", ANY, "", _TUNED),
    _none("AUTOTUNE_WARMUP_SAMPLES", number(0, _MANY), "3", _TUNED),
    _none("AUTOTUNE_STEPS_PER_SAMPLE", number(0, _MANY), "10", _TUNED),
    _none("AUTOTUNE_BAYES_OPT_MAX_SAMPLES", number(0, _MANY), "20", _TUNED),
    _none("AUTOTUNE_GAUSSIAN_PROCESS_NOISE", decimal(0, 1e9), "0.8", _TUNED),
]

_NO_CCL = "oneCCL is not used."
_OTHERS = [
    _honoured(
        "STALL_CHECK_DISABLE",
        _FLAG,
        "0",
        "1: agents do not tell of tensors that wait for ranks, and do not end the job for it. "
        "`talweg status` shows them all the same.",
    ),
    _honoured(
        "STALL_CHECK_TIME_SECONDS",
        number(0, _MANY),
        "",
        "After how many seconds the agent first tells of a tensor that waits, and of the ranks that "
        "it waits for (stall_notice_ms). It looks after one second, two, four and so on. Unset: one "
        "second.",
    ),
    _honoured(
        "STALL_SHUTDOWN_TIME_SECONDS",
        number(0, _MANY),
        "0",
        "After how many seconds a tensor that waits ends the job, with an error that names it and "
        "the missing ranks (stall_ms); not before HOROVOD_STALL_CHECK_TIME_SECONDS. 0: never, as "
        "in jobs whose nodes may come and go. Under talweg run set TALWEG_STALL_MS instead.",
    ),
    _none("GLOO_TIMEOUT_SECONDS", number(0, _MANY), "30", "There is no Gloo."),
    _honoured(
        "ELASTIC_TIMEOUT",
        number(0, _MANY),
        "600",
        "What --elastic-timeout is, where that is not given; also for horovod.run().",
    ),
    _honoured(
        "START_TIMEOUT", number(1, _MANY), "600", "How many seconds init() waits for the whole job."
    ),
    _honoured(
        "DYNAMIC_PROCESS_SETS",
        _FLAG,
        "0",
        "1: add_process_set() and remove_process_set() may be called.",
    ),
    _honoured(
        "TIMELINE",
        ANY,
        "",
        "The file to which rank 0 writes a Chrome trace as it goes; DYNAMIC: start_timeline() names it.",
    ),
    _honoured(
        "TIMELINE_MARK_CYCLES",
        _FLAG,
        "0",
        "1: the timeline marks when an operation begins and no other is under way.",
    ),
    _honoured("LOG_LEVEL", _LEVEL, "warning", "What the package writes to stderr."),
    _honoured("LOG_HIDE_TIME", _FLAG, "0", "1: the package's lines have no time."),
    _none("MPI_THREADS_DISABLE", _FLAG, "0", "There is no MPI."),
    _none("CCL_CACHE", ANY, "", _NO_CCL),
    _none("CCL_BGT_AFFINITY", ANY, "", _NO_CCL),
    *(
        _none(f"SPARK_{name}", ANY, "", "horovod.spark is not offered.")
        for name in ("START_TIMEOUT", "PYTHONPATH", "WORK_DIR", "USE_LOCAL_RANK_GPU_INDEX")
    ),
    _none("DISABLE_NVTX_RANGES", _FLAG, "0", "There are no NVTX ranges."),
]

_BUILT = "Nothing is compiled when Talweg is installed."
_GPU = "The agent takes tensors from GPUs, whatever it is."
_BUILDING = [
    *(
        _none(f"GPU_{name}", ANY, "", _GPU)
        for name in (
            *("OPERATIONS", "ALLREDUCE", "ALLGATHER", "BROADCAST", "ALLTOALL", "REDUCESCATTER"),
        )
    ),
    _none("ALLOW_MIXED_GPU_IMPL", ANY, "", _GPU),
    *(
        _none(f"{kind}_{name}", ANY, "", _BUILT)
        for kind in ("WITH", "WITHOUT")
        for name in ("TENSORFLOW", "PYTORCH", "MXNET", "MPI", "GLOO", "NVTX")
    ),
    *(
        _none(name, ANY, "", _BUILT)
        for name in (
            *("GPU", "CUDA_HOME", "CUDA_INCLUDE", "CUDA_LIB", "ROCM_HOME", "ROCM_PATH"),
            *("NCCL_HOME", "NCCL_INCLUDE", "NCCL_LIB", "NCCL_LINK", "NVTX_INCLUDE"),
            *("DDL_HOME", "DDL_INCLUDE", "DDL_LIB", "BUILD_ARCH_FLAGS", "BUILD_CUDA_CC_LIST"),
            *("CMAKE", "DEBUG", "SKIP_COMPILE", "MPICXX_SHOW", "LOCAL_VERSION"),
        )
    ),
]

# The highest value that an agent accepts.
_STALL_MAX_S = 7 * 24 * 3600

TABLE = Table(
    "Horovod",
    [("Places", _PLACES), ("Tuning", _TUNING), ("Others", _OTHERS), ("Building", _BUILDING)],
    ("HOROVOD_",),
)


def agent_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the agent's variables for Horovod's ones. Agent's variables that are set win."""
    if TABLE.switch(environment, "HOROVOD_STALL_CHECK_DISABLE"):
        return {"TALWEG_STALL_NOTICE_MS": "0"}
    told = {}
    notice_s = TABLE.value(environment, "HOROVOD_STALL_CHECK_TIME_SECONDS")
    if notice_s:
        notice_ms = min(max(int(notice_s) * 1000, 1), _STALL_MAX_S * 1000)
        told["TALWEG_STALL_NOTICE_MS"] = str(notice_ms)
    shutdown_s = TABLE.number(environment, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS")
    if shutdown_s > 0:
        stall_s = min(max(shutdown_s, int(notice_s or 0)), _STALL_MAX_S)
        told["TALWEG_STALL_MS"] = str(stall_s * 1000)
    return {name: environment.get(name, value) for name, value in told.items()}


def says(environment: Mapping[str, str]) -> bool:
    """Whether this process reports the variables: the node's first rank, or one without others."""
    return is_first_here(environment, "HOROVOD_LOCAL_RANK")


def launcher_variables(interfaces: Sequence[str], is_elastic: bool) -> dict[str, str]:
    """Returns what horovodrun sets for all ranks, as Horovod's launcher does."""
    told = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
    if interfaces:
        told["HOROVOD_GLOO_IFACE"] = interfaces[0]
        told["NCCL_SOCKET_IFNAME"] = ",".join(interfaces)
    if is_elastic:
        told["HOROVOD_ELASTIC"] = "1"
    return told
