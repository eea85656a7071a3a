# SPDX-License-Identifier: Apache-2.0
"""Trains a small network on handwritten digits: on Gluon's MNIST if its files are there, else on
the digits of mnist_digits.py, which need no download.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import byteps.mxnet as bps
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

sys.path.append(str(Path(__file__).resolve().parents[1]))

import mnist_digits
from image_speed import ImageSpeed
from mnist_digits import Digits

_FILES = "train-images-idx3-ubyte.gz"


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--batch-size", type=int, default=64, help="digits of a rank's batch")
    parser.add_argument("--dtype", default="float32", choices=("float32", "float16"))
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--j", type=int, default=2, help="accepted; the digits are in memory")
    parser.add_argument(
        "--lr", type=float, default=0.01, help="of one rank; grows with their number"
    )
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--no-cuda", action="store_true", help="train on the CPU")
    parser.add_argument("--data-dir", default="data", help="where Gluon keeps MNIST")
    return parser.parse_args()


def _shaped(digits: Digits) -> Digits:
    return digits[0][:, None], digits[1].astype(np.float32)


def load_digits(directory: str) -> tuple[Digits, Digits]:
    """Returns training and test data: f32[n, 1, 28, 28] from 0 to 1, and f32[n], the classes."""
    if os.path.exists(os.path.join(directory, _FILES)):
        parts = [gluon.data.vision.MNIST(directory, train=train) for train in (True, False)]
        images = [part._data.asnumpy().transpose(0, 3, 1, 2) / 255 for part in parts]
        first, second = (
            (image.astype(np.float32), part._label.astype(np.float32))
            for image, part in zip(images, parts)
        )
        return first, second
    first, second = mnist_digits.load(bps.rank() == 0, f"in '{directory}'")
    return _shaped(first), _shaped(second)


def network() -> gluon.HybridBlock:
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(20, kernel_size=5, activation="relu"),
        gluon.nn.MaxPool2D(2, 2),
        gluon.nn.Conv2D(50, kernel_size=5, activation="relu"),
        gluon.nn.MaxPool2D(2, 2),
        gluon.nn.Flatten(),
        gluon.nn.Dense(512, activation="relu"),
        gluon.nn.Dense(10),
    )
    return net


def accuracy(net: gluon.HybridBlock, digits: Digits, dtype: str, place: mx.Context) -> float:
    """Tests this rank's part; returns the average over all ranks."""
    images, classes = (part[bps.rank() :: bps.size()] for part in digits)
    right = 0
    for begin in range(0, len(classes), 500):
        outputs = net(mx.nd.array(images[begin : begin + 500], dtype=dtype, ctx=place))
        right += int((outputs.asnumpy().argmax(1) == classes[begin : begin + 500]).sum())
    share = mx.nd.array([right / len(classes)])
    bps.byteps_push_pull(share, name="acc", is_average=True)
    return float(share.asscalar())


def main() -> None:
    options = parse_options()
    bps.init()
    on_gpu = mx.context.num_gpus() > 0 and not options.no_cuda
    place = mx.gpu(bps.local_rank()) if on_gpu else mx.cpu()
    bps.byteps_declare_tensor("acc")
    training, held_out = load_digits(options.data_dir)
    images, classes = (part[bps.rank() :: bps.size()] for part in training)

    net = network()
    net.cast(options.dtype)
    net.initialize(mx.init.Xavier(), ctx=place)
    net.hybridize()
    choices = {"learning_rate": options.lr * bps.size(), "momentum": options.momentum}
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", choices)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    # Every rank must have the same number of batches, though some have one digit more.
    batches = len(training[1]) // bps.size() // options.batch_size
    speed = ImageSpeed(bps.size(), "GPU" if on_gpu else "CPU")
    for epoch in range(options.epochs):
        speed.begin()
        order = np.random.RandomState(epoch).permutation(len(classes))
        for number in range(batches):
            own = order[number * options.batch_size : (number + 1) * options.batch_size]
            data = mx.nd.array(images[own], dtype=options.dtype, ctx=place)
            labels = mx.nd.array(classes[own], ctx=place)
            with autograd.record():
                loss = loss_of(net(data), labels)
            loss.backward()
            trainer.step(options.batch_size)
            speed.add(options.batch_size)
        mean = float(loss.mean().asscalar())
        reached = speed.text()
        right = accuracy(net, held_out, options.dtype, place)
        if bps.rank() == 0:
            print(
                f"Epoch[{epoch}]\tloss={mean:.4f}\taccuracy={right:.4f}\t{reached}",
                flush=True,
            )
    bps.shutdown()


if __name__ == "__main__":
    main()
