# SPDX-License-Identifier: Apache-2.0
"""Measures what a push_pull costs a training stream, and how long its result takes.

    gpu_stream.py REPETITIONS BYTES...

It is a rank of `talweg run`. Rank 0 prints a line of JSON for each size. The line has the median
seconds of the same work on the stream alone and beside a push_pull, the seconds from the last
gradient to the last result, and the number of kernels and copies that the push_pull has given to
this process's streams.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import talweg.torch as tw
import torch
from device import Device
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

_SIDE, _PRODUCTS = {"cuda": 4096, "cpu": 64}, 16


class Stream:
    def __init__(self, device: Device) -> None:
        self.device = device
        side = _SIDE[device.torch.type]
        self._matrix = torch.randn(side, side, device=device.torch) / side

    def compute(self) -> float:
        """Returns the seconds that the work takes on the stream."""
        begin = self.device.mark()
        product = self._matrix
        for _ in range(_PRODUCTS):
            product = product @ self._matrix
        end = self.device.mark()
        self.device.finish()
        return begin.seconds_until(end)

    def measure(self, nbytes: int, repetitions: int) -> dict[str, float]:
        gradient = torch.zeros(nbytes // 4, device=self.device.torch)
        name = f"stream.{nbytes}"
        alone, beside, latency = [], [], []
        tw.push_pull_inplace(gradient, name=name)
        for _ in range(repetitions):
            self.device.finish()
            tw.barrier()
            alone.append(self.compute())
            tw.barrier()
            handle = tw.push_pull_async_inplace(gradient, name=name)
            beside.append(self.compute())
            tw.synchronize(handle)
            self.device.finish()
            tw.barrier()
            begin_s = time.perf_counter()
            tw.push_pull_inplace(gradient, name=name)
            self.device.finish()
            latency.append(time.perf_counter() - begin_s)
        return {
            "bytes": nbytes,
            "alone_s": statistics.median(alone),
            "beside_s": statistics.median(beside),
            "latency_s": statistics.median(latency),
            "device_calls": self._count_device_calls(gradient, name),
        }

    def _count_device_calls(self, gradient: torch.Tensor, name: str) -> int:
        if not self.device.is_gpu:
            return 0
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            tw.push_pull_inplace(gradient, name=name)
            self.device.finish()
        # The host's calls that launch them are events as well, and do not count.
        return sum(event.device_type == DeviceType.CUDA for event in profiled.events())


def main() -> int:
    tw.init()
    torch.set_num_threads(1)
    stream = Stream(Device(tw.local_rank()))
    for nbytes in map(int, sys.argv[2:]):
        figures = stream.measure(nbytes, int(sys.argv[1]))
        if tw.rank() == 0:
            print(json.dumps(figures), flush=True)
    tw.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
