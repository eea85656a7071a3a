# SPDX-License-Identifier: Apache-2.0
"""Trains on handwritten digits by Model.fit of arrays, with byteps.tensorflow.keras."""

from __future__ import annotations

import byteps.tensorflow.keras as bps
import tensorflow as tf
from digits_data import load_digits
from tf_speed import print_speed


def main() -> None:
    bps.init()
    (images, classes), test = load_digits(bps.rank() == 0)
    count = len(classes) // bps.size() * bps.size()  # Every rank gets the same number.
    images, classes = (each[bps.rank() : count : bps.size()] for each in (images, classes))
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(16, 5, strides=2, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=bps.DistributedOptimizer(tf.keras.optimizers.Adadelta(1.0 * bps.size())),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    model.fit(
        images,
        classes,
        batch_size=64,
        epochs=max(1, 12 // bps.size()),
        verbose=2 if bps.rank() == 0 else 0,
        callbacks=[
            bps.callbacks.BroadcastGlobalVariablesCallback(0),
            print_speed(tf.keras, bps, len(classes), 64),
        ],
    )
    _, accuracy = model.evaluate(*test, verbose=0)
    if bps.rank() == 0:
        print(f"Test set: accuracy {100.0 * accuracy:.2f}%", flush=True)


if __name__ == "__main__":
    main()
