# SPDX-License-Identifier: Apache-2.0
"""Which devices a group has tensors on, and whose they are, as torch asks for it."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from talweg.errors import InvalidArgument


class GroupOfDevices(dist.ProcessGroup):
    """A group in Python for host memory, with the backends that are registered beside it.

    It stands for the backend of host memory as well. torch keeps none for a group in Python, and
    asks for it.
    """

    supports_coalescing = False
    supports_shrinking = False
    supports_splitting = False
    supports_time_estimate = False

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Whether it gives memory for tensors."""
        return False

    def is_beside(self, device: torch.device | None) -> bool:
        """Whether another backend has the device."""
        if device is None or device.type == "cpu":
            return False
        return any(each.type == device.type for each in super()._device_types)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), *super()._device_types]

    def _get_backend(self, device: torch.device | str) -> Any:
        device = torch.device(device)
        if device.type == "cpu":
            return self
        if not self.is_beside(device):
            raise InvalidArgument(
                f"{device}: this process group has tensors in host memory, and no backend for "
                f'others: name one, as in "cpu:talweg,{device.type}:nccl"'
            )
        return super()._get_backend(device)
