# SPDX-License-Identifier: Apache-2.0
"""Trains on scikit-learn's handwritten digits, and lets the ranks meet once in many steps.

    talweg run --nodes 2 --ranks-per-node 2 -- python examples/diloco.py
    talweg run ... -- python examples/diloco.py --how local_sgd
    talweg run ... -- python examples/diloco.py --fragments 4 --delay 5 --mix 0.5
    talweg run ... -- python examples/diloco.py --how synchronous   # To compare.

Each rank has its own part of the digits. With TALWEG_ENCODING=int8 what travels takes a quarter of
the bytes. docs/local_steps.md explains the arguments.
"""

from __future__ import annotations

import argparse

import numpy as np
import talweg.torch as tw
import torch
from sklearn.datasets import load_digits
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--how", choices=["synchronous", "local_sgd", "diloco"], default="diloco")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=64, help="of all ranks together")
    parser.add_argument("--every", type=int, default=20, help="steps between two meetings")
    parser.add_argument("--fragments", type=int, default=1)
    parser.add_argument("--delay", type=int, default=0)
    parser.add_argument("--mix", type=float, default=0.0)
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
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    if arguments.how == "synchronous":
        tw.broadcast_parameters(model.state_dict())
        optimizer = tw.DistributedOptimizer(optimizer, model.named_parameters())
    elif arguments.how == "local_sgd":
        optimizer = tw.LocalSGD(model, optimizer, every=arguments.every)
    else:
        optimizer = tw.DiLoCo(
            model,
            optimizer,
            every=arguments.every,
            fragments=arguments.fragments,
            delay=arguments.delay,
            mix=arguments.mix,
        )

    generator = np.random.default_rng(100 + tw.rank())
    bytes_before = tw.pushed_bytes()
    for _ in range(arguments.steps):
        batch = mine[generator.choice(len(mine), arguments.batch // tw.size(), replace=False)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), classes[batch]).backward()
        optimizer.step()
    if arguments.how != "synchronous":
        optimizer.flush()  # Now all ranks have the same parameters.
    pushed = tw.pushed_bytes() - bytes_before

    with torch.no_grad():
        logits = model(images[held_out])
        loss = nn.functional.cross_entropy(logits, classes[held_out]).item()
        accuracy = (logits.argmax(1) == classes[held_out]).float().mean().item()
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    spread = tw.push_pull(weights, op=tw.Op.MAX) - tw.push_pull(weights, op=tw.Op.MIN)
    if tw.rank() == 0:
        print(
            f"accuracy {accuracy:.4f} loss {loss:.4f}, {pushed / arguments.steps:.0f} bytes pushed a "
            f"step, largest difference between two ranks {spread.abs().max().item()}",
            flush=True,
        )
    tw.shutdown()


if __name__ == "__main__":
    main()
