# SPDX-License-Identifier: Apache-2.0
"""Measures as benchmark_byteps.py, in two parts. Between them every rank changes its job."""

from __future__ import annotations

import os

import byteps.torch as bps
import synthetic
import torch


def main() -> None:
    options = synthetic.parse_options(str(__doc__), "--fp16-pushpull")
    bps.init()
    benchmark = synthetic.Benchmark(options, bps)
    model = benchmark.model
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01),
        named_parameters=model.named_parameters(),
        compression=bps.Compression.fp16 if options.fp16 else bps.Compression.none,
    )
    for part in range(2):
        bps.broadcast_parameters(model.state_dict(), root_rank=0)
        benchmark.run(lambda: benchmark.step(model, optimizer))
        if part == 0:
            rank = bps.rank()
            workers = int(os.environ.get("DMLC_NUM_WORKER", "1"))
            servers = int(os.environ.get("DMLC_NUM_SERVER", "1"))
            bps.suspend()
            bps.resume(workers, servers, rank)


if __name__ == "__main__":
    main()
