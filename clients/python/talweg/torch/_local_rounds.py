# SPDX-License-Identifier: Apache-2.0
"""The rounds of local steps: docs/local_steps.md. Each carries a digest of what ranks must share."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from talweg import _interrupts
from talweg._client import Client, Handle
from talweg._client.handles import PushedRound
from talweg._collectives import objects, rounds
from talweg._collectives.process_sets import Group, ProcessSet
from talweg._declaration import Declaration, DType, Op
from talweg._exchange.differences import first_that_differ
from talweg.errors import Aborted, Busy, Mismatch, TalwegError, Timeout
from talweg.torch._local_parts import Others, Part
from talweg.torch._local_rule import Rule
from talweg.torch._tensors import finish, start

# How long, in seconds, ranks may take to say what they have after it turned out to differ.
_TELL_S = 10.0
_DIGEST_BYTES = 8


@dataclass(eq=False)
class Round:
    """An open round, and what to do with its result. Whoever drops it leaves the round, which the
    next one of its name then takes (_client/left_rounds.py).
    """

    client: Client
    handle: Handle
    # Is called with this object, and holds no reference to it: a round is left without delay.
    then: Callable[[Any], None] | None = None

    def finish(self) -> None:
        """Returns when the result is there. An interrupted call can be repeated."""
        if not self.handle.done:
            finish(self.client, self.handle)
        if self.then is not None:
            self.then(self)


@dataclass(eq=False)
class Comparison(Round):
    """A round that compares."""

    layouts_differ: bool = False  # Set by finish().


def _digest(text: str) -> bytes:
    digest = hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()
    return digest + bytes(255 - byte for byte in digest)


def _are_alike(lanes: np.ndarray) -> bool:
    """Whether all ranks have given the same digest. The maximum of the lanes shows each byte's
    largest and smallest value.
    """
    pairs = zip(lanes[:_DIGEST_BYTES].tolist(), lanes[_DIGEST_BYTES:].tolist())
    return all(largest + smallest == 255 for largest, smallest in pairs)


@dataclass(frozen=True)
class _Begun:
    """The last round of a name that this rank has begun."""

    tensor: int
    round: int
    count: int
    dtype: str  # The name that torch has for it. Empty: a comparison.


class Rounds:
    """The rounds among the ranks that synchronise. `caller` and `name` begin each error's text."""

    def __init__(
        self, client: Client, caller: str, name: str, process_set: ProcessSet | None
    ) -> None:
        self._name = name
        self.use(client)
        self.process_set = process_set
        self.title = f"{caller} '{name}'"

    def use(self, client: Client) -> None:
        self.client = client
        self._mismatches = 0
        self._begun: dict[str, _Begun] = {}

    @property
    def name(self) -> str:
        """What the names of rounds begin with. It changes after a mismatch."""
        return f"{self._name}.apart{self._mismatches}" if self._mismatches else self._name

    @property
    def group(self) -> Group:
        return Group(self.client, self.process_set, self.title)

    def average(self, tensor: torch.Tensor, name: str) -> Round:
        """Starts the average of a tensor, in place."""
        # The number of elements changes when a parameter is thawed.
        dtype = str(tensor.dtype).replace("torch.", "")
        return self._average(tensor, f"{self.name}.{name}.{tensor.numel()}.{dtype}", dtype)

    def _average(self, tensor: torch.Tensor, full: str, dtype: str) -> Round:
        of = (Op.AVERAGE, full, 0, 0, self.process_set)
        rounds.before_call(self.client, full, self.process_set)
        try:
            handle = start(self.client, tensor, tensor, *of, says_shape=False)
        except Busy as error:
            raise self._explained(error) from None
        self._note(full, handle, tensor.numel(), dtype)
        return Round(self.client, handle)

    def _note(self, full: str, handle: Handle, count: int, dtype: str = "") -> None:
        if isinstance(handle, PushedRound):
            self._begun[full] = _Begun(handle.tensor, handle.round, count, dtype)

    @staticmethod
    def _explained(error: Busy) -> Busy:
        return Busy(
            f"{error}. If this process has several optimizers with local steps, give each a `name`"
        )

    def tell(self, value: Any, name: str, timeout_s: float | None = None) -> list[tuple[int, Any]]:
        """Returns the values of all ranks, each with its rank."""
        full = f"{self.name}.{name}"
        told = objects.all_gather_object(self.client, value, full, self.process_set, timeout_s)
        return list(zip(self.group.ranks, told))

    def compare(self, text: str, name: str, shared: str = "", layout: str = "") -> Comparison:
        """Starts to compare where ranks are (`text`), and a digest of what they have alike.
        finish() raises Mismatch, at all ranks, if a rank has something else. Layouts may differ.
        """
        both = _digest(f"{text}\0{shared}") + _digest(layout)
        lanes: np.ndarray = np.frombuffer(both, np.uint8).copy()
        handle = self._compare(lanes, f"{self.name}.{name}")

        def judge(comparison: Comparison) -> None:
            comparison.then = None
            one, other = np.split(lanes, 2)
            comparison.layouts_differ = not _are_alike(other)
            if not _are_alike(one):
                try:
                    self._raise_mismatch((text, shared), name)
                finally:
                    self._mismatches += 1
                    self._begun.clear()

        return Comparison(self.client, handle, judge)

    def _compare(self, lanes: np.ndarray, full: str) -> Handle:
        client, group = self.client, self.group
        declaration = Declaration(DType.U8, lanes.size, Op.MAX, 0, group.listed)
        rounds.before_call(client, full, self.process_set)
        declared = client.tensors.declare(f"{full}{group.suffix}", declaration, 0)
        try:
            handle = rounds.repeat(client, declared, lanes.ctypes.data, 0, lanes)
        except Busy as error:
            raise self._explained(error) from None
        self._note(full, handle, lanes.size)
        return handle

    def _raise_mismatch(self, own: tuple[str, str], name: str) -> None:
        try:
            told = self.tell((*own, self._open()), f"{name}.told", _TELL_S)
            self._begin_what_others_have([open_ for _, (_, _, open_) in told])
            (one, its), (other, others) = first_that_differ([(r, each[:2]) for r, each in told])
            here = f"rank {one} is at {its[0]}, and rank {other} at {others[0]}"
        except (Timeout, Aborted, StopIteration):
            here = f"rank {self.client.rank} is at {own[0]}, and another rank is not"
        else:
            if its[0] == others[0]:
                raise Mismatch(
                    f"{self.title}: at {its[0]} the global parameters of rank {one} (digest {its[1]}) "
                    f"are not those of rank {other} ({others[1]}): load one state at all ranks"
                )
        raise Mismatch(
            f"{self.title}: {here}: have all ranks call step() and flush() equally often. Make the "
            "optimizer, load a state, add, freeze and thaw parameters after the same steps at all ranks"
        )

    # ----- Rounds that some ranks have begun before a mismatch, and others have not -----

    def _open(self) -> dict[str, tuple[int, int, str]]:
        """Returns the rounds that this rank has begun and that are not over here, by their names:
        the number of each, how many elements it has, and their dtype.
        """
        poll = self.client.connection.poll
        return {
            full: (each.round, each.count, each.dtype)
            for full, each in self._begun.items()
            if not poll(each.tensor, each.round)
        }

    def _begin_what_others_have(self, told: Sequence[dict[str, tuple[int, int, str]]]) -> None:
        """Begins the rounds that others have begun, and drops their results. All ranks drop them:
        so no round stays open that one of them waits for.
        """
        for full, (round_, count, dtype) in (item for each in told for item in each.items()):
            own = self._begun.get(full)
            if own is not None and own.round >= round_:
                continue
            with contextlib.suppress(TalwegError):  # An earlier round of this name is under way.
                if dtype:
                    self._average(torch.zeros(count, dtype=getattr(torch, dtype)), full, dtype)
                else:
                    self._compare(np.zeros(count, np.uint8), full)


@dataclass(eq=False)
class Flight:
    """What is sent of a fragment, and is applied by `rule` when `due` is the count of steps.

    `average` and `means` have the ranks' means once take() has returned. An interrupt may end any
    call: the next one goes on from there.
    """

    fragment: int
    due: int
    rule: Rule
    parts: list[Part]
    average: torch.Tensor
    means: torch.Tensor | None = None
    others: Others | None = None  # What `means` are of; None if the flight was loaded.
    # What starts the rounds that are not started yet, and those that are started and not finished.
    starts: list[Callable[[], Round | None]] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)

    def launch(self) -> None:
        """Starts the rounds."""
        while self.starts:
            with _interrupts.held:  # A round that is started is noted.
                started = self.starts[0]()
                del self.starts[0]
                if started is not None:
                    self.rounds.append(started)

    def take(self) -> None:
        """Returns when the means are there."""
        self.launch()
        while self.rounds:
            with _interrupts.held:
                self.rounds[0].finish()
                del self.rounds[0]

    def drop(self) -> None:
        """Leaves the rounds."""
        self.starts.clear()
        self.rounds.clear()
