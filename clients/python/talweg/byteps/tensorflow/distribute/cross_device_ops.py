# SPDX-License-Identifier: Apache-2.0
"""Reduces over the devices of a process, then over the ranks of the job."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from talweg import _client
from talweg._compat.tensorflow.failures import guard
from talweg._declaration import Op
from talweg.tensorflow import _gradients
from talweg.tensorflow._gradients import Choices


class BytepsCrossDeviceOps(tf.distribute.CrossDeviceOps):
    """Wraps the cross-device operations of one process."""

    def __init__(self, local: Any) -> None:
        super().__init__()
        self._local = local
        self._thread = threading.local()

    @contextlib.contextmanager
    def of_this_process(self) -> Iterator[None]:
        """Within the block, values are reduced over the devices of this process alone."""
        self._stays_here = True
        try:
            yield
        finally:
            self._thread = threading.local()

    @property
    def _num_between_graph_workers(self) -> int:
        # With 1 TensorFlow would take a single device's value as the result, and call nothing here.
        return _client.current().size + 1

    def reduce_implementation(
        self,
        reduce_op: Any,
        per_replica_value: Any,
        destinations: Any,
        options: Any,
    ) -> Any:
        reduced = self._local.reduce_implementation(
            reduce_op, per_replica_value, destinations, options
        )
        [result] = self.over_ranks(reduce_op, [reduced])
        return result

    def batch_reduce_implementation(
        self, reduce_op: Any, value_destination_pairs: Sequence[Any], options: Any
    ) -> Any:
        reduced = self._local.batch_reduce_implementation(
            reduce_op, value_destination_pairs, options
        )
        return self.over_ranks(reduce_op, reduced)

    def broadcast_implementation(self, tensor: Any, destinations: Any) -> Any:
        return self._local.broadcast_implementation(tensor, destinations)

    def _gather_implementation(
        self, per_replica_value: Any, destinations: Any, axis: int, options: Any
    ) -> Any:
        return self._local._gather_implementation(per_replica_value, destinations, axis, options)

    def over_ranks(self, reduce_op: Any, values: Sequence[Any]) -> list[Any]:
        """Reduces each value's first copy over the ranks. Each device that had a copy gets the
        result.
        """
        if getattr(self._thread, "stays_here", False):
            return list(values)
        is_mean = reduce_op in (tf.distribute.ReduceOp.MEAN, "MEAN")
        choices = Choices(Op.AVERAGE if is_mean else Op.SUM, guard=guard)
        copies: list[Any] = [getattr(value, "values", None) for value in values]
        has_copies = [isinstance(found, (list, tuple)) for found in copies]
        first = [
            found[0] if has else value for found, has, value in zip(copies, has_copies, values)
        ]
        combined = _gradients.combine(first, None, choices, "mirrored")
        results = []
        for value, found, has, result in zip(values, copies, has_copies, combined):
            if not has:
                results.append(result)
                continue
            placed = []
            for copy in found:
                device = copy.values.device if isinstance(copy, tf.IndexedSlices) else copy.device
                with tf.device(device):
                    placed.append(
                        result if isinstance(result, tf.IndexedSlices) else tf.identity(result)
                    )
            results.append(type(value)(placed))
        return results
