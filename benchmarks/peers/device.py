# SPDX-License-Identifier: Apache-2.0
"""The device on which a rank of ./bench computes: a GPU with --gpu, otherwise the CPU."""

from __future__ import annotations

import os
import time

import torch


class Device:
    """This rank's device. Ranks take GPUs in turn, and share them if there are too few."""

    def __init__(self, rank: int) -> None:
        self.torch = torch.device("cpu")
        if os.environ.get("TALWEG_BENCH_DEVICE") == "cuda":
            self.torch = torch.device("cuda", rank % torch.cuda.device_count())
            torch.cuda.set_device(self.torch)
        self.is_gpu = self.torch.type == "cuda"

    def finish(self) -> None:
        """Returns when the device has done all its work."""
        if self.is_gpu:
            torch.cuda.synchronize(self.torch)

    def mark(self) -> Mark:
        """Returns a mark at this point of the current stream's work."""
        return Mark(self.is_gpu)


class Mark:
    def __init__(self, is_gpu: bool) -> None:
        self._event = torch.cuda.Event(enable_timing=True) if is_gpu else None
        self._at_s = time.perf_counter()
        if self._event is not None:
            self._event.record()

    def seconds_until(self, later: Mark) -> float:
        """Returns the time between two marks by the device's own clock. Both must be done."""
        if self._event is None or later._event is None:
            return later._at_s - self._at_s
        return self._event.elapsed_time(later._event) * 1e-3
