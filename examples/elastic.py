# SPDX-License-Identifier: Apache-2.0
"""Training that goes on when nodes are lost, and takes in those that come back.

On each of three nodes, with a talweg-scheduler and a talweg-aggregator running:

    talweg run --scheduler host:port --nodes 3 --min-nodes 1 --node-rank K --loss-policy continue \\
        --restarts 3 -- python examples/elastic.py

Kill one node, and start it again with the same command. Or kill its agent. `talweg run` starts the
agent again, and the rank's process goes on. Each sample of an epoch is used once, and at the end
all ranks have the same weights.
"""

from __future__ import annotations

import argparse
import hashlib
import time

import talweg
import talweg.torch
import torch
from torch import nn
from torch.utils.data import TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--workers", type=int, default=1, help="processes that load samples")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two steps")
    arguments = parser.parse_args()

    talweg.init()
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(512, 20, generator=generator)
    labels = (inputs[:, :5].sum(1) > 0).long()

    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = talweg.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters()
    )
    sampler = talweg.ElasticSampler(inputs, batch_size=8)
    loader = talweg.torch.ElasticLoader(
        TensorDataset(torch.arange(512), inputs, labels),
        sampler,
        num_workers=arguments.workers,
        persistent_workers=arguments.workers > 0,
    )
    state = talweg.torch.Elastic(model, optimizer, sampler=sampler, epoch=0, step=0)
    talweg.on_view_change(
        lambda change: print(
            f"epoch {change.after.epoch}: {change.after.size} ranks, nodes "
            f"{[member.node for member in change.after.members]}",
            flush=True,
        )
    )

    def train(state: talweg.torch.Elastic) -> None:
        print(f"{'joined' if state.joined else 'begins'} at step {state.step}", flush=True)
        while state.epoch < arguments.epochs:
            for indices, batch, answers in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(batch), answers)
                (loss * state.weight).backward()  # The weight is 0 if this rank has no sample.
                optimizer.step()
                state.step += 1
                epoch = state.epoch
                taken = indices.tolist() if sampler.own_samples else []
                state.end_step()
                print(f"step {state.step} epoch {epoch} took {taken}", flush=True)
                time.sleep(arguments.pause)
            state.epoch += 1
            sampler.set_epoch(state.epoch)

    state.run(train)  # It calls train() again, with the others' state, if the agent is lost.

    weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    digest = hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16]
    with torch.no_grad():
        accuracy = (model(inputs).argmax(1) == labels).float().mean().item()
    print(f"weights {digest} accuracy {accuracy:.3f} after {state.step} steps", flush=True)
    talweg.shutdown()


if __name__ == "__main__":
    main()
