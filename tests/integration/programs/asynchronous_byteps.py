# SPDX-License-Identifier: Apache-2.0
"""One rank of asynchronous_test.py: BYTEPS_ENABLE_ASYNC=1, in a program written for BytePS."""

from __future__ import annotations

import talweg
import talweg.byteps.torch as bps
import talweg.torch as tw
import torch
from expected_errors import expect
from talweg.byteps.torch.cross_barrier import CrossBarrier
from talweg.byteps.torch.parallel import DistributedDataParallel
from torch import nn
from torch_models import same_everywhere, two_layers


def main() -> None:
    bps.init()
    torch.set_num_threads(1)
    torch.manual_seed(bps.rank())
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    expect(talweg.Unsupported, "with DistributedDataParallel", DistributedDataParallel, model)
    expect(talweg.Unsupported, "with CrossBarrier", CrossBarrier, model, optimizer)
    fp16 = bps.Compression.fp16
    make = bps.DistributedOptimizer
    expect(talweg.Unsupported, "with compression", make, optimizer, compression=fp16)

    optimizer = make(optimizer, named_parameters=model.named_parameters())
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    first = [p.detach().clone() for p in model.parameters()]
    for _ in range(3 + 4 * bps.rank()):
        optimizer.zero_grad()
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
    metric = bps.push_pull(torch.full((3,), float(bps.rank())), name="metric")  # Warns, once.
    bps.push_pull(torch.ones(3), name="metric")
    assert (metric == (bps.size() - 1) / 2).all(), metric
    optimizer.flush()
    same_everywhere(model, "byteps")
    assert not any(torch.equal(p, q) for p, q in zip(model.parameters(), first))

    # The end of a program of BytePS's, which has no flush(), waits for the others.
    parameter = nn.Parameter(torch.zeros(4))
    optimizer = make(torch.optim.SGD([parameter], lr=1.0), [("counter", parameter)])
    for step in range(1 + bps.rank()):
        parameter.grad = torch.full((4,), -1.0)
        optimizer.step()
        assert (parameter >= step + 1).all(), parameter
    size = bps.size()
    assert tw.size() == size
    bps.shutdown()
    assert (parameter == size * (size + 1) / 2).all(), parameter
    print("done", flush=True)


if __name__ == "__main__":
    main()
