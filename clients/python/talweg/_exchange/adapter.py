# SPDX-License-Identifier: Apache-2.0
"""What a framework does for the exchange of its gradients."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

import numpy as np

from talweg._client import Client, Handle
from talweg._collectives import objects
from talweg._collectives.process_sets import Group, ProcessSet
from talweg._declaration import Declaration, DType, Op
from talweg.errors import Aborted, Timeout

# How long a rank's names may take that differ from others', in seconds.
_NAMES_S = 10.0


@dataclass(frozen=True)
class Parameter:
    """One whose gradients are averaged."""

    name: str
    nbytes: int
    dtype: Hashable  # As the framework has it.
    shape: tuple[int, ...] | None = None  # What all ranks have alike; None: they do not compare it.

    def __str__(self) -> str:
        """What ranks compare."""
        text = f"'{self.name}'"
        return text if self.shape is None else f"{text} of shape {list(self.shape)}"


@dataclass(frozen=True)
class Tensor:
    """What the gradients of one parameter are pushed as."""

    index: int  # The parameter's.
    name: str
    dtype: Hashable
    priority: int


class Refusal(Enum):
    """What an exchange refuses, by default in these words."""

    CAME_AGAIN = (
        "the gradient of '{name}' has left and has come again: an earlier backward pass has failed "
        "(then every rank synchronizes)"
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


class Adapter(Protocol):
    """What an exchange asks of a framework. A parameter goes by its index, in their order.

    A ticket is whatever start() returns: it stands for a round that is open.
    """

    # Rounds.

    def declare(self, tensors: Sequence[Tensor]) -> None:
        """May declare in one go what is pushed next: one by one, many take seconds."""

    def start(self, tensor: Tensor, has_gradient: bool) -> Any:
        """Starts the average of the parameter's gradient, or of zeros; returns its ticket."""

    def start_marks(self, name: str, marks: bytearray, priority: int) -> Any:
        """Starts the maximum of each byte, which is there when its ticket is finished."""

    def finish(self, ticket: Any) -> Any:
        """Waits for a round; returns the average."""

    def is_there(self, ticket: Any) -> bool:
        """Whether finish() would not wait."""

    def comes_in_order(self) -> bool:
        """Whether averages are there in the order in which their gradients left."""

    def gather(self, number: int, name: str) -> list[int]:
        """The numbers of all ranks, in rank order."""

    def gather_names(self, names: Sequence[str], name: str) -> dict[int, Sequence[str]]:
        """The names of all ranks, by rank; none where a rank does not say its own in time."""

    def priority_of(self, index: int) -> int:
        """A larger one's rounds overtake others."""

    # Parameters and their gradients.

    def put(self, index: int, average: Any) -> None:
        """The average takes the gradient's place."""

    def dtype_of(self, index: int) -> Hashable:
        """By now: a model's may be changed."""

    def is_trainable(self, index: int) -> bool:
        """Whether it has gradients by now; a parameter may be frozen and thawed."""

    def watch(self, index: int) -> None:
        """From now on the exchange is to be told of its gradients."""

    def watch_pass(self) -> None:
        """A pass begins: the exchange is to be told when it ends. There is none if this raises."""

    def forget_pass(self) -> None:
        """No pass runs any more; the end of one that has failed was never told."""

    def text_of(self, refusal: Refusal) -> str:
        """What its users are told, with {name} for the parameter's."""

    # For users who assign gradients.

    def is_new(self, index: int) -> bool:
        """Whether its gradient is not as it was when note_gradients() was called."""

    def is_assigned(self, index: int) -> bool:
        """Whether there is a gradient that was not there when note_gradients() was called."""

    def is_as_pushed(self, index: int, ticket: Any) -> bool:
        """Whether its gradient is still the one that the ticket was given for."""

    def note_gradients(self) -> None:
        """Takes all gradients that are there for seen."""


class Pushed(NamedTuple):
    """The tickets of a ClientAdapter."""

    handle: Handle
    gradient: Any = None  # As it was pushed, if there was one.
    version: Any = None  # The framework's count of its changes.


class ClientAdapter(Adapter):
    """Rounds of a Client, for a framework that hands gradients over and takes averages back.

    Such a one adds start(), put() and dtype_of(). Where parameters are thawed, gradients are
    assigned or passes are watched, it says so in the others.
    """

    def __init__(self, client: Client, process_set: ProcessSet | None = None) -> None:
        """`process_set` says among which ranks the rounds are, unless all."""
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
        """`client` is the process's now; what the one before had under way is gone."""
        self.client, self._group = client, None

    def declare(self, tensors: Sequence[Tensor]) -> None:
        pass

    def start_marks(self, name: str, marks: bytearray, priority: int) -> Pushed:
        array = np.frombuffer(marks, np.uint8)
        declaration = Declaration(DType.U8, array.size, Op.MAX, 0, self.group.listed)
        address = array.ctypes.data
        name += self.group.suffix
        return Pushed(self.client.push(name, declaration, address, address, priority, keep=array))

    def finish(self, ticket: Pushed) -> Any:
        return self.client.synchronize(ticket.handle)

    def is_there(self, ticket: Pushed) -> bool:
        return self.client.poll(ticket.handle)

    def comes_in_order(self) -> bool:
        # Where the node's ranks sum, who has come first sums what is there while the others push.
        return self.client.ranks_sum

    def gather(self, number: int, name: str) -> list[int]:
        return objects.all_gather_object(self.client, number, name, self.process_set)

    def gather_names(self, names: Sequence[str], name: str) -> dict[int, Sequence[str]]:
        try:
            told = objects.all_gather_object(
                self.client, list(names), name, self.process_set, _NAMES_S
            )
        except (Timeout, Aborted):  # A rank of a job that goes on asks for nothing.
            return {}
        return dict(zip(self.group.ranks, told))

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
