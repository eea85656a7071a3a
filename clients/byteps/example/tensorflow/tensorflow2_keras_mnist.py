# SPDX-License-Identifier: Apache-2.0
"""Trains on handwritten digits by Model.fit, with byteps.tensorflow.keras."""

from __future__ import annotations

import byteps.tensorflow.keras as bps
import tensorflow as tf
from digits_data import load_digits
from tf_speed import print_speed

_EPOCHS = 6


def main() -> None:
    bps.init()
    (images, classes), test = load_digits(bps.rank() == 0)
    images, classes = images[bps.rank() :: bps.size()], classes[bps.rank() :: bps.size()]
    steps = max(1, len(load_digits(False)[0][1]) // 64 // bps.size())
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(2),
            tf.keras.layers.Dropout(0.25),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )
    rate = 0.001 * bps.size()
    model.compile(
        optimizer=bps.DistributedOptimizer(tf.keras.optimizers.Adam(rate)),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    data = tf.data.Dataset.from_tensor_slices((images, classes)).repeat().shuffle(10000).batch(64)
    model.fit(
        data,
        steps_per_epoch=steps,
        epochs=_EPOCHS,
        verbose=2 if bps.rank() == 0 else 0,
        callbacks=[
            bps.callbacks.BroadcastGlobalVariablesCallback(0),
            bps.callbacks.MetricAverageCallback(),
            bps.callbacks.LearningRateWarmupCallback(
                warmup_epochs=3, initial_lr=rate, steps_per_epoch=steps, verbose=1
            ),
            print_speed(tf.keras, bps, steps * 64, 64),
        ],
    )
    _, accuracy = model.evaluate(*test, verbose=0)
    if bps.rank() == 0:
        print(f"Test set: accuracy {100.0 * accuracy:.2f}%", flush=True)


if __name__ == "__main__":
    main()
