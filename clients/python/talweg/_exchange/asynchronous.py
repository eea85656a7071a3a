# SPDX-License-Identifier: Apache-2.0
"""Steps that wait for nobody, of any framework: docs/asynchronous.md."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import sys
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from talweg import _client
from talweg._client import Client
from talweg._collectives import objects
from talweg._collectives.process_sets import Group, ProcessSet
from talweg._digest import Digest
from talweg._exchange.differences import first_that_differ, raise_names
from talweg._exchange.meeting_ranks import JobRanks
from talweg._exchange.meetings import Meetings, Phase
from talweg.errors import InvalidArgument, Mismatch


class Parameters(Protocol):
    """What the steps of one rank change. A framework's adapter has it."""

    def zeros(self) -> np.ndarray:
        """Returns new zeros of f32 or f64, in which each parameter has its place."""

    def texts(self) -> list[str]:
        """Returns what ranks must have alike: each parameter's name, dtype and shape."""

    def pieces(self) -> list[np.ndarray]:
        """Returns each parameter's values, as bytes. They may be a copy."""

    def put(self, place: int, data: np.ndarray) -> None:
        """Gives a parameter these values. `data`: what pieces() has returned for it, overwritten."""

    def begin(self, shared: np.ndarray) -> None:
        """Writes the values into `shared`, and counts how far they move from now on."""

    def merge(self, shared: np.ndarray, movement: np.ndarray) -> None:
        """See meetings.Merge."""

    def fetch(self) -> None:
        """Is called before flush() changes values, from outside a step."""

    def give_back(self) -> None:
        """Is called when flush() has changed values."""


_numbers = itertools.count()
# Those whose ranks meet. The program may have dropped its optimizer: other ranks wait for its end.
_meeting: set[AsynchronousSteps] = set()
# Clients that call _end_all().
_closing: weakref.WeakSet[Client] = weakref.WeakSet()


def _end_all() -> None:
    """Is called before a client is closed. All ranks have made their optimizers in one order."""
    for steps in sorted(_meeting, key=lambda each: each.number):
        steps.end()
    _meeting.clear()


def _end_before_closing(client: Client) -> None:
    if client not in _closing:
        _closing.add(client)
        client.call_before_closing(_end_all)


class AsynchronousSteps:
    """The steps of one rank's parameters, and the meetings that tell other ranks. One thread at a
    time. `caller` and `name` begin each error's text.
    """

    def __init__(
        self,
        caller: str,
        parameters: Parameters,
        ahead: int,
        lead: int | None,
        name: str,
        process_set: ProcessSet | None,
    ) -> None:
        self.number = next(_numbers)
        self._parameters = parameters
        self._name, self._process_set = name, process_set
        self._title = f"{caller} '{name}'"
        self._arguments = f"ahead={ahead}, lead={lead}"
        self._client = _client.current()
        self._ranks = JobRanks(self._client, name, process_set, self._title)
        self._meetings = Meetings(self._ranks, parameters.zeros(), ahead, lead)
        self._resumed = 0.0  # When the program's own part of a step has begun.
        _end_before_closing(self._client)
        _client.call_when_replaced(self._use)

    def _use(self, client: Client) -> None:
        """Goes on with `client`, the process's new one."""
        self._client = client
        self._ranks.use(client)
        _end_before_closing(client)

    def end(self) -> None:
        """Meets the others until all have ended, unless this rank ends by an error."""
        has_failed = sys.exc_info()[0] is not None or getattr(sys, "last_value", None) is not None
        if self._meetings.phase is Phase.MEETING and not has_failed:
            self.flush()

    @property
    def is_resting(self) -> bool:
        """Whether the next step begins with an agreement."""
        return self._meetings.phase in (Phase.RESTING, Phase.FAILED)

    def require_resting(self, call: str) -> None:
        """Raises InvalidArgument between a first step and flush()."""
        if not self.is_resting:
            raise InvalidArgument(
                f"{self._title}: {call} while ranks meet, which would be a movement of this rank: "
                "call flush() at all ranks before"
            )

    def before_step(self) -> None:
        with self._kept_while_meeting():
            self._meetings.require()
            if self._meetings.phase is Phase.RESTING and self._ranks.size > 1:
                self._agree()
                self._resumed = time.monotonic()
                self._meetings.start()

    def after_step(self) -> None:
        if self._ranks.size > 1:
            with self._kept_while_meeting():
                self._meetings.step(self._parameters.merge, time.monotonic() - self._resumed)
            self._resumed = time.monotonic()

    def flush(self) -> None:
        """Returns when all ranks have called it. Then they have equal parameters."""
        if self._ranks.size > 1:
            self._parameters.fetch()
            self.before_step()
            with self._kept_while_meeting():
                self._meetings.leave(self._parameters.merge)
            self._parameters.give_back()

    @contextlib.contextmanager
    def _kept_while_meeting(self) -> Iterator[None]:
        try:
            yield
        finally:
            if self.is_resting:
                _meeting.discard(self)
            else:
                _meeting.add(self)

    # ----- The agreement -----

    def _agree(self) -> None:
        """Makes the global parameters those of the lowest rank, and each rank's, too."""
        texts = [self._arguments, *self._parameters.texts()]
        having = hashlib.blake2b("\0".join(texts).encode()).hexdigest()
        values = Digest()
        for data in self._parameters.pieces():
            values.update(data)
        told = self._tell((having, values.value), "agree")
        if len({having for _, (having, _) in told}) > 1:
            self._raise_difference(self._tell(texts, "names"))
        if len({value for _, (_, value) in told}) > 1:
            self._broadcast(told[0][0])
        self._parameters.begin(self._meetings.shared)

    def _tell(self, value: Any, name: str) -> list[tuple[int, Any]]:
        """Returns the values of all ranks, each with its rank."""
        full = f"{self._name}.{name}"
        told = objects.all_gather_object(self._client, value, full, self._process_set)
        return list(zip(Group(self._client, self._process_set, self._title).ranks, told))

    def _broadcast(self, root: int) -> None:
        pieces = self._parameters.pieces()
        length = sum(map(len, pieces))
        full = f"{self._name}.begin.{root}"
        stream = objects.ByteStream(self._client, root, full, length, self._process_set)
        for place, data in enumerate(pieces):
            stream.carry(data)
            if not stream.is_root:
                self._parameters.put(place, data)

    def _raise_difference(self, told: Sequence[tuple[int, list[str]]]) -> None:
        """Raises Mismatch for the first thing that differs in what ranks have."""
        arguments = [(rank, texts[0]) for rank, texts in told]
        if len({each for _, each in arguments}) > 1:
            (one, here), (other, there) = first_that_differ(arguments)
            raise Mismatch(
                f"{self._title}: rank {one} has {here}, and rank {other} has {there}: give all ranks "
                "the same arguments"
            )
        raise_names(self._title, told)


def require_whole(caller: str, ahead: int, lead: int | None) -> None:
    """Raises InvalidArgument unless both are numbers of steps."""
    for name, value in (("ahead", ahead), ("lead", lead)):
        if name == "lead" and value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            wanted = "a whole number of steps, 0 or more"
            raise InvalidArgument(f"{caller}: {name} is {value!r}; it must be {wanted}")
