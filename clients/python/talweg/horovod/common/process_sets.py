# SPDX-License-Identifier: Apache-2.0
"""Process sets, which say which ranks take part in an operation."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import talweg
from talweg import _client, _joining
from talweg.errors import InvalidArgument, WrongType
from talweg.horovod._environment import TABLE


class ProcessSet:
    """Some ranks of the job. It takes part in operations once it is registered."""

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        ranks = ranks_or_comm
        if not isinstance(ranks, Iterable):
            raise InvalidArgument(
                f"a process set is made of ranks, not of a {type(ranks).__name__}: pass a list of ints"
            )
        self.process_set_id: int | None = None
        self.ranks: list[int] | None = sorted(int(rank) for rank in ranks)
        self.mpi_comm = None  # There is no MPI.
        self._members: talweg.ProcessSet | None = None

    def size(self) -> int | None:
        """The number of its ranks; None before it is registered."""
        return None if self.process_set_id is None else len(self.ranks or [])

    def rank(self) -> int | None:
        """This process's place in it; None before it is registered. Outsiders get ValueError."""
        if self.process_set_id is None:
            return None
        if not self.included():
            raise InvalidArgument(
                f"rank {talweg.rank()} is not in process set {self.process_set_id} of ranks {self.ranks}"
            )
        return (self.ranks or []).index(talweg.rank())

    def included(self) -> bool | None:
        """Whether this process is in it; None before it is registered."""
        return None if self.process_set_id is None else talweg.rank() in (self.ranks or [])

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, "
            f"mpi_comm={self.mpi_comm})"
        )

    __repr__ = __str__


class _Global(ProcessSet):
    """The set of all ranks. Its id is 0."""

    def __init__(self) -> None:
        super().__init__([])
        self.process_set_id = 0
        self.ranks = None

    def size(self) -> int | None:
        return _ready(talweg.size)

    def rank(self) -> int | None:
        return _ready(talweg.rank)

    def included(self) -> bool | None:
        return True


def _ready(ask: Any) -> int:
    if not _client.has_numbers():
        raise InvalidArgument("Horovod has not been initialized; use hvd.init().")
    return int(ask())


global_process_set = _Global()
_registered: dict[int, ProcessSet] = {}
_dynamic = False


def reset(process_sets: Any) -> None:
    """Forgets all sets, and registers those that were given to init()."""
    global _dynamic
    for known in _registered.values():
        known.process_set_id = None
        known._members = None
    _registered.clear()
    _dynamic = _is_dynamic(process_sets) or TABLE.switch(os.environ, "HOROVOD_DYNAMIC_PROCESS_SETS")
    global_process_set.ranks = list(range(talweg.size()))
    if process_sets is None or _is_dynamic(process_sets):
        return
    _require_sets(process_sets)
    for process_set in process_sets:
        _register(process_set)


def recognize(process_sets: Any) -> None:
    """Gives sets that a later init() got the ids of the registered sets with the same ranks.

    Raises InvalidArgument if no set has these ranks.
    """
    if process_sets is None or _is_dynamic(process_sets):
        return
    _require_sets(process_sets)
    for process_set in process_sets:
        alike = [each for each in _registered.values() if each.ranks == process_set.ranks]
        if not alike:
            raise InvalidArgument(
                f"hvd.init() was called before without a process set of ranks {process_set.ranks}: "
                "pass it to the first hvd.init(), or to hvd.add_process_set() if sets are dynamic"
            )
        process_set.process_set_id = alike[0].process_set_id


def ids_and_ranks() -> dict[int, list[int]]:
    """Returns the ranks of all registered sets, by the set's id."""
    known = {0: global_process_set, **_registered}
    return {number: list(each.ranks or []) for number, each in sorted(known.items())}


def _register(process_set: ProcessSet) -> ProcessSet:
    ranks = process_set.ranks or []
    outside = [rank for rank in ranks if not 0 <= rank < talweg.size()]
    if not ranks or outside or len(set(ranks)) != len(ranks):
        raise InvalidArgument(
            f"process set of ranks {ranks}: it must have ranks of 0 to {talweg.size() - 1}, each once"
        )
    for known in [global_process_set, *_registered.values()]:
        if known.ranks == ranks:
            raise InvalidArgument(f"a process set of ranks {ranks} is registered already: {known}")
    number = 1
    while number in _registered:
        number += 1
    process_set.process_set_id = number
    _registered[number] = process_set
    return process_set


def _check_dynamic() -> None:
    if not _dynamic:
        raise InvalidArgument(
            "process sets are not dynamic: call hvd.init(process_sets='dynamic'), or set "
            "HOROVOD_DYNAMIC_PROCESS_SETS=1"
        )


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Registers a set, and returns it when all ranks have called this.

    Raises InvalidArgument if sets are not dynamic, if the ranks pass different sets, or if this set
    is registered or has wrong ranks.
    """
    _check_dynamic()
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    added = _register(process_set)
    told = talweg.all_gather_object(added.ranks, "horovod.add_process_set")
    if any(ranks != added.ranks for ranks in told):
        remove(added)
        raise InvalidArgument(f"ranks add different process sets: {told}")
    return added


def remove(process_set: ProcessSet) -> None:
    assert process_set.process_set_id is not None
    for each in (_registered.pop(process_set.process_set_id), process_set):
        each.process_set_id = None
        each._members = None


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a set, when all ranks have called this.

    Returns False for the global set, and for one that is not registered. Raises InvalidArgument if
    sets are not dynamic.
    """
    _check_dynamic()
    if process_set.process_set_id not in _registered:
        return False
    talweg.barrier()
    remove(process_set)
    return True


def require_set(process_set: Any, operation: str) -> None:
    """Raises WrongType if this is no ProcessSet."""
    if not isinstance(process_set, ProcessSet):
        raise WrongType(
            f"{operation}: process_set is {process_set!r}; it must be a hvd.ProcessSet that is "
            "registered by hvd.init() or hvd.add_process_set()"
        )


def _is_dynamic(process_sets: Any) -> bool:
    return isinstance(process_sets, str) and process_sets.lower() == "dynamic"


def _require_sets(process_sets: Any) -> None:
    is_list = isinstance(process_sets, (list, tuple))
    if not is_list or not all(isinstance(each, ProcessSet) for each in process_sets):
        raise WrongType(
            f"hvd.init(): process_sets is {process_sets!r}; it must be a list of hvd.ProcessSet, or "
            "'dynamic'"
        )


def members_of(process_set: ProcessSet, operation: str) -> talweg.ProcessSet | None:
    """Returns Talweg's set for an operation; None for all ranks.

    Raises InvalidArgument for a set that is not registered, at a rank outside it, and while another
    thread is in join().
    """
    require_set(process_set, operation)
    if _joining.is_serving():
        raise InvalidArgument(
            f"{operation}: another thread of this process is in hvd.join(): call it when join() has "
            "returned"
        )
    if process_set is global_process_set or process_set.process_set_id == 0:
        return None
    if process_set.process_set_id is None:
        raise InvalidArgument(
            f"{operation}: {process_set} is not registered: pass it to hvd.init()"
        )
    known = _registered.get(process_set.process_set_id)
    if known is None or known.ranks != process_set.ranks:
        raise InvalidArgument(
            f"{operation}: there is no process set with id {process_set.process_set_id} and ranks "
            f"{process_set.ranks}: register it by hvd.init() or hvd.add_process_set()"
        )
    if not process_set.included():
        raise InvalidArgument(
            f"{operation}: rank {talweg.rank()} is not in process set {process_set.process_set_id} "
            f"of ranks {process_set.ranks}"
        )
    if process_set._members is None:
        process_set._members = talweg.ProcessSet(process_set.ranks or [])
    return process_set._members
