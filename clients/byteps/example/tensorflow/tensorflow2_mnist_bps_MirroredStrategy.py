# SPDX-License-Identifier: Apache-2.0
"""Trains on handwritten digits with byteps.tensorflow.distribute.MirroredStrategy."""

from __future__ import annotations

import argparse

import byteps.tensorflow as bps
import tensorflow as tf
from byteps.tensorflow import distribute
from digits_data import load_digits
from tf_speed import image_speed

_BATCH = 128
_STEPS = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, default=0, help="no effect: the launcher says it")
    parser.parse_args()
    bps.init()
    (images, classes), (test_images, test_classes) = load_digits(bps.rank() == 0)
    strategy = distribute.MirroredStrategy(devices=["/gpu:0"])
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(128, activation="relu"),
                tf.keras.layers.Dense(10),
            ]
        )
        model.build((None, 28, 28, 1))
    bps.broadcast_variables(model.variables, root_rank=0)
    rate = 0.1
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    whole = _BATCH * bps.size()

    def replica(images: tf.Tensor, classes: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(classes, model(images, training=True)) / whole
        variables = [each.value for each in model.trainable_variables]
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce("SUM", tape.gradient(loss, variables))
        for variable, gradient in zip(variables, gradients):
            variable.assign_sub(rate * gradient)
        return loss

    @tf.function
    def step(images: tf.Tensor, classes: tf.Tensor) -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(replica, (images, classes)), axis=None)

    dataset = (
        tf.data.Dataset.from_tensor_slices((images, classes))
        .shard(bps.size(), bps.rank())
        .repeat()
        .shuffle(10000)
        .batch(_BATCH)
    )
    speed = image_speed(bps.size())
    for number, (batch, labels) in enumerate(dataset.take(max(1, _STEPS // bps.size()))):
        loss = step(batch, labels)
        speed.add(_BATCH)
        if number % 10 == 0 and bps.rank() == 0:
            print(f"Step #{number}\tLoss: {float(loss):.6f}\t{speed.text()}", flush=True)
    right = tf.equal(tf.argmax(model(test_images), 1), test_classes)
    if bps.rank() == 0:
        accuracy = float(tf.reduce_mean(tf.cast(right, tf.float32)))
        print(f"Test set: accuracy {100.0 * accuracy:.2f}%", flush=True)


if __name__ == "__main__":
    main()
