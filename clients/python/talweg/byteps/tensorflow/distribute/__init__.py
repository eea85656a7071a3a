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


def _local_name(device: str) -> str:
    """Returns `/gpu:1` for `GPU:1` and for `/job:localhost/device:GPU:1`."""
    spec = tf.DeviceSpec.from_string(device)
    return f"/{(spec.device_type or 'CPU').lower()}:{spec.device_index or 0}"


def _present(devices: Sequence[str] | None) -> list[str] | None:
    """Returns the devices, or the CPU if this process has none of them.

    Raises ValueError if it has only some of them.
    """
    if devices is None:
        return None
    here = [_local_name(device.name) for device in tf.config.list_logical_devices()]
    missing = [each for each in devices if _local_name(each) not in here]
    if not missing:
        return [_local_name(each) for each in devices]
    if len(missing) < len(devices):
        has = ", ".join(here)
        raise ValueError(
            f"MirroredStrategy: {', '.join(missing)} of `devices` is not here; this process has {has}"
        )
    text = f"MirroredStrategy: none of {list(devices)} is here: it runs on /cpu:0"
    if text not in _said:
        _said.add(text)
        tf.get_logger().warning(text)
    return ["/cpu:0"]


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
        # TensorFlow calls the cross-device operations only for some devices and types of elements.
        with self._talweg_ops.of_this_process():
            reduced = super().reduce(reduce_op, value, axis)
        [result] = self._talweg_ops.over_ranks(reduce_op, [tf.convert_to_tensor(reduced)])
        return result
