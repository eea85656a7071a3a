# SPDX-License-Identifier: Apache-2.0
"""Ranks that have no more batches: they serve the others' steps with zeros.

A *site* is one place of a program where gradients are combined. With each combination the ranks sum
a number under the site's name: 1 from a rank that has a batch, 0 from one that has joined. So a rank
that has joined learns that there is a step, and pushes zeros for each tensor of the site. A sum of 0
says that all have joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from talweg import _client
from talweg._client import Client
from talweg._compat.joining import last_to_join
from talweg._declaration import Op
from talweg.errors import InvalidArgument, Timeout
from talweg.tensorflow import _rounds
from talweg.tensorflow._rounds import Pending, Reduction

_SUM = Reduction(Op.SUM)
# How long it waits at one site before it looks at the others.
_LOOK_S = 0.01


@dataclass
class _Site:
    """What is pushed at one place of the program."""

    name: str
    # Name, shape and dtype of each tensor, and how it is combined (None: its rows are gathered).
    tensors: list[tuple[str | None, tuple[int | None, ...], np.dtype, Reduction | None]] = field(
        default_factory=list
    )

    @property
    def mark_name(self) -> str:
        return f"{self.name}.join"

    def start_mark(self) -> Pending:
        return _rounds.start_reduction(np.zeros(1, np.int64), self.mark_name, _SUM)

    def serve(self) -> None:
        """Takes part in one step without gradients."""
        started = []
        for name, shape, dtype, how in self.tensors:
            if None in shape:
                raise InvalidArgument(
                    f"hvd.join(): the shape of gradient '{name}' is {shape}, so this rank cannot push "
                    "zeros for it: give it a static shape"
                )
            zeros = np.zeros(shape, dtype)  # type: ignore[arg-type]
            if how is None:
                started.append(_rounds.start_all_gather(zeros, name, Reduction()))
            else:
                started.append(_rounds.start_reduction(zeros, name, how))
        for pending in started:
            pending.wait()


class Sites:
    """Those of one life of the client."""

    def __init__(self) -> None:
        self._client: Client | None = None
        self._sites: dict[str, _Site] = {}

    def _mine(self) -> dict[str, _Site]:
        client = _client.current()
        if self._client is not client:
            self._client, self._sites = client, {}
        return self._sites

    def add(
        self,
        name: str,
        reduced: Sequence[tuple[tf.Tensor, str, Reduction]],
        gathered: Sequence[tuple[str | None, tf.Tensor]],
    ) -> tuple[tf.Tensor, str, Reduction]:
        """Remembers what a step pushes; the number to sum beside it, its name and operation."""
        site = _Site(name)
        for tensor, tensor_name, how in reduced:
            shape = tensor.shape.as_list() if tensor.shape.rank is not None else [None]
            dtype = np.dtype(tensor.dtype.as_numpy_dtype)
            site.tensors.append((tensor_name, tuple(shape), dtype, how))
        for rows_name, tensor in gathered:
            dtype = np.dtype(tensor.dtype.as_numpy_dtype)
            site.tensors.append((rows_name, (0, *tensor.shape.as_list()[1:]), dtype, None))
        self._mine()[name] = site
        return tf.constant([1], tf.int64), site.mark_name, _SUM

    def join(self) -> int:
        """Serves steps until all ranks have joined; the last rank to do so."""
        sites = list(self._mine().values())
        marks = [(site, site.start_mark()) for site in sites]
        served = 0
        while marks:
            site, mark, ranks = self._first_over(marks)
            marks.remove((site, mark))
            if ranks > 0:
                served += 1
                site.serve()
                marks.append((site, site.start_mark()))
        return last_to_join(served)

    def _first_over(self, marks: list[tuple[_Site, Pending]]) -> tuple[_Site, Pending, int]:
        """A site at which a step has begun, or never will, and how many ranks have a batch there."""
        while True:
            over = [each for each in marks if each[1].poll()]
            site, mark = (over or marks)[0]
            try:
                [ranks] = mark.wait(None if over else _LOOK_S)
            except Timeout:
                continue
            return site, mark, int(ranks[0])


sites = Sites()
