# SPDX-License-Identifier: Apache-2.0
"""Which devices a group takes tensors on, and whose they are, as torch asks for it."""

from __future__ import annotations

from typing import Any

import torch

from talweg.errors import InvalidArgument
from talweg.torch._c10d_tensors import DEVICES
from talweg.torch._names import NamedGroup


class GroupOfDevices(NamedGroup):
    """A group in Python for host memory and GPUs of CUDA, with the backends registered beside it.

    It stands for the backend of its own devices as well. torch keeps none for a group in Python,
    and asks for it.
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
