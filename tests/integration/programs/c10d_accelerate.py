# SPDX-License-Identifier: Apache-2.0
"""One rank of frameworks_test.py. It compares Accelerate over the backend with training alone."""

from __future__ import annotations

import sys

import talweg.torch as tw
import torch
import torch.distributed as dist
from accelerate import Accelerator
from digits_of_scikit import digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

_EPOCHS = 2
_BATCH = 16
_SAMPLES = 512


def _model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))


def _data() -> TensorDataset:
    images, classes = digits()
    return TensorDataset(images[:_SAMPLES], classes[:_SAMPLES])


def _weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().view(-1) for parameter in model.parameters()])


def main() -> int:
    torch.set_num_threads(1)
    dist.init_process_group("talweg")  # Accelerate would choose Gloo for CPUs.
    accelerator = Accelerator(cpu=True)
    size = accelerator.num_processes
    assert dist.get_backend() == "talweg" and size == dist.get_world_size() > 1
    plain = _model()
    loader = DataLoader(_data(), batch_size=_BATCH, shuffle=False)
    model, optimizer, batches = accelerator.prepare(
        plain, torch.optim.SGD(plain.parameters(), lr=0.5), loader
    )
    assert isinstance(model, nn.parallel.DistributedDataParallel)
    losses = []
    for _ in range(_EPOCHS):
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(accelerator.gather(loss.detach()).mean().item())
    # Samples that were dealt out twice are left out of an evaluation's last batch.
    seen = [accelerator.gather_for_metrics(targets) for _, targets in batches]
    assert torch.cat(seen).numel() == _SAMPLES, seen
    everyone = accelerator.reduce(torch.ones(2), reduction="sum")
    assert everyone.tolist() == [size, size]
    accelerator.wait_for_everyone()
    own = _weights(accelerator.unwrap_model(model))
    assert tw.all_gather_object((own.tolist(), losses)) == [(own.tolist(), losses)] * size

    alone = _model()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.5)
    inputs, targets = _data().tensors
    for _ in range(_EPOCHS):
        for begin in range(0, len(inputs), _BATCH * size):
            # Ranks get whole batches in turn.
            some = slice(begin, begin + _BATCH * size)
            optimizer.zero_grad()
            nn.functional.cross_entropy(alone(inputs[some]), targets[some]).backward()
            nn.utils.clip_grad_norm_(alone.parameters(), 1.0)
            optimizer.step()
    wanted = _weights(alone)
    assert torch.allclose(own, wanted, atol=1e-5), (own - wanted).abs().max()
    assert losses[-1] < 0.5 * losses[0], f"the model has not learned: {losses}"
    print(f"trained by {size}: {losses}", flush=True)
    accelerator.end_training()
    return 0


if __name__ == "__main__":
    sys.exit(main())
