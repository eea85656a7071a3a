# SPDX-License-Identifier: Apache-2.0
"""A rank that trains with MXNet in a job that others join.

    mxnet_grows.py STOP WAY

Each rank's gradient is 1, so every step subtracts 1/1024 from each weight, for any number of ranks.
It prints "step N of SIZE ranks" after each step, and "weights LEAST GREATEST of N steps" when the
file STOP exists.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import byteps.mxnet as bps
import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
import talweg
from mxnet import autograd, gluon

_RATE = 1.0 / 1024


class _Weights:
    """The weights of a network of one array, for a State."""

    def __init__(self, parameter: gluon.Parameter) -> None:
        self._parameter = parameter

    def state_dict(self) -> dict[str, np.ndarray]:
        return {"weights": self._parameter.data().asnumpy()}

    def load_state_dict(self, values: dict[str, np.ndarray]) -> None:
        self._parameter.set_data(mx.nd.array(values["weights"]))


def _optimizer() -> mx.optimizer.Optimizer:
    return mx.optimizer.create("sgd", learning_rate=_RATE)


# For each way: a function that makes its trainer, and whether step() gets the number of ranks as
# the batch size.
_WAYS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "horovod": (lambda params: hvd.DistributedTrainer(params, _optimizer()), False),
    "horovod_predivided": (
        lambda params: hvd.DistributedTrainer(params, _optimizer(), gradient_predivide_factor=2.0),
        False,
    ),
    "horovod_optimizer": (
        lambda params: gluon.Trainer(
            params,
            hvd.DistributedOptimizer(_optimizer(), gradient_predivide_factor=2.0),
            kvstore=None,
        ),
        False,
    ),
    "byteps": (lambda params: bps.DistributedTrainer(params, _optimizer()), False),
    "byteps_optimizer": (
        lambda params: gluon.Trainer(params, bps.DistributedOptimizer(_optimizer()), kvstore=None),
        False,
    ),
    "store": (
        lambda params: gluon.Trainer(
            params, _optimizer(), kvstore="horovod", update_on_kvstore=False
        ),
        True,
    ),
}


def main() -> int:
    stop, way = Path(sys.argv[1]), sys.argv[2]
    hvd.init()
    net = gluon.nn.Dense(8, in_units=1, use_bias=False)
    net.initialize(mx.init.Constant(hvd.rank()))  # begin() makes the weights rank 0's.
    make, gives_size = _WAYS[way]
    trainer = make(net.collect_params())
    state = talweg.State(weights=_Weights(net.weight), step=0)
    state.begin()
    is_stopped = False
    while not is_stopped:
        size = talweg.size()
        with autograd.record():
            loss = net(mx.nd.ones((1, 1))).sum()
        loss.backward()
        trainer.step(size if gives_size else 1)
        told = np.array([stop.exists()], np.int32)
        is_stopped = bool(talweg.push_pull(told, op=talweg.Op.MAX, name="stop")[0])
        state.step += 1
        state.end_step()
        print(f"step {state.step} of {size} ranks", flush=True)
    weights = net.weight.data().asnumpy() / _RATE
    print(f"weights {weights.min():g} {weights.max():g} of {state.step} steps", flush=True)
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
