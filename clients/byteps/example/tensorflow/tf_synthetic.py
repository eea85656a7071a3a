# SPDX-License-Identifier: Apache-2.0
"""The common part of TensorFlow's benchmarks: options, a random batch, and the output."""

from __future__ import annotations

import argparse
import timeit
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf


def parse_options(description: str, fp16_option: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        fp16_option, dest="fp16", action="store_true", help="gradients travel as f16"
    )
    parser.add_argument("--model", default="ResNet50", help="a model of keras.applications")
    parser.add_argument("--batch-size", type=int, default=32, help="images of a rank's batch")
    parser.add_argument("--num-warmup-batches", type=int, default=10, help="batches before timing")
    parser.add_argument(
        "--num-batches-per-iter", type=int, default=10, help="batches of one figure"
    )
    parser.add_argument("--num-iters", type=int, default=10, help="number of figures")
    parser.add_argument("--num-classes", type=int, default=1000, help="classes of the images")
    parser.add_argument("--image-size", type=int, default=224, help="width and height of an image")
    parser.add_argument("--eager", action="store_true", help="without tf.function")
    parser.add_argument("--no-cuda", action="store_true", help="train on the CPU")
    return parser.parse_args()


def choose_device(options: argparse.Namespace, local_rank: int) -> str:
    """Leaves this rank one GPU, or none; returns the device's name for the output."""
    devices = tf.config.list_physical_devices("GPU")
    if options.no_cuda or not devices:
        tf.config.set_visible_devices([], "GPU")
        return "CPU"
    tf.config.set_visible_devices(devices[local_rank % len(devices)], "GPU")
    return "GPU"


def make_model(options: argparse.Namespace) -> Any:
    shape = (options.image_size, options.image_size, 3)
    make = getattr(tf.keras.applications, options.model, None)
    if make is None:
        raise SystemExit(f"--model is '{options.model}', which keras.applications does not have")
    return make(weights=None, input_shape=shape, classes=options.num_classes)


def random_batch(options: argparse.Namespace) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns images and their classes."""
    shape = (options.batch_size, options.image_size, options.image_size, 3)
    classes = tf.random.uniform([options.batch_size], maxval=options.num_classes, dtype=tf.int64)
    return tf.random.uniform(shape), classes


def run(options: argparse.Namespace, bps: Any, device: str, step: Callable[[], Any]) -> None:
    """Prints each measurement in images per second, then their mean and spread, at rank 0."""

    def say(text: str) -> None:
        if bps.rank() == 0:
            print(text, flush=True)

    size = bps.size()
    say(f"Model: {options.model}")
    say(f"Batch size: {options.batch_size}")
    say(f"Number of {device}s: {size}")
    say("Running warmup...")
    timeit.timeit(step, number=options.num_warmup_batches)
    say("Running benchmark...")
    figures = []
    for i in range(options.num_iters):
        seconds = timeit.timeit(step, number=options.num_batches_per_iter)
        figure = options.batch_size * options.num_batches_per_iter / seconds
        say(f"Iter #{i}: {figure:.1f} img/sec per {device}")
        figures.append(figure)
    if not figures:
        return
    mean, spread = float(np.mean(figures)), 1.96 * float(np.std(figures))
    say(f"Img/sec per {device}: {mean:.1f} +-{spread:.1f}")
    say(f"Total img/sec on {size} {device}(s): {size * mean:.1f} +-{size * spread:.1f}")
