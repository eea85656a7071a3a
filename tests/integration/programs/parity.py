# SPDX-License-Identifier: Apache-2.0
"""Learns handwritten digits in 100 steps. Writes each step's loss, and the digest of the weights
after it; also the share of digits not trained on that the model then recognises.

The global batch is the same for any number of ranks. Without Talweg (--single) one process takes
all of it. Each rank writes the losses of its own share.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys

import torch
from digits_of_scikit import digits
from torch import nn
from torch.nn import functional

STEPS = 100
BATCH = 48
BATCHES = 30  # The other 357 digits test the model.


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--single", action="store_true")
    parser.add_argument("--optimizer", choices=["sgd", "adam"], required=True)
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--output", required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rank, size = 0, 1
    if not arguments.single:
        import talweg.torch as tw

        tw.init()
        rank, size = tw.rank(), tw.size()

    torch.manual_seed(0 if rank == 0 else 1234 + rank)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 36, 64),
        nn.Tanh(),
        nn.Linear(64, 10),
    )
    if arguments.optimizer == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            model.parameters(), lr=1e-2, momentum=0.9
        )
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    if not arguments.single:
        optimizer = tw.DistributedOptimizer(
            optimizer, model.named_parameters(), backward_passes_per_step=arguments.passes
        )
        tw.broadcast_parameters(model.state_dict(), root_rank=0)

    images, classes = digits()
    trained = BATCH * BATCHES
    share = BATCH // size
    losses, digests = [], []
    for step in range(STEPS):
        first = step % BATCHES * BATCH
        mine = slice(first + rank * share, first + (rank + 1) * share)
        optimizer.zero_grad()
        part = share // arguments.passes
        loss_sum = 0.0
        for micro in range(arguments.passes):
            cut = slice(micro * part, (micro + 1) * part)
            logits = model(images[mine][cut])
            loss = functional.cross_entropy(logits, classes[mine][cut]) / arguments.passes
            loss.backward()
            loss_sum += loss.item()
        optimizer.step()
        losses.append(loss_sum)
        weights = torch.cat([p.detach().flatten() for p in model.parameters()])
        digests.append(hashlib.sha256(weights.numpy().tobytes()).hexdigest())
    with torch.no_grad():
        right = model(images[trained:]).argmax(1) == classes[trained:]
    result = {"losses": losses, "digests": digests, "accuracy": right.float().mean().item()}
    with open(f"{arguments.output}/rank{rank}.json", "w") as file:
        json.dump(result, file)
    if not arguments.single:
        tw.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
