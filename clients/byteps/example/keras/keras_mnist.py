# SPDX-License-Identifier: Apache-2.0
"""Trains on handwritten digits by Model.fit, with byteps.keras."""

from __future__ import annotations

import byteps.keras as bps
import keras
from keras_digits import load_digits, make_model, print_speed


def main() -> None:
    bps.init()
    (images, classes), test = load_digits(bps.rank() == 0)
    count = len(classes) // bps.size() * bps.size()  # Every rank gets the same number.
    images, classes = (each[bps.rank() : count : bps.size()] for each in (images, classes))
    model = make_model()
    model.compile(
        optimizer=bps.DistributedOptimizer(keras.optimizers.Adadelta(1.0 * bps.size())),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    model.fit(
        images,
        classes,
        batch_size=128,
        epochs=max(1, 12 // bps.size()),
        verbose=2 if bps.rank() == 0 else 0,
        validation_data=test,
        callbacks=[
            bps.callbacks.BroadcastGlobalVariablesCallback(0),
            print_speed(keras, bps, len(classes), 128),
        ],
    )
    loss, accuracy = model.evaluate(*test, verbose=0)
    if bps.rank() == 0:
        print(f"Test loss: {loss:.4f}\nTest accuracy: {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
