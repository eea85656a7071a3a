# SPDX-License-Identifier: Apache-2.0
"""The GPU of a rank of torch_rank.py, fake or real: tensors there, and how they are compared."""

from __future__ import annotations

import os
import sys
from typing import Any

import talweg.torch as tw
import torch

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


class RealGpu:
    """What the cases ask of a GPU, for a real one."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        torch.cuda.set_device(ordinal)

    def put(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(f"cuda:{self.ordinal}")


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the CPU."""
    if isinstance(gpu, RealGpu):
        return tensor.detach().cpu()
    return fake_cuda.plain(tensor)


def sample(dtype: torch.dtype, count: int, seed: int) -> torch.Tensor:
    """Values of many magnitudes, a few of them special. Each rank has others."""
    generator = torch.Generator().manual_seed(1000 * seed + tw.rank())
    if dtype in INTEGERS:
        info = torch.iinfo(dtype)
        return torch.randint(info.min, info.max, (count,), dtype=dtype, generator=generator)
    values = torch.randn(count, generator=generator)
    values *= 2.0 ** torch.randint(-6, 6, (count,), generator=generator)
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 0.0, 1e-42, 6e4])
    where = torch.rand(count, generator=generator) < 0.01
    values[where] = special[torch.randint(0, len(special), (int(where.sum()),))]
    return values.to(dtype)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bits, so that NaNs can be compared, too."""
    return plain(tensor).contiguous().view(-1).view(torch.uint8)


def assert_same(actual: torch.Tensor, wanted: torch.Tensor) -> None:
    assert actual.shape == wanted.shape and actual.dtype == wanted.dtype
    differing = (bits(actual) != bits(wanted)).nonzero()
    assert len(differing) == 0, f"{len(differing)} bytes differ: {actual} {wanted}"


if "TALWEG_FAKE_GPUS" in os.environ:
    import fake_cuda

    gpu: Any = fake_cuda.Gpu(int(sys.argv[1]))
else:
    gpu = RealGpu(int(sys.argv[1]))
