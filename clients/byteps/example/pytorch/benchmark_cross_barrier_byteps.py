# SPDX-License-Identifier: Apache-2.0
"""Measures images per second in training, when the next forward pass makes the steps."""

from __future__ import annotations

import byteps.torch.cross_barrier as bps
import synthetic
import torch


def main() -> None:
    options = synthetic.parse_options(str(__doc__), "--fp16-allreduce")
    bps.init()
    benchmark = synthetic.Benchmark(options, bps)
    model = benchmark.model
    compression = bps.Compression.fp16 if options.fp16 else bps.Compression.none
    steps = options.num_warmup_batches + options.num_batches_per_iter * options.num_iters
    optimizer = bps.CrossBarrier(
        model,
        torch.optim.SGD(model.parameters(), lr=0.01),
        named_parameters=model.named_parameters(),
        compression=compression,
        num_steps=steps,
    )
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    benchmark.run(lambda: benchmark.step(model, optimizer))


if __name__ == "__main__":
    main()
