# SPDX-License-Identifier: Apache-2.0
"""One rank that makes training steps as ./bench orders (control.h).

    training_step.py none|barrier|ddp|nccl|fsdp [RANK SIZE STORE]
    training_step.py horovod
    training_step.py optimizer|overlap|arrival|hook|ddp_talweg|fsdp_talweg|ddp_alone
    training_step.py topk|randomk|onebit|dithering

In an order "dtype" is the model and "bytes" the batch. `none` trains without communicating.
`barrier` trains with nothing but Talweg's barrier after each backward pass, which shows the cost of
waiting for the slower rank. `ddp` and `nccl` use DistributedDataParallel over Gloo and NCCL, `fsdp`
FSDP2 over Gloo, `ddp_talweg` and `fsdp_talweg` the same over the backend "talweg". `ddp_alone` uses
DistributedDataParallel with a hook that sums nothing, and the barrier. `horovod` uses Horovod's
optimizer. The others run over Talweg. `optimizer` waits for all averages in backward(). `overlap`
waits for each module's averages in the next forward pass. `arrival` does the same, but gradients
leave first come, first served.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from control import Control, Order
from device import Device
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

_CLASSES = 10
_BACKEND = ("ddp_talweg", "fsdp_talweg", "ddp_alone")
_COMPRESSED = ("topk", "randomk", "onebit", "dithering")
_TALWEG = ("barrier", "optimizer", "overlap", "arrival", "hook", *_BACKEND, *_COMPRESSED)


class _Block(nn.Module):
    """Two convolutions with a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.around = nn.Sequential()
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.around = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(inside + self.around(x))


def _resnet18() -> nn.Module:
    """ResNet-18 for pictures of 32 x 32: 11.2 M parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    inputs = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [_Block(inputs, outputs, stride), _Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, _CLASSES))


def _mlp(*widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in zip(widths, widths[1:]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


# Each model, and the shape of one input. mlp has 24.9 M parameters.
_MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: _mlp(1024, 4096, 4096, 960, _CLASSES), (1024,)),
    "resnet18": (_resnet18, (3, 32, 32)),
    "tiny": (lambda: _mlp(8, 16, _CLASSES), (8,)),
}


def _complete(value: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(value)
    return future


def _compression(manner: str) -> Any:
    from talweg.compression import Dithering, OneBit, RandomK, TopK

    found = {"topk": TopK(0.01), "randomk": RandomK(0.01), "onebit": OneBit()}
    return found.get(manner, Dithering(4))


class Trainer:
    """A model and all that a step needs, in one of the manners."""

    def __init__(self, manner: str, model: str, batch: int, rank: int, device: Device) -> None:
        torch.manual_seed(0)
        make, shape = _MODELS[model]
        self._device = device
        self._waits = manner in ("barrier", "ddp_alone")
        self._model = make().to(device.torch)
        if manner in ("fsdp", "fsdp_talweg"):
            from torch.distributed.fsdp import fully_shard

            for layer in self._model.children():
                if next(layer.parameters(), None) is not None:
                    fully_shard(layer)
            fully_shard(self._model)
        parameters = list(self._model.parameters())
        self._optimizer: torch.optim.Optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
        if manner in ("ddp", "nccl", "hook", "ddp_talweg", "ddp_alone"):
            ddp = DistributedDataParallel(self._model, gradient_as_bucket_view=True)
            if manner == "hook":
                import talweg.torch

                ddp.register_comm_hook(None, talweg.torch.ddp_hook)
            elif manner == "ddp_alone":
                ddp.register_comm_hook(None, lambda _, bucket: _complete(bucket.buffer()))
            self._model = ddp
        elif manner == "horovod":
            import horovod.torch as hvd

            self._optimizer = hvd.DistributedOptimizer(
                self._optimizer, self._model.named_parameters()
            )
        elif manner in ("optimizer", "overlap", "arrival"):
            import talweg.torch

            self._optimizer = talweg.torch.DistributedOptimizer(
                self._optimizer,
                self._model.named_parameters(),
                overlap_forward=None if manner == "optimizer" else self._model,
            )
            if manner == "arrival":
                # There is no option for it, because no user should want it.
                self._optimizer._talweg.priority_of = lambda index: 0  # type: ignore[attr-defined]
        elif manner in _COMPRESSED:
            import talweg.torch

            self._optimizer = talweg.torch.DistributedOptimizer(
                self._optimizer, self._model.named_parameters(), compression=_compression(manner)
            )
        torch.manual_seed(1 + rank)
        self._inputs = torch.randn(batch, *shape).to(device.torch)
        self._labels = torch.randint(_CLASSES, (batch,)).to(device.torch)

    def finish(self) -> None:
        """Takes the rounds under way, because another trainer may come."""
        synchronize = getattr(self._optimizer, "synchronize_parameters", None)
        if synchronize is not None:
            synchronize()

    def step(self) -> None:
        self._optimizer.zero_grad()
        functional.cross_entropy(self._model(self._inputs), self._labels).backward()
        if self._waits:
            import talweg.torch

            self._device.finish()
            talweg.torch.barrier()
        self._optimizer.step()
        self._device.finish()


def main() -> int:
    manner, place = sys.argv[1], sys.argv[2:]
    torch.set_num_threads(1)
    rank = int(place[0]) if place else -1
    if manner in _TALWEG:
        import talweg.torch

        talweg.torch.init()
        rank = talweg.torch.rank()
    elif manner == "horovod":
        import horovod.torch as hvd

        hvd.init()
        rank = hvd.rank()
    device = Device(rank)
    if manner in ("ddp", "nccl", "fsdp"):
        backend = "nccl" if manner == "nccl" else "gloo"
        method = f"file://{place[2]}"
        distributed.init_process_group(backend, method, rank=rank, world_size=int(place[1]))
    elif manner == "hook":
        distributed.init_process_group("gloo")  # The variables of `talweg run` tell its place.
    elif manner in _BACKEND:
        distributed.init_process_group("talweg")
    trainers: list[Trainer] = []

    def finish() -> None:
        for trainer in trainers:
            trainer.finish()
        trainers.clear()

    def prepare(order: Order) -> None:
        finish()
        trainers.append(Trainer(manner, order.dtype, order.sizes[0], rank, device))

    Control(rank).serve(prepare, lambda: trainers[0].step())
    finish()
    if distributed.is_initialized():
        distributed.destroy_process_group()
    if manner in _TALWEG:
        talweg.torch.shutdown()
    elif manner == "horovod":
        hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
