# SPDX-License-Identifier: Apache-2.0
"""One rank of tensorflow_test.py. It trains on handwritten digits, and prints each step's loss.

    tensorflow_training.py fit|tape|tf_keras

Ranks take equal parts of one batch, so the batch is the same for any number of ranks.
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import keras
import numpy as np
import talweg.tensorflow as tw
import tensorflow as tf
import tf_keras
from sklearn.datasets import load_digits

_BATCH = 64
_STEPS = 20


def _digits() -> tuple[np.ndarray, np.ndarray]:
    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))[: _BATCH * _STEPS]
    images = (digits.images[order] / 16.0).astype(np.float32)[..., None]
    return images, digits.target[order].astype(np.int64)


def _model(kind: Any) -> Any:
    kind.utils.set_random_seed(1 + tw.rank())  # A broadcast makes the weights equal.
    return kind.Sequential(
        [
            kind.layers.Conv2D(8, 3, activation="relu"),
            kind.layers.Flatten(),
            kind.layers.Dense(32, activation="relu"),
            kind.layers.Dense(10),
        ]
    )


def _own(images: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns this rank's part of every batch, in the order of the batches."""
    size, rank = tw.size(), tw.rank()
    part = _BATCH // size
    index = np.arange(len(classes)).reshape(-1, _BATCH)[:, rank * part : (rank + 1) * part]
    return images[index.ravel()], classes[index.ravel()]


def _fit(kind: Any) -> tuple[Any, list[float]]:
    images, classes = _own(*_digits())
    model = _model(kind)
    model.build((None, 8, 8, 1))
    tw.broadcast_variables(model.variables)
    loss = kind.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = tw.DistributedOptimizer(kind.optimizers.SGD(0.1, momentum=0.9))
    model.compile(optimizer, loss)
    batch = _BATCH // tw.size()
    losses = []
    for step in range(_STEPS):
        part = slice(step * batch, (step + 1) * batch)
        past = model.fit(
            images[part], classes[part], batch_size=batch, epochs=1, shuffle=False, verbose=0
        )
        losses.append(past.history["loss"][0])
    return model, losses


def _tape() -> tuple[Any, list[float]]:
    images, classes = _own(*_digits())
    model = _model(keras)
    model.build((None, 8, 8, 1))
    tw.broadcast_variables(model.variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)

    @tf.function
    def step(images: tf.Tensor, classes: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(classes, model(images, training=True))
        tape = tw.DistributedGradientTape(tape)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    batch = _BATCH // tw.size()
    losses = []
    for first in range(0, len(classes), batch):
        part = slice(first, first + batch)
        losses.append(float(step(tf.constant(images[part]), tf.constant(classes[part]))))
    return model, losses


def main() -> int:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tw.init()
    kind = sys.argv[1]
    kinds = {"fit": keras, "tf_keras": tf_keras}
    model, losses = _tape() if kind == "tape" else _fit(kinds[kind])
    mean = np.mean(tw.all_gather_object(losses), axis=0)
    weights = hashlib.sha256(b"".join(each.tobytes() for each in model.get_weights())).hexdigest()
    assert set(tw.all_gather_object(weights)) == {weights}, "the ranks' weights differ"
    if tw.rank() == 0:
        print("losses", *(f"{loss:.7f}" for loss in mean), flush=True)
    tw.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
