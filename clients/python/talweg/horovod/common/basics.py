# SPDX-License-Identifier: Apache-2.0
"""init(), shutdown(), the ranks, and what Horovod was built with, for all frameworks."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import talweg
from talweg import _at_exit, _client, errors
from talweg._call_site import warn
from talweg._client import session
from talweg._compat import daemons
from talweg._compat.environment import logger
from talweg._declaration import Op
from talweg.errors import InvalidArgument, Unsupported
from talweg.horovod._environment import LOG_LEVELS, TABLE, agent_variables, says
from talweg.horovod.common import joining
from talweg.horovod.common import process_sets as sets
from talweg.horovod.common.exceptions import HorovodInternalError
from talweg.horovod.common.timeline import Timeline

Average, Sum, Adasum, Min, Max, Product = range(6)
_OPS = {Average: Op.AVERAGE, Sum: Op.SUM, Min: Op.MIN, Max: Op.MAX, Product: Op.PRODUCT}

_Result = TypeVar("_Result")


@dataclass
class _Life:
    """What this process knows of its job after init()."""

    # The number of ranks of each node. None: nodes may come and go.
    fixed_nodes: list[int] | None
    records: bool = False
    timeline: Timeline | None = None  # Only rank 0 has one.


_life: _Life | None = None


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins the job of the node's agent. A process that no launcher has started is alone.

    `comm` is None or a list of all ranks; for a subset use process sets. `process_sets` is a list
    of ProcessSet, the same at every rank, or "dynamic". A second call forgets handles, and its sets
    are the registered ones with the same ranks; it raises InvalidArgument if there are none.
    """
    global _life
    session.forget_handles()
    if talweg.is_initialized() and _life is not None:
        sets.recognize(process_sets)
        return
    TABLE.check(os.environ)
    level = LOG_LEVELS[TABLE.value(os.environ, "HOROVOD_LOG_LEVEL").lower()]
    hides_time = TABLE.switch(os.environ, "HOROVOD_LOG_HIDE_TIME")
    log = logger("horovod", level, hides_time)
    if says(os.environ):
        TABLE.say(os.environ, log)
    _tell_agent(log)
    talweg.init(timeout_s=float(TABLE.number(os.environ, "HOROVOD_START_TIMEOUT")))
    _check_comm(comm)
    _check_elastic()
    nodes: list[int] | None = None
    if not _client.current().nodes_change:
        sizes = talweg.all_gather_object(talweg.local_size(), "horovod.places")
        nodes = []
        while sum(nodes) < len(sizes):
            nodes.append(sizes[sum(nodes)])
    else:
        _tell_numbers()
    sets.reset(process_sets)  # Raises if they are wrong; a later call may pass the right ones.
    _life = _Life(nodes)
    joining.begin()
    _begin_timeline()
    _at_exit.register(shutdown)


def _tell_agent(log: logging.Logger) -> None:
    """Sets the variables for an agent that init() starts. Warns if the agent already runs without
    them.
    """
    if "TALWEG_AGENT_SOCKET" not in os.environ:
        daemons.take_back()
        daemons.give(agent_variables(os.environ))
    elif says(os.environ):
        told = agent_variables(os.environ)
        daemons.warn_of_running_agent(log, ["HOROVOD_STALL_*"], told, "horovodrun")


def _tell_numbers() -> None:
    """Sets variables for programs that read them. horovodrun did not know the ranks' numbers."""
    if "HOROVOD_LOCAL_RANK" in os.environ:
        os.environ["HOROVOD_RANK"] = str(talweg.rank())
        os.environ["HOROVOD_SIZE"] = str(talweg.size())


def _check_elastic() -> None:
    """Raises Unsupported for a program that counts on nodes which come and go, where none do."""
    if TABLE.switch(os.environ, "HOROVOD_ELASTIC") and not _client.current().nodes_change:
        raise Unsupported(
            f"HOROVOD_ELASTIC={os.environ['HOROVOD_ELASTIC']}, and this job's nodes stay: start the "
            "program by horovodrun --min-np, or talweg run --loss-policy=continue, with which the "
            "other nodes go on after a loss"
        )


def _check_comm(comm: Any) -> None:
    if comm is None:
        return
    if not isinstance(comm, (list, tuple)):
        raise Unsupported(
            f"init(comm={type(comm).__name__}): there is no MPI; leave comm out, or pass a list of ranks"
        )
    if sorted(comm) != list(range(talweg.size())):
        raise Unsupported(
            f"init(comm={list(comm)}): the job has ranks 0 to {talweg.size() - 1}; for some of them "
            "pass process_sets=[hvd.ProcessSet(ranks)]"
        )


def shutdown() -> None:
    """Leaves the job cleanly. Open operations fail. init() works again afterwards."""
    global _life
    if _life is not None and _life.records and talweg.is_initialized():
        stop_timeline()
    _life = None
    talweg.shutdown()
    session.forget()


def is_initialized() -> bool:
    """Whether init() was called, and shutdown() was not called after it.

    True in a fork as well, such as a DataLoader's worker: it knows its rank, and can make no calls.
    """
    return _client.has_numbers() and _life is not None


def _ready() -> _Life:
    if _life is None or not _client.has_numbers():
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    return _life


def rank() -> int:
    """This process's rank in the job."""
    _ready()
    return talweg.rank()


def size() -> int:
    """The number of ranks in the job."""
    _ready()
    return talweg.size()


def local_rank() -> int:
    """This process's rank on its node."""
    _ready()
    return talweg.local_rank()


def local_size() -> int:
    """The number of ranks on this node."""
    _ready()
    return talweg.local_size()


def _nodes() -> list[range]:
    """Returns the ranks of each node."""
    nodes = _ready().fixed_nodes
    if nodes is None:
        return [member.ranks for member in talweg.members()]
    ends = list(itertools.accumulate(nodes))
    return [range(end - count, end) for count, end in zip(nodes, ends)]


def _alike() -> list[range]:
    """Returns the ranks of each node that has a rank with this local rank."""
    return [ranks for ranks in _nodes() if len(ranks) > talweg.local_rank()]


def cross_rank() -> int:
    """This node's number among the nodes that have a rank with this local rank."""
    return next(place for place, ranks in enumerate(_alike()) if talweg.rank() in ranks)


def cross_size() -> int:
    """The number of nodes that have a rank with this local rank."""
    return len(_alike())


def is_homogeneous() -> bool:
    """Whether all nodes have equally many ranks."""
    return len({len(ranks) for ranks in _nodes()}) == 1


def mpi_threads_supported() -> bool:
    """Raises ValueError, as a Horovod without MPI does."""
    raise ValueError("Horovod MPI is not enabled; Talweg has no MPI.")


def mpi_enabled() -> bool:
    return False


def mpi_built() -> bool:
    return False


def gloo_enabled() -> bool:
    """Returns True: jobs run without MPI, as those of a Horovod with Gloo."""
    return True


def gloo_built() -> bool:
    return True


def nccl_built() -> int:
    return 0


def ddl_built() -> bool:
    return False


def ccl_built() -> bool:
    return False


def cuda_built() -> bool:
    return False


def rocm_built() -> bool:
    return False


def is_adasum(op: int | None) -> bool:
    return op == Adasum and not isinstance(op, bool)


def op_of(op: int | None, average: bool | None, operation: str) -> Op:
    """Returns Talweg's operation for Horovod's number.

    Raises NotImplementedError for Adasum, which is none, and ValueError for an unknown number.
    """
    wanted = Average if op is None else op
    if op is None and average is not None:
        wanted = Average if average else Sum
    if is_adasum(wanted):
        raise NotImplementedError(
            f"{operation}: Adasum is not offered here: use op=hvd.Average, and scale the learning "
            "rate"
        )
    if isinstance(wanted, bool) or wanted not in _OPS:
        names = "Average, Sum, Min, Max, Product"
        raise InvalidArgument(f"{operation}: op is {wanted!r}; it must be one of hvd.{names}")
    return _OPS[wanted]


def resolve(op: int | None, average: bool | None) -> int | None:
    """Applies Horovod's rule for the two arguments: one of them at most. `average` is deprecated.

    Raises ValueError if both are given.
    """
    if op is not None and average is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    if average is not None:
        warn(
            "Parameter `average` has been replaced with `op` and will be removed",
            DeprecationWarning,
        )
        return Average if average else Sum
    return Average if op is None else op


def internal(call: Callable[[], _Result]) -> _Result:
    """Returns the result of `call`. Raises the caller's mistakes as ValueError, and all other
    errors of Talweg as HorovodInternalError.
    """
    try:
        return call()
    except errors.NotInitialized:
        raise HorovodInternalError(
            "Horovod has not been initialized, or has been shut down; use hvd.init()."
        ) from None
    except InvalidArgument:
        raise
    except errors.TalwegError as failure:
        raise HorovodInternalError(str(failure)) from failure


# ----- timeline -----


def _begin_timeline() -> None:
    path = TABLE.value(os.environ, "HOROVOD_TIMELINE")
    if path and path != "DYNAMIC":
        start_timeline(path, TABLE.switch(os.environ, "HOROVOD_TIMELINE_MARK_CYCLES"))


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Makes rank 0 write its operations to the file, from now on until stop_timeline().

    `mark_cycles` also marks when an operation begins while no other is under way. Raises ValueError
    if HOROVOD_TIMELINE is not set.
    """
    life = _ready()
    if not TABLE.value(os.environ, "HOROVOD_TIMELINE"):
        raise ValueError(
            "Set HOROVOD_TIMELINE=DYNAMIC (or a file) before hvd.init() to start a timeline."
        )
    if life.records:
        stop_timeline()
    if talweg.rank() == 0:
        life.timeline = Timeline(_client.current(), file_path, mark_cycles)
    life.records = True


def stop_timeline() -> None:
    """Ends the timeline; after that the file is JSON. Raises ValueError if there is no timeline."""
    life = _ready()
    if not life.records:
        raise ValueError("No timeline is being recorded; call hvd.start_timeline() first.")
    life.records = False
    timeline, life.timeline = life.timeline, None
    if timeline is not None:
        timeline.end()


# ----- For programs that know Horovod's own code -----


def _get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """Returns the ranks of all registered process sets, by the set's id."""
    _ready()
    return sets.ids_and_ranks()
