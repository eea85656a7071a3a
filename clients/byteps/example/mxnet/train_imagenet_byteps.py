# SPDX-License-Identifier: Apache-2.0
"""Trains a network of Gluon's model zoo with byteps.mxnet.DistributedTrainer: on ImageNet's record
files, or with --benchmark 1 on random images, to measure images per second.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator

import byteps.mxnet as bps
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon.model_zoo import vision

Batch = tuple[mx.nd.NDArray, mx.nd.NDArray]


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--network", default="resnet", help="resnet, vgg, alexnet or mobilenet")
    parser.add_argument("--num-layers", type=int, default=50, help="of a resnet or a vgg")
    parser.add_argument("--benchmark", type=int, default=0, choices=(0, 1), help="1: random images")
    parser.add_argument("--batch-size", type=int, default=128, help="images of a rank's batch")
    parser.add_argument("--num-epochs", type=int, default=80)
    parser.add_argument(
        "--num-examples", type=int, default=1281167, help="of an epoch, of all ranks"
    )
    parser.add_argument("--num-classes", type=int, default=1000)
    parser.add_argument("--image-shape", default="3,224,224", help="channels, height, width")
    parser.add_argument("--optimizer", default="sgd", help="a name that mxnet.optimizer knows")
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate")
    parser.add_argument("--lr-factor", type=float, default=0.1, help="of each step of the rate")
    parser.add_argument("--lr-step-epochs", default="30,60", help="epochs that lower the rate")
    parser.add_argument("--mom", type=float, default=0.9, help="momentum of sgd and nag")
    parser.add_argument("--wd", type=float, default=1e-4, help="weight decay")
    parser.add_argument("--dtype", default="float32", choices=("float32", "float16"))
    parser.add_argument("--cpu-train", action="store_true", help="train on the CPU")
    parser.add_argument("--disp-batches", type=int, default=20, help="batches between two lines")
    parser.add_argument("--data-train", help="a record file of im2rec.py")
    parser.add_argument("--data-nthreads", type=int, default=4, help="threads that decode images")
    parser.add_argument("--random-crop", type=int, default=1, choices=(0, 1))
    parser.add_argument("--random-mirror", type=int, default=1, choices=(0, 1))
    parser.add_argument("--rgb-mean", default="123.68,116.779,103.939", help="subtracted")
    parser.add_argument("--pad-size", type=int, default=0, help="pixels around each image")
    options = parser.parse_args()
    if not options.benchmark and not options.data_train:
        parser.error("--data-train names ImageNet's record file, unless --benchmark 1 is given")
    options.shape = tuple(int(length) for length in options.image_shape.split(","))
    return options


def network(options: argparse.Namespace) -> gluon.HybridBlock:
    names = {
        "resnet": f"resnet{options.num_layers}_v1",
        "vgg": f"vgg{options.num_layers}",
        "alexnet": "alexnet",
        "mobilenet": "mobilenet1_0",
    }
    make = getattr(vision, names.get(options.network, ""), None)
    if make is None:
        raise SystemExit(
            f"train_imagenet_byteps.py: there is no {options.network} of {options.num_layers} layers: "
            "--network is resnet, vgg, alexnet or mobilenet; a resnet has 18, 34, 50, 101 or 152 "
            "--num-layers, a vgg 11, 13, 16 or 19"
        )
    net: gluon.HybridBlock = make(classes=options.num_classes)
    return net


def random_batches(options: argparse.Namespace, place: mx.Context) -> Iterator[Batch]:
    """Yields the same random batch again and again."""
    images = mx.nd.random.uniform(-1, 1, (options.batch_size, *options.shape), ctx=place)
    classes = mx.nd.random.randint(0, options.num_classes, (options.batch_size,), ctx=place)
    for _ in range(max(1, options.num_examples // options.batch_size // bps.size())):
        yield images.astype(options.dtype), classes.astype("float32")


def recorded_batches(options: argparse.Namespace, place: mx.Context) -> Iterator[Batch]:
    """Yields this rank's part of the record file once."""
    red, green, blue = (float(mean) for mean in options.rgb_mean.split(","))
    batches = mx.io.ImageRecordIter(
        path_imgrec=options.data_train,
        data_shape=options.shape,
        batch_size=options.batch_size,
        shuffle=True,
        rand_crop=bool(options.random_crop),
        rand_mirror=bool(options.random_mirror),
        pad=options.pad_size,
        mean_r=red,
        mean_g=green,
        mean_b=blue,
        preprocess_threads=options.data_nthreads,
        num_parts=bps.size(),
        part_index=bps.rank(),
    )
    for batch in batches:
        yield (
            batch.data[0].astype(options.dtype).as_in_context(place),
            batch.label[0].as_in_context(place),
        )


class Meter:
    """Prints progress, and images per second of a rank and of all ranks."""

    def __init__(self, options: argparse.Namespace, device: str) -> None:
        self._options = options
        self._device = device
        self._figures: list[float] = []
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        if bps.rank() == 0:
            print(text, flush=True)

    def restart(self) -> None:
        """Starts the time anew."""
        self._began = time.monotonic()

    def after(self, epoch: int, batch: int, loss: mx.nd.NDArray) -> None:
        if (batch + 1) % self._options.disp_batches != 0:
            return
        value = float(loss.mean().asscalar())  # Waits for the batch.
        now = time.monotonic()
        figure = self._options.batch_size * self._options.disp_batches / (now - self._began)
        self._figures.append(figure)
        self.say(
            f"Epoch[{epoch}] Batch [{batch + 1}]\tloss={value:.4f}\tSpeed: {figure:.1f} img/sec per "
            f"{self._device}, {figure * bps.size():.1f} in all"
        )
        self._began = time.monotonic()

    def end(self) -> None:
        if not self._figures:
            return
        count, size = len(self._figures), bps.size()
        mean = sum(self._figures) / count
        spread = 1.96 * math.sqrt(sum((each - mean) ** 2 for each in self._figures) / count)
        self.say(f"Img/sec per {self._device}: {mean:.1f} +-{spread:.1f}")
        self.say(
            f"Total img/sec on {size} {self._device}(s): {size * mean:.1f} +-{size * spread:.1f}"
        )


def main() -> None:
    options = parse_options()
    bps.init()
    on_gpu = mx.context.num_gpus() > 0 and not options.cpu_train
    place = mx.gpu(bps.local_rank()) if on_gpu else mx.cpu()
    meter = Meter(options, "GPU" if on_gpu else "CPU")
    net = network(options)
    net.cast(options.dtype)
    net.initialize(mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2), ctx=place)
    net.hybridize(static_alloc=True, static_shape=True)

    choices = {"learning_rate": options.lr, "wd": options.wd}
    if options.optimizer in ("sgd", "nag"):
        choices["momentum"] = options.mom
    if options.dtype == "float16":
        choices["multi_precision"] = True
    trainer = bps.DistributedTrainer(net.collect_params(), options.optimizer, choices)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    lowered = {int(epoch) for epoch in options.lr_step_epochs.split(",") if epoch}

    meter.say(f"Model: {options.network} of {options.num_layers} layers")
    meter.say(f"Batch size: {options.batch_size}")
    meter.say(f"Number of {'GPU' if on_gpu else 'CPU'}s: {bps.size()}")
    for epoch in range(options.num_epochs):
        if epoch in lowered:
            trainer.set_learning_rate(trainer.learning_rate * options.lr_factor)
        make = random_batches if options.benchmark else recorded_batches
        meter.restart()
        for number, (images, classes) in enumerate(make(options, place)):
            with autograd.record():
                loss = loss_of(net(images), classes)
            loss.backward()
            trainer.step(options.batch_size)
            meter.after(epoch, number, loss)
    mx.nd.waitall()
    meter.end()
    bps.shutdown()


if __name__ == "__main__":
    main()
