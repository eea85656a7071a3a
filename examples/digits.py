# SPDX-License-Identifier: Apache-2.0
"""Trains a small convolutional network on the handwritten digits of scikit-learn.

    talweg run --nodes 2 --ranks-per-node 2 -- python examples/digits.py
    python examples/digits.py --single        # The same, in one process, without Talweg.

The global batch is the same in both cases. With N ranks, each takes an Nth of every batch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

Batch = tuple[torch.Tensor, torch.Tensor]


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def load_data() -> tuple[Batch, Batch]:
    """Returns digits as f32[n, 1, 8, 8] in 0..1 and their classes, to train and to test.

    A fifth of the digits is for the test.
    """
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    classes = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(classes)))
    held_out, train = order[: len(order) // 5], order[len(order) // 5 :]
    return (images[train], classes[train]), (images[held_out], classes[held_out])


def evaluate(model: nn.Module, data: Batch) -> tuple[float, float]:
    """Returns the accuracy and the mean loss."""
    model.eval()
    with torch.no_grad():
        logits = model(data[0])
        loss = functional.cross_entropy(logits, data[1]).item()
        accuracy = (logits.argmax(1) == data[1]).float().mean().item()
    model.train()
    return accuracy, loss


class Spans:
    """What this rank computes in one step, as events of a Chrome trace (microseconds)."""

    def __init__(self, rank: int, step: int | None) -> None:
        self._rank = rank
        self._step = step
        self._now = -1
        name = {"name": f"rank {rank}"}
        self.events: list[dict[str, Any]] = [
            {"name": "process_name", "ph": "M", "pid": rank, "args": name}
        ]

    def enter(self, step: int) -> None:
        self._now = step

    def add(self, name: str, begin_ns: int) -> None:
        if self._now == self._step:
            duration = (time.monotonic_ns() - begin_ns) / 1000
            self.events.append(
                {
                    "name": name,
                    "cat": "compute",
                    "ph": "X",
                    "ts": begin_ns / 1000,
                    "dur": duration,
                    "pid": self._rank,
                    "tid": 0,
                }
            )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--single", action="store_true", help="one process, without Talweg")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64, help="global batch (default 64)")
    parser.add_argument("--optimizer", choices=["sgd", "adam"], default="adam")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--output", help="directory for what the run measured, one JSON a rank")
    parser.add_argument("--trace-step", type=int, help="record this step's compute spans")
    return parser.parse_args()


def train(
    arguments: argparse.Namespace,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Batch,
    place: tuple[int, int],
    spans: Spans,
) -> list[float]:
    """Returns this rank's loss of each step. `place` is its rank and the number of ranks."""
    rank, size = place
    images, classes = data
    share = arguments.batch // size
    steps_an_epoch = len(classes) // arguments.batch
    step_count = steps_an_epoch * arguments.epochs
    losses: list[float] = []
    for epoch in range(arguments.epochs):
        order = torch.from_numpy(np.random.default_rng(epoch).permutation(len(classes)))
        for first in range(0, steps_an_epoch * arguments.batch, arguments.batch):
            spans.enter(len(losses))
            mine = order[first + rank * share : first + (rank + 1) * share]
            batch = images[mine], classes[mine]
            now_ns = time.monotonic_ns()
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch[0]), batch[1])
            spans.add("forward", now_ns)
            now_ns = time.monotonic_ns()
            loss.backward()
            spans.add("backward", now_ns)
            now_ns = time.monotonic_ns()
            optimizer.step()
            spans.add("optimizer step", now_ns)
            losses.append(loss.item())
            step = len(losses)
            if rank == 0 and (step % 10 == 0 or step == step_count):
                print(f"step {step}/{step_count} loss {losses[-1]:.4f}", flush=True)
    return losses


def main() -> int:
    arguments = parse_arguments()
    rank, size = 0, 1
    if not arguments.single:
        import talweg.torch as tw

        tw.init()
        rank, size = tw.rank(), tw.size()
    if arguments.batch % size != 0:
        sys.exit(f"--batch is {arguments.batch}; it must be a multiple of the {size} ranks")

    torch.set_num_threads(1)
    torch.manual_seed(rank)  # The seeds differ on purpose. The broadcast makes weights equal.
    model = build_model()
    if arguments.optimizer == "adam":
        optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=arguments.lr)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    if not arguments.single:
        optimizer = tw.DistributedOptimizer(optimizer, model.named_parameters())
        tw.broadcast_parameters(model.state_dict(), root_rank=0)

    training, held_out = load_data()
    spans = Spans(rank, arguments.trace_step)
    begin_s = time.monotonic()
    losses = train(arguments, model, optimizer, training, (rank, size), spans)
    seconds = time.monotonic() - begin_s

    accuracy, loss_value = evaluate(model, held_out)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    mean_losses = torch.tensor(losses, dtype=torch.float64)
    spread, pushed_bytes = 0.0, 0
    if not arguments.single:
        pushed_bytes = tw.pushed_bytes()
        # If two ranks differ in a weight, its largest and its smallest value differ.
        largest = tw.push_pull(weights, name="weights.max", op=tw.Op.MAX)
        smallest = tw.push_pull(weights, name="weights.min", op=tw.Op.MIN)
        spread = (largest - smallest).abs().max().item()
        mean_losses = tw.push_pull(mean_losses, name="losses", average=True)
    if rank == 0:
        print(f"test accuracy {accuracy:.4f} loss {loss_value:.4f}", flush=True)
    if arguments.output:
        os.makedirs(arguments.output, exist_ok=True)
        result = {
            "rank": rank,
            "size": size,
            "accuracy": accuracy,
            "loss": loss_value,
            "losses": mean_losses.tolist(),
            "weight_spread": spread,
            "weights_sha256": hashlib.sha256(weights.numpy().tobytes()).hexdigest(),
            "steps": len(losses),
            "seconds": seconds,
            # Each pushed byte comes back as a result, so a rank moves it twice.
            "bytes_moved": 2 * pushed_bytes,
            "trace_events": spans.events,
        }
        with open(os.path.join(arguments.output, f"rank{rank}.json"), "w") as file:
            json.dump(result, file)
    if not arguments.single:
        tw.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
