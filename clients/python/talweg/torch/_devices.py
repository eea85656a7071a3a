# SPDX-License-Identifier: Apache-2.0
"""Tells torch which devices a group takes tensors on, and which backend has each device."""

from __future__ import annotations

from typing import Any

import torch

from talweg.errors import InvalidArgument
from talweg.torch._c10d_tensors import DEVICES
from talweg.torch._names import NamedGroup


class GroupOfDevices(NamedGroup):
    """A group in Python for host memory and GPUs of CUDA, with the backends registered beside it.

    torch asks a group for the backend of a device, but keeps none for a group in Python. So the
    group returns itself for its own devices.
    """

    supports_coalescing = False
    supports_shrinking = False
    supports_splitting = False
    supports_time_estimate = False

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Whether the group allocates tensors."""
        return False

    def is_beside(self, device: torch.device | None) -> bool:
        """Whether another backend has the device."""
        if device is None or device.type == "cpu":
            return False
        return any(each.type == device.type for each in super()._device_types)

    @property
    def _device_types(self) -> list[torch.device]:
        beside = super()._device_types
        is_ours = torch.cuda.is_available() and not any(each.type == "cuda" for each in beside)
        return [torch.device("cpu"), *([torch.device("cuda")] if is_ours else []), *beside]

    def _get_backend(self, device: torch.device | str) -> Any:
        device = torch.device(device)
        if self.is_beside(device):
            return super()._get_backend(device)
        if device.type not in DEVICES:
            raise InvalidArgument(
                f"{device}: this process group takes tensors in host memory and on GPUs of CUDA, and "
                f'has no backend for others: name one, as in "cpu:talweg,{device.type}:gloo"'
            )
        return self
