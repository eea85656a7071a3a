# SPDX-License-Identifier: Apache-2.0
"""Trains on handwritten digits by a graph and a session, as programs of TensorFlow 1 do."""

from __future__ import annotations

from typing import Any

import byteps.tensorflow as bps
import numpy as np
import tensorflow as tf
from digits_data import load_digits
from tf_speed import image_speed

_BATCH = 100
_STEPS = 400
v1 = tf.compat.v1


def _weights(name: str, *shape: int) -> tf.Variable:
    scale = (2.0 / np.prod(shape[:-1])) ** 0.5
    return v1.get_variable(name, initializer=tf.random.normal(shape, stddev=scale))


def _logits(images: tf.Tensor) -> tf.Tensor:
    """Returns the outputs of a convolution and two linear layers."""
    x = tf.nn.conv2d(images, _weights("conv", 5, 5, 1, 16), strides=2, padding="VALID")
    x = tf.reshape(tf.nn.relu(x), [-1, 12 * 12 * 16])
    x = tf.nn.relu(x @ _weights("dense1", 12 * 12 * 16, 64))
    return x @ _weights("dense2", 64, 10)


def main() -> None:
    bps.init()
    v1.disable_eager_execution()
    (images, classes), (test_images, test_classes) = load_digits(bps.rank() == 0)
    images, classes = images[bps.rank() :: bps.size()], classes[bps.rank() :: bps.size()]
    x = v1.placeholder(tf.float32, [None, 28, 28, 1])
    y = v1.placeholder(tf.int64, [None])
    logits = _logits(x)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
    right = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32))
    optimizer = bps.DistributedOptimizer(v1.train.RMSPropOptimizer(0.001 * bps.size()))
    global_step = v1.train.get_or_create_global_step()
    train = optimizer.minimize(loss, global_step=global_step)
    hooks = [
        bps.BroadcastGlobalVariablesHook(0),
        v1.train.StopAtStepHook(last_step=max(1, _STEPS // bps.size())),
    ]

    def test(step_context: Any) -> float:
        """Returns the share of right classes, without the session's hooks."""
        return step_context.session.run(right, {x: test_images, y: test_classes})

    random = np.random.RandomState(bps.rank())
    speed = image_speed(bps.size())
    with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
        accuracy = 0.0
        speed.begin()
        while not session.should_stop():
            batch = random.randint(len(classes), size=_BATCH)
            given = {x: images[batch], y: classes[batch]}
            _, step, now = session.run([train, global_step, loss], given)
            speed.add(_BATCH)
            if step % 10 == 0 and bps.rank() == 0:
                print(f"step = {step}\tloss = {now:.6f}\t{speed.text()}", flush=True)
            if step % 50 == 0 and not session.should_stop():
                accuracy = session.run_step_fn(test)
                speed.begin()
        if bps.rank() == 0:
            print(f"Test set: accuracy {100.0 * accuracy:.2f}%", flush=True)


if __name__ == "__main__":
    main()
