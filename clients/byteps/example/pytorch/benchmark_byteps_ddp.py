# SPDX-License-Identifier: Apache-2.0
"""Measures images per second in training, with byteps.torch's DistributedDataParallel."""

from __future__ import annotations

import byteps.torch as bps
import synthetic
import torch
from byteps.torch.parallel import DistributedDataParallel


def main() -> None:
    options = synthetic.parse_options(str(__doc__), "--fp16-pushpull")
    bps.init()
    benchmark = synthetic.Benchmark(options, bps)
    compression = bps.Compression.fp16 if options.fp16 else bps.Compression.none
    model = DistributedDataParallel(
        benchmark.model, device_ids=[bps.local_rank()], compression=compression
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    benchmark.run(lambda: benchmark.step(model, optimizer))


if __name__ == "__main__":
    main()
