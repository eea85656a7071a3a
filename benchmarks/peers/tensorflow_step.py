# SPDX-License-Identifier: Apache-2.0
"""One rank that makes TensorFlow's training steps as ./bench orders (control.h).

    tensorflow_step.py none|mirrored|kernel|python [RANK SIZE STORE]

In an order "dtype" is the model and "bytes" the batch. `none` trains without communicating.
`mirrored` uses TensorFlow's own MultiWorkerMirroredStrategy. The others use Talweg's optimizer,
whose operations are its kernel or Python functions.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from control import Control, Order

_CLASSES = 10
_TALWEG = ("kernel", "python")
# The number of inputs, and the widths of the layers. mlp is that of training_step.py, with 24.9 M
# parameters.
_MODELS: dict[str, tuple[int, ...]] = {
    "mlp": (1024, 4096, 4096, 960, _CLASSES),
    "layers": (256, *(256,) * 40, _CLASSES),
    "tiny": (8, 16, _CLASSES),
}


def _announce(rank: int, size: int, store: str) -> None:
    """Tells the workers of TensorFlow's strategy all addresses, which the harness may give."""
    host = os.environ.get("TALWEG_BENCH_ADDRESS", "127.0.0.1")
    with socket.socket() as probe:
        probe.bind((host, 0))
        port = probe.getsockname()[1]
    partial = Path(f"{store}.{rank}.partial")
    partial.write_text(f"{host}:{port}")
    partial.rename(f"{store}.{rank}")
    places = [Path(f"{store}.{each}") for each in range(size)]
    while not all(place.exists() for place in places):
        time.sleep(0.01)
    workers = [place.read_text() for place in places]
    task = {"type": "worker", "index": rank}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})


def _step(tf: Any, manner: str, order: Order, rank: int, strategy: Any) -> Callable[[], Any]:
    """Returns a traced step of a new model."""
    widths, batch = _MODELS[order.dtype], order.sizes[0]
    with strategy.scope():
        tf.random.set_seed(0)
        weights = []
        for inputs, outputs in zip(widths, widths[1:]):
            weights.append(tf.Variable(tf.random.normal([inputs, outputs], stddev=inputs**-0.5)))
            weights.append(tf.Variable(tf.zeros([outputs])))
        slots = [tf.Variable(tf.zeros_like(each)) for each in weights]
    tf.random.set_seed(1 + rank)
    images = tf.random.normal([batch, widths[0]])
    classes = tf.random.uniform([batch], maxval=_CLASSES, dtype=tf.int64)

    def loss_of() -> Any:
        x = images
        for i in range(0, len(weights), 2):
            x = x @ weights[i] + weights[i + 1]
            if i + 2 < len(weights):
                x = tf.nn.relu(x)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(classes, x))

    def replica() -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of()
        if manner in _TALWEG:
            import talweg.tensorflow as tw

            tape = tw.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, weights)
        if manner == "mirrored":
            context = tf.distribute.get_replica_context()
            gradients = context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients)
        for weight, slot, gradient in zip(weights, slots, gradients):
            slot.assign(0.9 * slot + gradient)  # SGD with momentum.
            weight.assign_sub(0.01 * slot)
        return loss

    return tf.function(lambda: strategy.run(replica) if manner == "mirrored" else replica())


def main() -> int:
    manner, place = sys.argv[1], sys.argv[2:]
    rank = int(place[0]) if place else -1
    if manner == "mirrored":
        _announce(rank, int(place[1]), place[2])
    if manner in _TALWEG:
        os.environ["TALWEG_TENSORFLOW_OPS"] = manner
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    if manner in _TALWEG:
        import talweg.tensorflow as tw

        tw.init()
        rank = tw.rank()
    mirrored = manner == "mirrored"
    strategy = (
        tf.distribute.MultiWorkerMirroredStrategy() if mirrored else tf.distribute.get_strategy()
    )
    steps: list[Callable[[], Any]] = []

    def prepare(order: Order) -> None:
        steps[:] = [_step(tf, manner, order, rank, strategy)]

    Control(rank).serve(prepare, lambda: steps[0]())
    if manner in _TALWEG:
        tw.shutdown()
    # At exit TensorFlow's strategy waits for its peers, which may be gone.
    sys.stdout.flush()
    if mirrored:
        os._exit(0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
