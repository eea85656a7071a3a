# SPDX-License-Identifier: Apache-2.0
"""Trains with MXNet. See outliver.py.

The ways are `engine` (Horovod's DistributedTrainer) and `kvstore` (a Trainer with the store of
Horovod's name). Nothing reads a result before the step's end, so the whole step is under way at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
import talweg
from mxnet import autograd, gluon
from outliver import Program, main
from talweg._compat.mxnet import engine


class Weights:
    """The weights of a network, for a State."""

    def __init__(self, net: gluon.Block) -> None:
        self._parameters = list(net.collect_params().values())

    def state_dict(self) -> dict[str, np.ndarray]:
        return {f"{i}": each.data().asnumpy() for i, each in enumerate(self._parameters)}

    def load_state_dict(self, values: dict[str, np.ndarray]) -> None:
        for place, parameter in enumerate(self._parameters):
            parameter.set_data(mx.nd.array(values[f"{place}"]))


def train(program: Program, way: str) -> None:
    mx.random.seed(hvd.rank())  # begin() makes the weights equal.
    net = gluon.nn.HybridSequential(prefix=f"{way}_")
    net.add(gluon.nn.Dense(2000, in_units=20), gluon.nn.Dense(1, in_units=2000))
    net.initialize(mx.init.Xavier())
    parameters = net.collect_params()
    trainer: Any
    if way == "engine":
        trainer = hvd.DistributedTrainer(
            parameters, "sgd", {"learning_rate": 0.0002}, prefix=f"{way}."
        )
    else:
        trainer = gluon.Trainer(
            parameters, "sgd", {"learning_rate": 0.0001}, kvstore="horovod", update_on_kvstore=False
        )
    weights = Weights(net)

    def make_step(number: int) -> None:
        assert engine.wait_for_all(0)  # end_step() has waited.
        draw = np.random.RandomState(1000 * hvd.rank() + number)
        inputs = mx.nd.array(draw.standard_normal((8, 20)))
        # The product takes so long that the step is still under way when end_step() is called.
        large = mx.nd.dot(
            mx.nd.dot(mx.nd.ones((600, 600)), mx.nd.ones((600, 600))), mx.nd.ones((600, 20))
        )
        inputs = inputs + 0 * large[:8]
        with autograd.record():
            loss = (net(inputs) - inputs.sum(axis=1, keepdims=True)).square().mean()
        loss.backward()
        trainer.step(1)
        program.kill_if_told()

    def prepare() -> Callable[[int], None]:
        return make_step

    def of_net() -> Iterator[np.ndarray]:
        yield from weights.state_dict().values()

    state = talweg.State(weights=weights, step=0, stopped=False)
    program.run(way, state, prepare, of_net)


if __name__ == "__main__":
    main(train, hvd.init, hvd.shutdown)
