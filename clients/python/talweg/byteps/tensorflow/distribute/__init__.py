# SPDX-License-Identifier: Apache-2.0
"""A tf.distribute.MirroredStrategy that also reduces over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from talweg.byteps import _asynchrony
from talweg.byteps.tensorflow.distribute.cross_device_ops import BytepsCrossDeviceOps

__all__ = ["BytepsCrossDeviceOps", "MirroredStrategy"]

_said: set[str] = set()


def _present(devices: Sequence[str] | None) -> list[str] | None:
    """Returns the devices that this machine has, or the CPU if it has none of them."""
    if devices is None:
        return None
    devices_here = tf.config.list_physical_devices()
    here = {device.name.partition("physical_device:")[2].lower() for device in devices_here}
    found = [each for each in devices if each.lower().lstrip("/").replace("device:", "") in here]
    if not found:
        text = f"MirroredStrategy: none of {list(devices)} is here: it runs on /cpu:0"
        if text not in _said:
            _said.add(text)
            tf.get_logger().warning(text)
        return ["/cpu:0"]
    return found


class MirroredStrategy(tf.distribute.MirroredStrategy):
    """TensorFlow's strategy for the devices of one process, extended to the ranks of the job.

    `cross_device_ops` reduces values over the process's devices. Then they are reduced over all
    ranks. A mean is the mean over all replicas of all ranks.
    """

    def __init__(self, devices: Sequence[str] | None = None, cross_device_ops: Any = None) -> None:
        _asynchrony.refuse("MirroredStrategy")
        local = cross_device_ops or tf.distribute.ReductionToOneDevice()
        self._talweg_ops = BytepsCrossDeviceOps(local)
        super().__init__(_present(devices), self._talweg_ops)

    def reduce(self, reduce_op: Any, value: Any, axis: int | None) -> Any:
        """Reduces as TensorFlow does, over the replicas of all ranks."""
        reduced = super().reduce(reduce_op, value, axis)
        if isinstance(value, tf.distribute.DistributedValues):
            return reduced
        # With only one device TensorFlow does not call the cross-device operations.
        [result] = self._talweg_ops.over_ranks(reduce_op, [tf.convert_to_tensor(reduced)])
        return result
