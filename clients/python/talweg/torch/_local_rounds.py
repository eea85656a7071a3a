# SPDX-License-Identifier: Apache-2.0
"""The rounds of local steps: docs/local_steps.md. Each carries a digest of what ranks must share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from talweg._client import Client, Handle
from talweg._collectives import objects
from talweg._collectives.process_sets import Group, ProcessSet
from talweg._declaration import Declaration, DType, Op
from talweg.errors import Aborted, Busy, Mismatch, Timeout
from talweg.torch._local_parts import Part
from talweg.torch._tensors import finish, start

# How long, in seconds, ranks may take to say what they have after it turned out to differ.
_TELL_S = 10.0
_DIGEST_BYTES = 8


def first_that_differ(told: Sequence[tuple[int, Any]]) -> tuple[tuple[int, Any], tuple[int, Any]]:
    """Returns the first rank, and the first one after it that has something else."""
    first = told[0]
    return first, next(each for each in told if each[1] != first[1])


class Rounds:
    """The rounds among the ranks that synchronise. `caller` and `name` begin each error's text."""

    def __init__(
        self, client: Client, caller: str, name: str, process_set: ProcessSet | None
    ) -> None:
        self.client = client
        self.name = name
        self.process_set = process_set
        self.title = f"{caller} '{name}'"

    @property
    def group(self) -> Group:
        return Group(self.client, self.process_set, self.title)

    def average(self, tensor: torch.Tensor, name: str) -> Handle:
        """Starts the average of a tensor, in place."""
        return self._start(tensor, Op.AVERAGE, name, 0)

    def finish(self, handle: Handle) -> None:
        finish(self.client, handle)

    def broadcast(self, tensor: torch.Tensor, name: str, root: int) -> None:
        finish(self.client, self._start(tensor, Op.BROADCAST, name, root))

    def _start(self, tensor: torch.Tensor, op: Op, name: str, root: int) -> Handle:
        # The number of elements changes when a parameter is thawed.
        full = f"{self.name}.{name}.{tensor.numel()}.{str(tensor.dtype).replace('torch.', '')}"
        of = (op, full, 0, root, self.process_set)
        try:
            return start(self.client, tensor, tensor, *of, says_shape=False)
        except Busy as error:
            raise Busy(
                f"{error}. If this process has several optimizers with local steps, give each a `name`"
            ) from None

    def tell(self, value: Any, name: str, timeout_s: float | None = None) -> list[tuple[int, Any]]:
        """Returns the values of all ranks, each with its rank."""
        full = f"{self.name}.{name}"
        told = objects.all_gather_object(self.client, value, full, self.process_set, timeout_s)
        return list(zip(self.group.ranks, told))

    def compare(self, text: str, name: str) -> Callable[[], None]:
        """Starts to compare a text. The function that is returned waits for that, and raises
        Mismatch, at all ranks, if a rank has another text.
        """
        digest = hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()
        # The maximum shows each byte's largest and smallest value.
        lanes: np.ndarray = np.frombuffer(digest + bytes(255 - byte for byte in digest), np.uint8)
        lanes = lanes.copy()
        group, address = self.group, lanes.ctypes.data
        declaration = Declaration(DType.U8, lanes.size, Op.MAX, 0, group.listed)
        full = f"{self.name}.{name}{group.suffix}"
        handle = self.client.push(full, declaration, address, address, 0, keep=lanes)

        def wait() -> None:
            self.client.synchronize(handle)
            pairs = zip(lanes[:_DIGEST_BYTES].tolist(), lanes[_DIGEST_BYTES:].tolist())
            if not all(largest + smallest == 255 for largest, smallest in pairs):
                self._raise_mismatch(text, name)

        return wait

    def _raise_mismatch(self, text: str, name: str) -> None:
        try:
            told = self.tell(text, f"{name}.told", _TELL_S)
            (one, its), (other, others) = first_that_differ(told)
            here = f"rank {one} is at {its}, and rank {other} at {others}"
        except (Timeout, Aborted, StopIteration):
            here = f"rank {self.client.rank} is at {text}, and another rank is not"
        raise Mismatch(
            f"{self.title}: {here}: have all ranks call step() and flush() equally often, and freeze "
            "and thaw parameters at the same steps"
        )


@dataclass(eq=False)
class Flight:
    """What has been sent of a fragment, and is applied when `due` is the count of steps.

    `average` and `means` have the ranks' means once take() has returned.
    """

    fragment: int
    due: int
    parts: list[Part]
    average: torch.Tensor
    means: torch.Tensor | None
    wait: Callable[[], None] | None  # None once the means are there.

    def take(self) -> None:
        """Returns when the means are there."""
        if self.wait is not None:
            self.wait()
            self.wait = None
