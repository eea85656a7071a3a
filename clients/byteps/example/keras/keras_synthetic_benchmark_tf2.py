# SPDX-License-Identifier: Apache-2.0
"""Measures images per second in training by Model.train_on_batch, with byteps.keras."""

from __future__ import annotations

import sys
from pathlib import Path

import byteps.tensorflow.keras as bps
import tensorflow as tf

sys.path.append(str(Path(__file__).resolve().parents[1] / "tensorflow"))

import tf_synthetic


def main() -> None:
    options = tf_synthetic.parse_options(str(__doc__), "--fp16-allreduce")
    bps.init()
    device = tf_synthetic.choose_device(options, bps.local_rank())
    model = tf_synthetic.make_model(options)
    images, classes = tf_synthetic.random_batch(options)
    compression = bps.Compression.fp16 if options.fp16 else bps.Compression.none
    sgd = tf.keras.optimizers.SGD(0.01)
    optimizer = bps.DistributedOptimizer(
        tf.keras.optimizers.LossScaleOptimizer(sgd), compression=compression
    )
    model.compile(
        optimizer=optimizer, loss="sparse_categorical_crossentropy", run_eagerly=options.eager
    )
    tf_synthetic.run(options, bps, device, lambda: model.train_on_batch(images, classes))


if __name__ == "__main__":
    main()
