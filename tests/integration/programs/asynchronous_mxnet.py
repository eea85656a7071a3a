# SPDX-License-Identifier: Apache-2.0
"""One rank of mxnet_test.py: BYTEPS_ENABLE_ASYNC=1, in programs written for BytePS."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import mxnet as mx
import numpy as np
import talweg
import talweg.byteps.mxnet as bps
from cases import run_cases
from expected_errors import expect
from mxnet import gluon

_SHAPES = {0: (4,), 1: (2, 3)}


def _gather(value: Any) -> list[Any]:
    return talweg.all_gather_object(value)


def _adder(**keywords: Any) -> mx.optimizer.Optimizer:
    """Returns an optimizer whose step adds the gradient's negative: sums of it are exact."""
    return mx.optimizer.create("sgd", learning_rate=1.0, **keywords)


def updates_one_by_one() -> None:
    """As Module.fit() makes them. The first step is not shared: it tells the weights."""
    optimizer = bps.DistributedOptimizer(_adder())
    assert isinstance(optimizer, mx.optimizer.Optimizer)
    updater = mx.optimizer.get_updater(optimizer)
    weights = {index: mx.nd.zeros(shape) for index, shape in _SHAPES.items()}
    bps.broadcast_parameters({str(index): weight for index, weight in weights.items()})
    steps = 2 + bps.rank()
    for number in range(1 + steps):
        for index, weight in weights.items():
            updater(index, mx.nd.full(weight.shape, -1.0 - bps.rank()), weight)
        least = min(float(weight.asnumpy().min()) for weight in weights.values())
        # After the first step all ranks take rank 0's weights, which are ones.
        assert number == 0 or least >= 1.0 + number * (1.0 + bps.rank()), (number, least)
    optimizer.flush()
    wanted = 1.0 + sum(_gather(steps * (1.0 + bps.rank())))
    for weight in weights.values():
        np.testing.assert_array_equal(weight.asnumpy(), wanted)

    # A step may leave a weight out.
    updater(0, mx.nd.full(_SHAPES[0], -1.0), weights[0])
    updater(0, mx.nd.full(_SHAPES[0], -1.0), weights[0])
    optimizer.flush()
    np.testing.assert_array_equal(weights[0].asnumpy(), wanted + 2 * bps.size())
    np.testing.assert_array_equal(weights[1].asnumpy(), wanted)


def a_trainer() -> None:
    mx.random.seed(bps.rank())
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(8, activation="relu"), gluon.nn.Dense(2))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    parameters = {"learning_rate": 0.05 / bps.size(), "momentum": 0.5}
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", parameters)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    random = np.random.default_rng(bps.rank())

    def train(steps: int) -> float:
        for _ in range(steps):
            x = random.standard_normal((16, 6))
            with mx.autograd.record():
                value = loss(net(mx.nd.array(x)), mx.nd.array(x.sum(axis=1) > 0))
            value.backward()
            trainer.step(16)
        return float(value.mean().asscalar())

    first = train(1)
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "states")
        train(10 + 5 * bps.rank())
        trainer.save_states(path)
        trainer.load_states(path)
    last = train(50)
    assert last < first, (first, last)
    trainer.flush()
    own = [each.data().asnumpy() for each in net.collect_params().values()]
    for others in _gather(own):
        for one, other in zip(own, others):
            np.testing.assert_array_equal(one, other)


def what_is_refused() -> None:
    unsupported = "is not offered by Talweg"
    expect(talweg.Unsupported, unsupported, mx.kv.create, "byteps")
    net = gluon.nn.Dense(2, in_units=3)
    net.initialize()
    make, codec = bps.DistributedTrainer, {"compressor": "onebit"}
    parameters = net.collect_params()
    expect(talweg.Unsupported, unsupported, make, parameters, "sgd", None, 0, codec)
    expect(ValueError, "must be None", make, parameters, _adder(), {"momentum": 0.9})
    optimizer = bps.DistributedOptimizer(_adder(multi_precision=True))
    updater = mx.optimizer.get_updater(optimizer)
    half = mx.nd.ones((2,), dtype="float16")
    expect(talweg.Unsupported, "multi_precision", updater, 0, half, half)
    optimizer = bps.DistributedOptimizer(_adder())
    updater = mx.optimizer.get_updater(optimizer)
    ones = mx.nd.ones((2,))
    updater(0, ones, ones)
    updater(0, ones, ones)
    expect(talweg.InvalidArgument, "was not in the first step", updater, 1, ones, ones)
    optimizer.flush()


def the_end_waits() -> None:
    """A program of BytePS's has no flush()."""
    weight, size = mx.nd.zeros((3,)), bps.size()
    updater = mx.optimizer.get_updater(bps.DistributedOptimizer(_adder()))
    for _ in range(2 + bps.rank()):
        updater(0, mx.nd.full((3,), -1.0), weight)
    bps.shutdown()
    np.testing.assert_array_equal(weight.asnumpy(), 1.0 + size * (size + 1) / 2)


def main() -> None:
    bps.init()
    run_cases(updates_one_by_one, a_trainer, what_is_refused, the_end_waits)
    print("done", flush=True)


if __name__ == "__main__":
    main()
