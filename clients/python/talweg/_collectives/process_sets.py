# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks that call collectives among themselves."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from talweg import _client
from talweg._counted import counted
from talweg._library.native_arguments import (
    NAME_BYTES_MAX,
    encode,
    name_for_tensors,
    whole,
    whole_numbers,
)
from talweg.errors import InvalidArgument

# A longer list of ranks is a digest in the names of tensors, which have at most 1024 bytes.
_LISTED_MAX = 16


class ProcessSet:
    """Some ranks of the job, for `process_set=` of a collective.

    Sets may overlap, in any number, and may be made before or after init(). All ranks of a set make
    the same set; the other ranks need not make it. The order of `ranks` does not matter: a set has
    its ranks in ascending order. `root_rank` of a collective is a rank of the job, also with a set.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        wanted = "a list of whole numbers, as in ProcessSet([0, 1])"
        given = whole_numbers("ProcessSet: ranks", ranks, wanted)
        self.ranks: tuple[int, ...] = tuple(sorted(given))
        if not given:
            raise InvalidArgument("a ProcessSet has one rank or more: ProcessSet([0, 1])")
        if len(set(given)) < len(given):
            raise InvalidArgument(f"ProcessSet({given}) names a rank twice: name each rank once")
        if self.ranks[0] < 0:
            raise InvalidArgument(f"ProcessSet({given}) has a rank below 0: ranks are 0, 1, ...")
        listed = ",".join(str(rank) for rank in self.ranks)
        if len(given) > _LISTED_MAX:
            digest = hashlib.sha256(listed.encode()).hexdigest()[:16]
            listed = f"{len(given)} ranks {digest}"
        # Tells apart tensors of one name in different sets.
        self.suffix = f"@{listed}"

    def size(self) -> int:
        """The number of ranks in the set."""
        return len(self.ranks)

    def rank(self) -> int:
        """This process's place in the set: 0 to size() - 1. Raises InvalidArgument outside it."""
        return self.ranks.index(self.require(_client.current(), "rank()"))

    def included(self) -> bool:
        """Whether this process is in the set."""
        return _client.current().rank in self.ranks

    def require(self, client: _client.Client, operation: str) -> int:
        """Returns this process's rank in the job. Raises InvalidArgument if it may not call
        `operation`.
        """
        if self.ranks[-1] >= client.size:
            since = (
                ", which have got new numbers in end_step(): make a set of these"
                if client.connection.view_suffix
                else ""
            )
            raise InvalidArgument(
                f"{operation}: {self} has rank {self.ranks[-1]}, but the job has {client.size} "
                f"ranks (0 to {client.size - 1}){since}"
            )
        if client.rank not in self.ranks:
            raise InvalidArgument(
                f"{operation}: rank {client.rank} is not in {self}: only the ranks of a set call "
                "its operations; ask included() first"
            )
        return client.rank

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProcessSet) and self.ranks == other.ranks

    def __hash__(self) -> int:
        return hash(self.ranks)

    def __repr__(self) -> str:
        return f"ProcessSet({list(self.ranks)})"


class Group:
    """The ranks of one call: those of a set, or all of the job."""

    def __init__(
        self, client: _client.Client, process_set: ProcessSet | None, operation: str
    ) -> None:
        if process_set is not None and not isinstance(process_set, ProcessSet):
            raise InvalidArgument(
                f"{operation}: process_set is {process_set!r}; it must be a talweg.ProcessSet"
            )
        self.listed: tuple[int, ...] = ()
        self.suffix = ""
        self.ranks: tuple[int, ...] | range = range(client.size)
        if process_set is not None:
            process_set.require(client, operation)
            if process_set.size() < client.size:
                self.ranks = self.listed = process_set.ranks
                self.suffix = process_set.suffix
        self.size = len(self.ranks)
        self.place = self.ranks.index(client.rank)

    def name_of(self, name: str) -> str:
        """Returns the name in the job of the tensor that the program calls `name` in this group. It
        is the name, then the suffix. A name that leaves no room for the suffix is cut.
        """
        if not self.suffix or not isinstance(name, str):
            return f"{name}{self.suffix}"
        nbytes = len(encode(name))
        is_cut = NAME_BYTES_MAX - len(self.suffix) < nbytes <= NAME_BYTES_MAX
        return f"{name_for_tensors(name) if is_cut else name}{self.suffix}"

    def require_root(self, root_rank: int, operation: str) -> int:
        """Returns the root's place in the group."""
        root = whole(f"{operation}: root_rank", root_rank)
        if root in self.ranks:
            return self.ranks.index(root)
        where = (
            f"ProcessSet({list(self.listed)})"
            if self.listed
            else f"the job, which has {counted(self.size, 'rank')} (0 to {self.size - 1})"
        )
        raise InvalidArgument(
            f"{operation}: root_rank is {root_rank!r}, which is not in {where}: give a rank's number "
            "in the job"
        )
