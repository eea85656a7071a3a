# SPDX-License-Identifier: Apache-2.0
"""What a framework does for the exchange of its gradients."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

import numpy as np

from talweg._client import Client, Handle
from talweg._collectives import objects
from talweg._collectives.process_sets import Group, ProcessSet
from talweg._declaration import Declaration, DType, Op
from talweg.errors import Aborted, InternalError, Timeout

# Forms of gradients. Another number is that of a sparse gradient's sparse dimensions.
UNKNOWN, DENSE = 0, 255

# How long, in seconds, ranks may take to tell their names after these turned out to differ.
_NAMES_S = 10.0


@dataclass(frozen=True)
class Parameter:
    """A parameter whose gradients are averaged."""

    name: str
    nbytes: int
    dtype: Hashable  # The framework's dtype.
    shape: tuple[int, ...] | None = None  # What all ranks have alike; None: they do not compare it.
    # What else they have alike, in words that follow the name and the shape.
    note: str = ""

    def __str__(self) -> str:
        """Returns the text that ranks compare."""
        shape = "" if self.shape is None else f" of shape {list(self.shape)}"
        return f"'{self.name}'{shape}{self.note}"


@dataclass(frozen=True)
class Tensor:
    """The tensor that the gradients of one parameter are pushed as."""

    index: int  # The parameter's index.
    name: str
    dtype: Hashable
    priority: int


class Refusal(Enum):
    """What an exchange refuses. The values are the default error texts."""

    CAME_AGAIN = (
        "the gradient of '{name}' has left and has come again: an earlier backward pass has failed "
        "(then every rank synchronizes)"
    )
    UNDER_WAY = (
        "a backward pass has come to '{name}' while the averages of the pass before are under way: "
        "synchronize between two passes, or let a step have two of them"
    )
    CHANGED = (
        "the gradient of '{name}' was changed while its average was under way: synchronize before "
        "changing gradients"
    )
    ASSIGNED_LATE = (
        "the gradient of '{name}' was assigned after the backward pass, and would be this rank's "
        "alone: assign it before, so that it is averaged"
    )
    FROZEN_HERE = (
        "another rank has a gradient of '{name}', which is frozen here: freeze and unfreeze "
        "parameters at all ranks alike"
    )
    DENSE_ELSEWHERE = (
        "another rank has a dense gradient of '{name}', which has been sparse until now: build its "
        "layer alike at all ranks"
    )


class Adapter(Protocol):
    """What an exchange needs from a framework. A parameter is named by its index.

    A ticket is any value that start() returns: it stands for an open round.
    """

    # Rounds.

    def declare(self, tensors: Sequence[Tensor]) -> None:
        """May declare at once the tensors that are pushed next: one by one, many take seconds."""

    def start(self, tensor: Tensor, has_gradient: bool) -> Any:
        """Starts the average of the parameter's gradient, or of zeros; returns its ticket."""

    def start_kept(self, tensor: Tensor, form: int) -> Any:
        """Starts the average of a parameter that no pass of the step has used: of the gradient that
        it has kept from before, which stays as it is, or else of zeros. `form` is the agreed one.
        """
        if form == DENSE:
            return self.start(tensor, False)
        return self.start_sparse(tensor, False, form)

    def drop(self, ticket: Any) -> None:
        """Notes that the average of a finished round does not count: nobody had a gradient."""

    def start_sparse(self, tensor: Tensor, has_gradient: bool, dimensions: int) -> Any:
        """Does the same as start() for a gradient with so many sparse dimensions. Without a
        gradient, or for one that is dense here, it gives the rows that are not zero.

        Needed if may_be_sparse() is ever True.
        """
        raise InternalError(
            f"'{tensor.name}' is sparse, which its framework does not have: please report this"
        )

    def start_marks(self, name: str, marks: bytearray, priority: int) -> Any:
        """Starts the maximum of each byte. It stands in `marks` when the ticket is finished."""

    def start_sum(self, name: str, values: np.ndarray, priority: int) -> Any:
        """Starts the sum of each number, with the patience of gradients. It stands in `values` when
        the ticket is finished. Only an exchange that leaves late ranks out calls it.
        """

    def finish(self, ticket: Any) -> Any:
        """Waits for a round; returns the average."""

    def is_there(self, ticket: Any) -> bool:
        """Whether finish() would return without waiting."""

    def comes_in_order(self) -> bool:
        """Whether averages arrive in the order in which their gradients left."""

    def gather(self, number: int, name: str) -> list[int]:
        """Returns the numbers of all ranks, in rank order."""

    def gather_names(self, names: Sequence[str], name: str) -> dict[int, Sequence[str]]:
        """Returns the names of all ranks, by rank; leaves out a rank that does not tell its own in
        time.
        """

    def give_no_loss(self) -> None:
        """Takes part in the round that averages the losses of ranks which have a batch."""

    def priority_of(self, index: int) -> int:
        """Returns the priority of the parameter's rounds. Larger ones overtake others."""

    def suffix_of(self, index: int) -> str:
        """Returns what the name of the parameter's tensor ends with."""
        return ""

    def began_apart(self) -> bool:
        """Whether some ranks have come to a running job. These have got the others' state."""
        return False

    # Parameters and their gradients.

    def may_be_sparse(self, index: int) -> bool:
        """Whether the parameter's gradients may be sparse. Every rank returns the same."""
        return False

    def form_of(self, index: int) -> int:
        """Returns the form of the gradient that the parameter has."""
        return DENSE

    def put(self, index: int, average: Any) -> None:
        """Puts the average in the gradient's place."""

    def dtype_of(self, index: int) -> Hashable:
        """Returns the parameter's current dtype: a model's dtype may be changed."""

    def is_trainable(self, index: int) -> bool:
        """Whether the parameter has gradients now: a parameter may be frozen and thawed."""

    def watch(self, index: int) -> None:
        """From now on tells the exchange of the parameter's gradients."""

    def watch_pass(self) -> None:
        """Tells the exchange when the pass that begins ends. If this raises, none begins."""

    def forget_pass(self) -> None:
        """Notes that no pass runs: the end of a pass that has failed is never told."""

    def text_of(self, refusal: Refusal) -> str:
        """Returns the error text for users, with {name} for the parameter's name."""

    # For users who assign gradients.

    def is_new(self, index: int) -> bool:
        """Whether the parameter's gradient has changed since note_gradients() was called."""

    def is_assigned(self, index: int) -> bool:
        """Whether the parameter has a gradient, and had none when note_gradients() was called."""

    def is_as_pushed(self, index: int, ticket: Any) -> bool:
        """Whether the parameter's gradient is still the one that the ticket was given for."""

    def note_gradients(self) -> None:
        """Notes all gradients that are there as seen."""


class Pushed(NamedTuple):
    """The tickets of a ClientAdapter."""

    handle: Handle
    gradient: Any = None  # The gradient as it was pushed, if there was one.
    version: Any = None  # The framework's count of the gradient's changes.
    undo: Callable[[], None] | None = None  # To be called if the average does not count.


class ClientAdapter(Adapter):
    """Rounds of a Client, for a framework that hands gradients over and takes averages back.

    A subclass adds start(), put() and dtype_of(). If gradients may be sparse, parameters are
    thawed, gradients are assigned or passes are watched, it overrides the methods for these, too.
    """

    def __init__(self, client: Client, process_set: ProcessSet | None = None) -> None:
        """The rounds are among the ranks of `process_set`, or among all ranks."""
        self.client = client
        self.process_set = process_set
        self._group: Group | None = Group(client, process_set, "gradients")

    @property
    def group(self) -> Group:
        """The ranks that the rounds are among."""
        if self._group is None:
            self._group = Group(self.client, self.process_set, "gradients")
        return self._group

    def use(self, client: Client) -> None:
        """Goes on with `client`, the process's new one. The open rounds of the old one are lost."""
        self.client, self._group = client, None

    def declare(self, tensors: Sequence[Tensor]) -> None:
        pass

    def start_marks(self, name: str, marks: bytearray, priority: int) -> Pushed:
        array = np.frombuffer(marks, np.uint8)
        declaration = Declaration(DType.U8, array.size, Op.MAX, 0, self.group.listed)
        address = array.ctypes.data
        name += self.group.suffix
        return Pushed(self.client.push(name, declaration, address, address, priority, keep=array))

    def start_sum(self, name: str, values: np.ndarray, priority: int) -> Pushed:
        raise NotImplementedError(name)

    def finish(self, ticket: Pushed) -> Any:
        return self.client.synchronize(ticket.handle)

    def drop(self, ticket: Pushed) -> None:
        if ticket.undo is not None:
            ticket.undo()

    def is_there(self, ticket: Pushed) -> bool:
        return self.client.poll(ticket.handle)

    def comes_in_order(self) -> bool:
        # If the node's ranks sum, the first rank to come sums what is there while the others push.
        return self.client.ranks_sum

    def gather(self, number: int, name: str) -> list[int]:
        return objects.all_gather_object(self.client, number, name, self.process_set)

    def gather_names(self, names: Sequence[str], name: str) -> dict[int, Sequence[str]]:
        try:
            told = objects.all_gather_object(
                self.client, list(names), name, self.process_set, _NAMES_S
            )
        except (Timeout, Aborted):  # A rank of a job that goes on needs no names.
            return {}
        return dict(zip(self.group.ranks, told))

    def give_no_loss(self) -> None:
        raise NotImplementedError

    def priority_of(self, index: int) -> int:
        """The layers nearest the input are needed first by the next forward pass."""
        return -index

    def is_trainable(self, index: int) -> bool:
        return True

    def watch(self, index: int) -> None:
        pass

    def watch_pass(self) -> None:
        pass

    def forget_pass(self) -> None:
        pass

    def text_of(self, refusal: Refusal) -> str:
        return refusal.value

    def is_new(self, index: int) -> bool:
        return False

    def is_assigned(self, index: int) -> bool:
        return False

    def is_as_pushed(self, index: int, ticket: Pushed) -> bool:
        return True

    def note_gradients(self) -> None:
        pass
