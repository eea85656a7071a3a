# SPDX-License-Identifier: Apache-2.0
"""Compresses the gradients of one exchange, and remembers what that takes away.

docs/compression.md has the rules.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np

from talweg._declaration import DType, Encoding
from talweg._exchange.names import COMPRESSED
from talweg._library import native
from talweg._library.native_errors import check
from talweg._library.native_structures import CompressionSpec
from talweg.compression import Compression, Dithering, OneBit, RandomK, TopK

_TOP_K, _RANDOM_K, _ONE_BIT, _DITHERING = 1, 2, 3, 4
_SCALING, _NATURAL, _L2 = 1, 2, 4
_FLOAT_MAX = float(np.finfo(np.float32).max)


def _spec_of(compression: Compression, partition: int) -> CompressionSpec:
    spec = CompressionSpec(ctypes.sizeof(CompressionSpec), partition=partition, error_scale=1)
    if isinstance(compression, TopK):
        spec.compressor, spec.k = _TOP_K, compression.k
    elif isinstance(compression, RandomK):
        spec.compressor, spec.k = _RANDOM_K, compression.k
    elif isinstance(compression, OneBit):
        spec.compressor, spec.flags = _ONE_BIT, _SCALING * compression.scaling
    elif isinstance(compression, Dithering):
        spec.compressor, spec.k = _DITHERING, compression.k
        is_natural, is_l2 = compression.levels == "natural", compression.norm == "l2"
        spec.flags = _NATURAL * is_natural | _L2 * is_l2
    return spec


@dataclass(frozen=True)
class Stand:
    """Where a rank stands in the job. What is remembered belongs to one view of the job."""

    rank: int
    view: Hashable


def _zeros(count: int) -> np.ndarray:
    return np.zeros(count, np.float32)


class _Memory:
    """What one tensor's compressor remembers."""

    def __init__(self, stand: Stand, count: int, error_feedback: bool, momentum: bool) -> None:
        self.stand = stand
        self.count = count
        self.rounds = 0
        self.error = _zeros(count) if error_feedback else None
        self.momentum = _zeros(count) if momentum else None
        self.rate: float | None = None  # The last learning rate that was not 0.

    def scale_to(self, rate: float | None) -> float:
        """Returns the factor of the error memory for a step of that learning rate."""
        last, self.rate = self.rate, rate or self.rate
        if not rate or last is None:
            return 1.0
        factor = last / rate
        return min(factor, _FLOAT_MAX) if math.isfinite(factor) else _FLOAT_MAX


class Compressing:
    """Compresses gradients in place. One thread at a time.

    All ranks compress the same tensors in the same rounds. What is remembered of a tensor begins as
    zeros, again when the view changes: what was under way may be lost then, and a State may have
    taken the model back to an earlier step.
    """

    def __init__(
        self, compression: Compression, partition: int = 0, mu: float | None = None
    ) -> None:
        """`partition`: elements that are compressed together; 0: all of a tensor. `mu`: that of
        Nesterov's momentum; None: no momentum.
        """
        self.compression = compression
        self._partition = partition
        self._mu = mu
        self._memories: dict[str, _Memory] = {}

    @property
    def encoding(self) -> Encoding:
        return self.compression.encoding

    @property
    def note(self) -> str:
        """What ranks have alike of a parameter that is compressed, in words."""
        return f"{COMPRESSED}{self.compression}"

    @property
    def suffix(self) -> str:
        """What names of compressed tensors end with. Ranks that do not compress alike find that out
        by their parameters' notes, if they never meet in one tensor.
        """
        return f".compressed.{self.encoding.name.lower()}"

    def takes(self, dtype: DType | None, nbytes: int) -> bool:
        """Whether gradients of that dtype and size are compressed."""
        return dtype is DType.F32 and nbytes > 0 and nbytes >= self.compression.bytes_min

    def begin_anew(self) -> None:
        """Forgets all gradients."""
        self._memories.clear()

    def remembered(self, name: str) -> np.ndarray | None:
        """Returns the error memory of a tensor, if it has one."""
        memory = self._memories.get(name)
        return None if memory is None else memory.error

    def skip(self, name: str, count: int, stand: Stand) -> None:
        """Counts a round in which this rank has no gradient, and gives zeros."""
        self._memory(name, count, stand).rounds += 1

    def restorer(self, name: str) -> Callable[[], None]:
        """Returns what makes the memory of a tensor what it is now, but for its count of rounds."""
        memory = self._memories.get(name)
        if memory is None:
            return lambda: self._forget(name)
        kept = [None if each is None else each.copy() for each in (memory.error, memory.momentum)]
        rate = memory.rate

        def restore() -> None:
            memory.error, memory.momentum = kept
            memory.rate = rate

        return restore

    def _forget(self, name: str) -> None:
        memory = self._memories.get(name)
        if memory is None:
            return
        memory.rate = None
        for each in (memory.error, memory.momentum):
            if each is not None:
                each[:] = 0

    def compress(
        self, name: str, address: int, count: int, stand: Stand, rate: float | None = None
    ) -> None:
        """Compresses the `count` numbers at `address`. `rate`: the step's learning rate, where error
        feedback follows it.
        """
        memory = self._memory(name, count, stand)
        spec = _spec_of(self.compression, self._partition)
        spec.key = self._key(name, memory)
        spec.error_scale, spec.mu = memory.scale_to(rate), self._mu or 0.0
        library = native.library()
        check(
            library,
            library.talweg_compress(
                spec, address, _address(memory.error), _address(memory.momentum), count
            ),
        )
        memory.rounds += 1

    def _memory(self, name: str, count: int, stand: Stand) -> _Memory:
        memory = self._memories.get(name)
        if memory is None or memory.stand != stand or memory.count != count:
            with_error = self.compression.error_feedback
            memory = _Memory(stand, count, with_error, self._mu is not None)
            self._memories[name] = memory
        return memory

    def _key(self, name: str, memory: _Memory) -> int:
        compression = self.compression
        if isinstance(compression, RandomK):  # The same places at all ranks.
            words = f"{compression.seed} {memory.rounds} {name}"
        elif isinstance(compression, Dithering):
            words = f"{compression.seed} {memory.rounds} {memory.stand.rank} {name}"
        else:
            return 0
        digest = hashlib.blake2b(words.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little")


def _address(array: np.ndarray | None) -> int | None:
    return None if array is None else array.ctypes.data
