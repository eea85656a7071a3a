# SPDX-License-Identifier: Apache-2.0
"""One rank that makes MXNet's training steps as ./bench orders (control.h).

    mxnet_step.py none|dist_sync|trainer|store [RANK]

In an order "dtype" is the model and "bytes" the batch. `none` trains without communicating,
`dist_sync` over MXNet's own parameter server. The others run over Talweg: `trainer` is
byteps.mxnet.DistributedTrainer, `store` is Gluon's trainer with the KVStore `byteps`. A step is
over when MXNet's engine has nothing left to do.
"""

from __future__ import annotations

import sys

import mxnet as mx
from control import Control, Order
from mxnet import autograd, gluon

_CLASSES = 10
# The widths of each model's layers. mlp has 24.9 M parameters.
_MODELS = {"mlp": (1024, 4096, 4096, 960, _CLASSES), "tiny": (8, 16, _CLASSES)}
_SGD = {"learning_rate": 0.01, "momentum": 0.9}


class Trainer:
    """A model and all that a step needs, in one of the manners."""

    def __init__(self, manner: str, model: str, batch: int, rank: int) -> None:
        self.case = model, batch
        mx.random.seed(0)
        inputs, *widths = _MODELS[model]
        self._net = gluon.nn.HybridSequential()
        for width in widths:
            activation = None if width == _CLASSES else "relu"
            self._net.add(gluon.nn.Dense(width, activation=activation, in_units=inputs))
            inputs = width
        self._net.initialize(mx.init.Xavier())
        self._net.hybridize(static_alloc=True, static_shape=True)
        self._loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
        self._loss_of.hybridize(static_alloc=True, static_shape=True)
        parameters = self._net.collect_params()
        if manner == "trainer":
            import talweg.byteps.mxnet as bps

            self._trainer = bps.DistributedTrainer(parameters, "sgd", dict(_SGD))
        else:
            stores = {"none": None, "store": "byteps"}
            store = stores.get(manner, manner)
            self._trainer = gluon.Trainer(parameters, "sgd", dict(_SGD), kvstore=store)
        mx.random.seed(1 + rank)
        self._batch = batch
        self._inputs = mx.nd.random.normal(shape=(batch, _MODELS[model][0]))
        self._labels = mx.nd.random.randint(0, _CLASSES, (batch,)).astype("float32")

    def step(self) -> None:
        with autograd.record():
            loss = self._loss_of(self._net(self._inputs), self._labels)
        loss.backward()
        self._trainer.step(self._batch)
        mx.nd.waitall()


def main() -> int:
    manner = sys.argv[1]
    rank = int(sys.argv[2]) if len(sys.argv) > 2 else -1
    if manner in ("trainer", "store"):
        import talweg.byteps.mxnet as bps

        bps.init()
        rank = bps.rank()
    trainers: list[Trainer] = []

    def prepare(order: Order) -> None:
        """Makes the model at the first call. A process can have only one distributed store."""
        if not trainers:
            trainers.append(Trainer(manner, order.dtype, order.sizes[0], rank))
        elif trainers[0].case != (order.dtype, order.sizes[0]):
            raise ValueError(f"a job has one case, and was made for {trainers[0].case}")

    Control(rank).serve(prepare, lambda: trainers[0].step())
    return 0


if __name__ == "__main__":
    sys.exit(main())
