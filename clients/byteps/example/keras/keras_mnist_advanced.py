# SPDX-License-Identifier: Apache-2.0
"""Adds averaged metrics, a learning rate warmup and augmented images to keras_mnist.py."""

from __future__ import annotations

import argparse

import byteps.keras as bps
import keras
import tensorflow as tf
from keras_digits import load_digits, make_model, print_speed

_BATCH = 128


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=24, help="of one rank; more ranks share them")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    bps.init()
    (images, classes), test = load_digits(bps.rank() == 0)
    steps = max(1, len(classes) // _BATCH // bps.size())
    augment = keras.Sequential(
        [
            keras.layers.RandomRotation(0.02),
            keras.layers.RandomTranslation(0.08, 0.08),
            keras.layers.RandomZoom(0.08),
        ]
    )
    data = (
        tf.data.Dataset.from_tensor_slices((images, classes))
        .shard(bps.size(), bps.rank())
        .repeat()
        .shuffle(10000)
        .batch(_BATCH)
        .map(lambda x, y: (augment(x, training=True), y))
    )
    model = make_model()
    rate = 1.0 * bps.size()
    model.compile(
        optimizer=bps.DistributedOptimizer(keras.optimizers.Adadelta(rate)),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    model.fit(
        data,
        steps_per_epoch=steps,
        epochs=max(1, options.epochs // bps.size()),
        verbose=2 if bps.rank() == 0 else 0,
        validation_data=test,
        callbacks=[
            bps.callbacks.BroadcastGlobalVariablesCallback(0),
            bps.callbacks.MetricAverageCallback(),
            bps.callbacks.LearningRateWarmupCallback(
                warmup_epochs=5, initial_lr=rate, steps_per_epoch=steps, verbose=1
            ),
            keras.callbacks.ReduceLROnPlateau(patience=10, verbose=1),
            print_speed(keras, bps, steps * _BATCH, _BATCH),
        ],
    )
    loss, accuracy = (float(bps.push_pull(each)) for each in model.evaluate(*test, verbose=0))
    if bps.rank() == 0:
        print(f"Test loss: {loss:.4f}\nTest accuracy: {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
