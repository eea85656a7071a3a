# SPDX-License-Identifier: Apache-2.0
"""Trains on handwritten digits in tf.function, with byteps.tensorflow.DistributedGradientTape."""

from __future__ import annotations

import byteps.tensorflow as bps
import tensorflow as tf
from digits_data import load_digits
from tf_speed import image_speed

_BATCH = 128
_STEPS = 400


def main() -> None:
    bps.init()
    (images, classes), (test_images, test_classes) = load_digits(bps.rank() == 0)
    dataset = (
        tf.data.Dataset.from_tensor_slices((images, classes))
        .shard(bps.size(), bps.rank())
        .repeat()
        .shuffle(10000)
        .batch(_BATCH)
    )
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(2),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = tf.keras.optimizers.Adam(0.001 * bps.size())

    @tf.function
    def step(images: tf.Tensor, classes: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(classes, model(images, training=True))
        tape = bps.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    speed = image_speed(bps.size())
    for number, (batch, labels) in enumerate(dataset.take(max(1, _STEPS // bps.size()))):
        loss = step(batch, labels)
        speed.add(_BATCH)
        if number == 0:  # The first step has made the model's and the optimizer's variables.
            bps.broadcast_variables(model.variables, root_rank=0)
            bps.broadcast_variables(optimizer.variables, root_rank=0)
        if number % 10 == 0 and bps.rank() == 0:
            print(f"Step #{number}\tLoss: {float(loss):.6f}\t{speed.text()}", flush=True)
    found = tf.argmax(model(test_images), 1)
    accuracy = bps.push_pull(tf.reduce_mean(tf.cast(tf.equal(found, test_classes), tf.float32)))
    if bps.rank() == 0:
        print(f"Test set: accuracy {100.0 * float(accuracy):.2f}%", flush=True)


if __name__ == "__main__":
    main()
