# SPDX-License-Identifier: Apache-2.0
"""Every environment variable of Horovod, and what it does here. docs/horovod.md shows this table."""

from __future__ import annotations

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
# Any case, as Horovod takes it.
_LEVEL = Kind(
    "trace, debug, info, warning, error or fatal", lambda text: text.lower() in LOG_LEVELS
)
# Horovod counts any value but 0 and nothing as set.
_FLAG = Kind("0 or 1", lambda text: text.lower() in ("0", "1", "true", "false"))


def _honoured(name: str, kind: Kind, default: str, meaning: str) -> Variable:
    return Variable(f"HOROVOD_{name}", kind, default, Effect.HONOURED, meaning)


def _none(name: str, kind: Kind, default: str, meaning: str) -> Variable:
    return Variable(f"HOROVOD_{name}", kind, default, Effect.NONE, meaning)


_LAUNCHER = "horovodrun sets it for programs that read it; hvd.init() asks the node's agent."
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
    _none("GLOO_IFACE", ANY, "", "Set the agents' `interface` option instead."),
    _none("CONTROLLER", ANY, "", "There is neither MPI nor Gloo."),
    _none("CPU_OPERATIONS", ANY, "", "There is neither MPI nor Gloo."),
    Variable(
        "HOROVOD_ELASTIC",
        _FLAG,
        "0",
        Effect.REFUSED,
        "start the program by horovodrun --min-np, or talweg run --loss-policy=continue, with which "
        "the other nodes go on after a loss",
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
    _none("ENABLE_XLA_OPS", _FLAG, "0", "There are no XLA operations."),
    _none("THREAD_AFFINITY", ANY, "", "A rank has no background thread."),
    _none("ADASUM_MPI_CHUNK_SIZE", number(1, 1 << 40), "1073741824", "There is no Adasum."),
    _none("AUTOTUNE", _FLAG, "0", _TUNED),
    _none("AUTOTUNE_LOG", ANY, "", _TUNED),
    _none("AUTOTUNE_WARMUP_SAMPLES", number(0, _MANY), "3", _TUNED),
    _none("AUTOTUNE_STEPS_PER_SAMPLE", number(0, _MANY), "10", _TUNED),
    _none("AUTOTUNE_BAYES_OPT_MAX_SAMPLES", number(0, _MANY), "20", _TUNED),
    _none("AUTOTUNE_GAUSSIAN_PROCESS_NOISE", decimal(0, 1e9), "0.8", _TUNED),
]

_STALL = "The agent says who is waited for and on which tensor, and `talweg status` shows it."
_OTHERS = [
    _none("STALL_CHECK_DISABLE", _FLAG, "0", _STALL),
    _none("STALL_CHECK_TIME_SECONDS", number(0, _MANY), "60", _STALL),
    Variable(
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        number(0, _MANY),
        "0",
        Effect.NONE,
        "Nothing ends a job that waits for a rank which lives. The agent says who is waited for and "
        "on which tensor. Said as a warning.",
        warns=True,
    ),
    _none("GLOO_TIMEOUT_SECONDS", number(0, _MANY), "30", "There is no Gloo."),
    _none(
        "ELASTIC_TIMEOUT", number(0, _MANY), "600", "Give horovodrun's --elastic-timeout instead."
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
    _none("DISABLE_NVTX_RANGES", _FLAG, "0", "There are no NVTX ranges."),
]

TABLE = Table(
    "Horovod",
    [("Places", _PLACES), ("Tuning", _TUNING), ("Others", _OTHERS)],
    ("HOROVOD_",),
)
