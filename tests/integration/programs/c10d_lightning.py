# SPDX-License-Identifier: Apache-2.0
"""One rank of frameworks_test.py. It compares Lightning's Trainer with training alone."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import lightning
import talweg.torch as tw
import torch
import torch.distributed as dist
from digits_of_scikit import digits
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

_EPOCHS = 2
_BATCH = 16
_SAMPLES = 512


class _Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
        self.logged: list[float] = []

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self.model(inputs), targets)
        self.log("loss", loss, on_epoch=True, sync_dist=True)
        return loss

    def on_train_epoch_end(self) -> None:
        self.logged.append(float(self.trainer.callback_metrics["loss_epoch"]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def _data() -> TensorDataset:
    images, classes = digits()
    return TensorDataset(images[:_SAMPLES], classes[:_SAMPLES])


def _fit(module: _Module, batch: int, **options: Any) -> None:
    # The ranks' batches together are one process's batch, in the same order.
    place, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    sampler = DistributedSampler(_data(), size, place, shuffle=False)
    loader = DataLoader(_data(), batch_size=batch, sampler=sampler)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=_EPOCHS,
        gradient_clip_val=1.0,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    trainer.fit(module, loader)


def main() -> int:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    nodes, local = int(os.environ["GROUP_WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    module = _Module()
    _fit(
        module,
        _BATCH,
        devices=local,
        num_nodes=nodes,
        strategy=DDPStrategy(process_group_backend="talweg"),
        plugins=[TorchElasticEnvironment()],
    )
    size = dist.get_world_size()
    assert dist.get_backend() == "talweg" and size == nodes * local, dist.get_backend()
    own = torch.cat([parameter.detach().view(-1) for parameter in module.parameters()])
    for other in tw.all_gather_object((own.tolist(), module.logged)):
        assert other == (own.tolist(), module.logged)
    assert module.logged[-1] < 0.75 * module.logged[0], (
        f"the model has not learned: {module.logged}"
    )
    print(f"trained by {size}: {module.logged}", flush=True)

    # One process takes the batches of all ranks, in the ranks' order.
    alone = _Module()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.5)
    inputs, targets = _data().tensors
    for _ in range(_EPOCHS):
        for begin in range(0, len(inputs), _BATCH * size):
            # A DistributedSampler deals out samples in turn.
            some = slice(begin, begin + _BATCH * size)
            optimizer.zero_grad()
            nn.functional.cross_entropy(alone.model(inputs[some]), targets[some]).backward()
            nn.utils.clip_grad_norm_(alone.parameters(), 1.0)
            optimizer.step()
    wanted = torch.cat([parameter.detach().view(-1) for parameter in alone.parameters()])
    assert torch.allclose(own, wanted, atol=1e-5), (own - wanted).abs().max()
    return 0


if __name__ == "__main__":
    sys.exit(main())
