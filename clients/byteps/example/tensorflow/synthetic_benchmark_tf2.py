# SPDX-License-Identifier: Apache-2.0
"""Measures images per second in training, with byteps.tensorflow.DistributedGradientTape."""

from __future__ import annotations

import byteps.tensorflow as bps
import tensorflow as tf
import tf_synthetic


def main() -> None:
    options = tf_synthetic.parse_options(str(__doc__), "--fp16-allreduce")
    bps.init()
    device = tf_synthetic.choose_device(options, bps.local_rank())
    model = tf_synthetic.make_model(options)
    images, classes = tf_synthetic.random_batch(options)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy()
    optimizer = tf.keras.optimizers.SGD(0.01)
    compression = bps.Compression.fp16 if options.fp16 else bps.Compression.none

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(classes, model(images, training=True))
        tape = bps.DistributedGradientTape(tape, compression=compression)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    bps.broadcast_variables(model.variables, root_rank=0)
    tf_synthetic.run(options, bps, device, step if options.eager else tf.function(step))


if __name__ == "__main__":
    main()
