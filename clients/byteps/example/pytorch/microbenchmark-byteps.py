# SPDX-License-Identifier: Apache-2.0
"""Measures push_pull of one tensor: the time of a call and the bandwidth, for each size."""

from __future__ import annotations

import argparse
import statistics
import time

import byteps.torch as bps
import torch

_F32_BYTES = 4


def _size(text: str) -> int:
    size = int(text)
    if size < _F32_BYTES or size % _F32_BYTES:
        raise argparse.ArgumentTypeError(
            f"'{text}' bytes are no whole number of f32: give a multiple of {_F32_BYTES}"
        )
    return size


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--sizes",
        type=_size,
        nargs="+",
        default=[4**power for power in range(2, 14)],
        metavar="BYTES",
        help="sizes of the tensor",
    )
    parser.add_argument("--num-warmup", type=int, default=10, help="calls before timing")
    parser.add_argument("--num-iters", type=int, default=100, help="calls of each size")
    parser.add_argument("--no-cuda", action="store_true", help="tensors are in host memory")
    parser.add_argument("--gpu", type=int, default=-1, help="GPU to use; -1: the local rank's")
    options = parser.parse_args()
    if options.num_iters < 1 or options.num_warmup < 0:
        parser.error("--num-iters must be at least 1, and --num-warmup at least 0")
    options.cuda = not options.no_cuda and torch.cuda.is_available()
    return options


def _seconds(tensor: torch.Tensor, name: str) -> float:
    began = time.monotonic()
    bps.synchronize(bps.push_pull_async_inplace(tensor, average=True, name=name))
    if tensor.is_cuda:
        torch.cuda.synchronize()
    return time.monotonic() - began


def main() -> None:
    options = parse_options()
    bps.init()
    device = "cpu"
    if options.cuda:
        device = f"cuda:{options.gpu if options.gpu >= 0 else bps.local_rank()}"
        torch.cuda.set_device(device)

    def say(text: str) -> None:
        if bps.rank() == 0:
            print(text, flush=True)

    say(f"Number of {'GPU' if options.cuda else 'CPU'}s: {bps.size()}")
    say(f"{'bytes':>12} {'mean ms':>10} {'stdev ms':>10} {'GB/s':>8}")
    for size in options.sizes:
        tensor = torch.rand(size // _F32_BYTES, device=device)
        for _ in range(options.num_warmup):
            _seconds(tensor, f"bytes.{size}")
        times = [_seconds(tensor, f"bytes.{size}") for _ in range(options.num_iters)]
        mean = statistics.fmean(times)
        say(
            f"{size:>12} {1e3 * mean:>10.3f} {1e3 * statistics.pstdev(times):>10.3f} "
            f"{size / mean / 1e9:>8.3f}"
        )


if __name__ == "__main__":
    main()
