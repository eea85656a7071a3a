# SPDX-License-Identifier: Apache-2.0
"""One rank of tensorflow_test.py. It pushes 50 tensors in its own order, with one thread."""

from __future__ import annotations

import sys

import talweg.tensorflow as tw
import tensorflow as tf

_TENSORS = 50


def main() -> int:
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tw.init()
    order = list(range(_TENSORS))
    if tw.rank() % 2:
        order.reverse()

    @tf.function
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        sums = {}
        for i in order:
            # Each operation waits for its tensor, and the next operation waits for it.
            total = tw.push_pull(x + tf.cast(i, tf.float32), f"first.{i}", average=False)
            sums[i] = tw.push_pull(total * 2.0, f"second.{i}", average=False)
        return [sums[i] for i in range(_TENSORS)]

    size = tw.size()
    for _ in range(3):
        for i, total in enumerate(step(tf.ones([100]))):
            wanted = 2.0 * size * size * (1.0 + i)
            assert (total.numpy() == wanted).all(), (i, total.numpy()[0], wanted)
    print(f"rank {tw.rank()} has all {2 * _TENSORS} sums", flush=True)
    tw.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
