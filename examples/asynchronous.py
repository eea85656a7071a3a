# SPDX-License-Identifier: Apache-2.0
"""Trains on scikit-learn's handwritten digits with a slow rank, for which the others do not wait.

    talweg run --nodes 4 -- python examples/asynchronous.py
    talweg run --nodes 4 -- python examples/asynchronous.py --how synchronous   # To compare.

Every rank sleeps for each step, and the last rank `--slow` times as long. So ranks do not share
CPUs, however many there are on this machine. All train for the same time. Rank 0 then prints what
was learned, and how many steps each rank has made. docs/asynchronous.md says more.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import talweg.torch as tw
import torch
from sklearn.datasets import load_digits
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--how", choices=["synchronous", "asynchronous"], default="asynchronous")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--slow", type=float, default=4.0)
    parser.add_argument("--batch", type=int, default=16, help="of each rank")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--ahead", type=int, default=1)
    parser.add_argument("--lead", type=int)
    arguments = parser.parse_args()

    tw.init()
    torch.set_num_threads(1)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).reshape(-1, 64) / 16.0
    classes = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(classes)))
    held_out, mine = order[:360], order[360:][tw.rank() :: tw.size()]

    torch.manual_seed(tw.rank())  # The ranks take rank 0's parameters in the first step.
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    is_asynchronous = arguments.how == "asynchronous"
    # Asynchronous steps add up, where synchronous ones are averaged.
    rate = arguments.lr / tw.size() if is_asynchronous else arguments.lr
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    if is_asynchronous:
        bounds = {"ahead": arguments.ahead, "lead": arguments.lead}
        optimizer = tw.AsynchronousOptimizer(optimizer, model.named_parameters(), **bounds)
    else:
        tw.broadcast_parameters(model.state_dict())
        optimizer = tw.DistributedOptimizer(optimizer, model.named_parameters())

    step_s = arguments.step_ms / 1000
    if tw.rank() == tw.size() - 1:
        step_s *= arguments.slow
    generator = np.random.default_rng(100 + tw.rank())

    def is_over(begun: float) -> bool:
        late = time.monotonic() - begun > arguments.seconds
        if is_asynchronous:
            return late
        # Synchronous ranks make equally many steps: all end when one has run out of time.
        return bool(tw.push_pull(torch.tensor([float(late)]), name="late", op=tw.Op.MAX) > 0)

    tw.barrier()
    begun, steps = time.monotonic(), 0
    while not is_over(begun):
        batch = mine[generator.choice(len(mine), arguments.batch, replace=False)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), classes[batch]).backward()
        time.sleep(step_s)
        optimizer.step()
        steps += 1
    if is_asynchronous:
        optimizer.flush()  # Now all ranks have the same parameters.

    with torch.no_grad():
        logits = model(images[held_out])
        loss = nn.functional.cross_entropy(logits, classes[held_out]).item()
        accuracy = (logits.argmax(1) == classes[held_out]).float().mean().item()
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    spread = tw.push_pull(weights, op=tw.Op.MAX) - tw.push_pull(weights, op=tw.Op.MIN)
    all_steps = tw.all_gather_object(steps)
    if tw.rank() == 0:
        print(
            f"{arguments.how}: accuracy {accuracy:.3f} loss {loss:.4f}, steps of each rank "
            f"{all_steps}, largest difference between two ranks {spread.max().item():.6f}",
            flush=True,
        )
    tw.shutdown()


if __name__ == "__main__":
    main()
