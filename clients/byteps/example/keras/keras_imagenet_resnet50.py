# SPDX-License-Identifier: Apache-2.0
"""Trains ResNet-50 on images in a directory for each class, and goes on from its checkpoints."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import byteps.keras as bps
import keras
import tensorflow as tf

sys.path.append(str(Path(__file__).resolve().parents[1] / "tensorflow"))

from tf_speed import print_speed


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    home = os.path.expanduser("~/imagenet")
    parser.add_argument("--train-dir", default=f"{home}/train", help="directories of images")
    parser.add_argument("--val-dir", default=f"{home}/validation", help="the same, to validate")
    parser.add_argument(
        "--log-dir", default="./logs", help="for TensorBoard, where it is installed"
    )
    parser.add_argument("--checkpoint-format", default="./checkpoint-{epoch}.keras")
    parser.add_argument("--fp16-pushpull", action="store_true", help="gradients travel as f16")
    parser.add_argument("--batch-size", type=int, default=32, help="images of a rank's batch")
    parser.add_argument("--val-batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--base-lr", type=float, default=0.0125, help="of one rank")
    parser.add_argument("--warmup-epochs", type=float, default=5)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--wd", type=float, default=5e-5, help="weight decay")
    parser.add_argument("--image-size", type=int, default=224)
    return parser.parse_args()


def _last_epoch(options: argparse.Namespace) -> int:
    """Returns the epoch of rank 0's newest checkpoint; 0 if there is none."""
    found = 0
    for epoch in range(options.epochs, 0, -1):
        if os.path.exists(options.checkpoint_format.format(epoch=epoch)):
            found = epoch
            break
    return int(bps.broadcast(found, 0, name="resume_from_epoch"))


def _images(directory: str, batch: int, options: argparse.Namespace, shuffles: bool) -> Any:
    data = keras.utils.image_dataset_from_directory(
        directory,
        batch_size=None,
        image_size=(options.image_size, options.image_size),
        shuffle=shuffles,
        seed=bps.rank(),
        verbose=bps.rank() == 0,
    )
    return data.shard(bps.size(), bps.rank()).repeat().batch(batch).prefetch(tf.data.AUTOTUNE)


def main() -> None:
    options = parse_options()
    bps.init()
    is_first = bps.rank() == 0
    done = _last_epoch(options)
    compression = bps.Compression.fp16 if options.fp16_pushpull else bps.Compression.none
    training = _images(options.train_dir, options.batch_size, options, True)
    validation = _images(options.val_dir, options.val_batch_size, options, False)
    count = sum(len(files) for _, _, files in os.walk(options.train_dir))
    steps = max(1, count // options.batch_size // bps.size())
    held_out = sum(len(files) for _, _, files in os.walk(options.val_dir))
    rate = options.base_lr * bps.size()
    if done > 0 and is_first:
        path = options.checkpoint_format.format(epoch=done)
        model = bps.load_model(path, compression=compression)
    else:
        classes = len(next(os.walk(options.train_dir))[1])
        shape = (options.image_size, options.image_size, 3)
        model = keras.Sequential(
            [
                keras.layers.Input(shape),
                keras.layers.Rescaling(1.0 / 127.5, offset=-1.0),
                keras.applications.ResNet50(weights=None, input_shape=shape, classes=classes),
            ]
        )
        sgd = keras.optimizers.SGD(rate, momentum=options.momentum, weight_decay=options.wd)
        model.compile(
            optimizer=bps.DistributedOptimizer(sgd, compression=compression),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
    schedule = bps.callbacks.LearningRateScheduleCallback
    warmup = int(options.warmup_epochs)
    callbacks = [
        bps.callbacks.BroadcastGlobalVariablesCallback(0),
        bps.callbacks.MetricAverageCallback(),
        bps.callbacks.LearningRateWarmupCallback(
            warmup_epochs=max(1, warmup), initial_lr=rate, steps_per_epoch=steps, verbose=is_first
        ),
        schedule(1.0, start_epoch=warmup, end_epoch=30, initial_lr=rate),
        schedule(lambda _: 1e-1, start_epoch=30, end_epoch=60, initial_lr=rate),
        schedule(lambda _: 1e-2, start_epoch=60, end_epoch=80, initial_lr=rate),
        schedule(lambda _: 1e-3, start_epoch=80, initial_lr=rate),
        print_speed(keras, bps, steps * options.batch_size, options.batch_size),
    ]
    if is_first:
        callbacks.append(keras.callbacks.ModelCheckpoint(options.checkpoint_format))
        if importlib.util.find_spec("tensorboard") is not None:
            callbacks.append(keras.callbacks.TensorBoard(options.log_dir))
        else:
            print("TensorBoard is not installed: there will be no log", flush=True)
    model.fit(
        training,
        steps_per_epoch=steps,
        callbacks=callbacks,
        epochs=options.epochs,
        initial_epoch=done,
        verbose=2 if is_first else 0,
        validation_data=validation,
        validation_steps=max(1, held_out // options.val_batch_size // bps.size()),
    )
    score = bps.push_pull(
        model.evaluate(validation, steps=max(1, held_out // options.val_batch_size), verbose=0)
    )
    if is_first:
        print("Test loss:", float(score[0]))
        print("Test accuracy:", float(score[1]), flush=True)


if __name__ == "__main__":
    main()
