# SPDX-License-Identifier: Apache-2.0
"""One rank of two or more. It checks what horovod.tensorflow and byteps.tensorflow raise where
ranks disagree: eagerly, in graphs with and without the kernel, in callbacks and in strategies.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import byteps.keras as bps_keras
import byteps.tensorflow as bps
import byteps.tensorflow.keras as bps_tf_keras
import horovod.keras as hvd_keras
import horovod.tensorflow as hvd
import keras
import tensorflow as tf
import tf_keras
from byteps.tensorflow import distribute
from cases import run_cases
from expected_errors import expect

_EAGER = tf.errors.FailedPreconditionError
# In a graph only the kernel's library, which may be missing, raises all of TensorFlow's errors.
_WITH_KERNEL = os.environ.get("TALWEG_TENSORFLOW_OPS") == "kernel"
_GRAPH = tf.errors.FailedPreconditionError if _WITH_KERNEL else tf.errors.UnknownError
_WAYS: tuple[tuple[Callable[[Any], Any], type[Exception]], ...] = (
    (lambda function: function, _EAGER),
    (tf.function, _GRAPH),
)


def _own_shape() -> tf.Tensor:
    return tf.ones([2 + hvd.rank() % 2])


def _refuse(text: str, call: Callable[[], Any]) -> None:
    """Requires that `call` raises an error with `text`, eagerly and in a graph."""
    for way, error in _WAYS:
        expect(error, text, way(call))


def calls() -> None:
    for call in (
        lambda each: hvd.allreduce(each, op=hvd.Sum, name="sums"),
        lambda each: bps.push_pull(each, name="sums", average=False),
    ):
        for way, error in _WAYS:
            run = way(call)
            expect(error, "f32[", run, _own_shape())
            assert (run(tf.ones([2])).numpy() == hvd.size()).all()


def dtypes_and_operations() -> None:
    mixed = tf.ones([2], (tf.float32, tf.float64)[bps.rank() % 2])
    _refuse("f64[2]", lambda: bps.push_pull(mixed, name="dtypes"))
    op = (bps.Sum, bps.Average)[bps.rank() % 2]
    _refuse("average", lambda: bps.push_pull(tf.ones(2), name="ops", op=op))


def optimizers() -> None:
    variable = tf.Variable(_own_shape())
    wrong = [(tf.ones_like(variable), variable)]
    for module in (bps_keras, hvd_keras):
        for way, error in _WAYS:
            optimizer = module.DistributedOptimizer(keras.optimizers.SGD(1.0))
            optimizer.build([variable])
            expect(error, "f32[", way(optimizer.apply_gradients), wrong)


def _gradient(module: Any, variable: tf.Variable) -> Any:
    with module.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_sum(variable * variable)
    return tape.gradient(loss, variable)


def tapes() -> None:
    variable = tf.Variable(_own_shape())
    for module in (hvd, bps):
        _refuse("f32[", functools.partial(_gradient, module, variable))


def callbacks() -> None:
    """A model has another shape at some ranks. Its first batch fails at all of them."""
    x = tf.ones([4, 2])
    for module, kind in ((bps_keras, keras), (bps_tf_keras, tf_keras)):
        model = kind.Sequential([kind.layers.Dense(1 + bps.rank() % 2)])
        model.build((None, 2))
        model.compile("sgd", "mse")
        callback = module.callbacks.BroadcastGlobalVariablesCallback(0)
        expect(_EAGER, "f32[", model.fit, x, x[:, :1], verbose=0, callbacks=[callback])


def strategies() -> None:
    strategy = distribute.MirroredStrategy(["/cpu:0"])
    expect(_EAGER, "f32[", strategy.reduce, "SUM", _own_shape(), axis=None)
    assert float(strategy.reduce("SUM", tf.constant(1.0), axis=None)) == bps.size()
    with strategy.scope():
        variable = tf.Variable(_own_shape())
        optimizer = tf_keras.optimizers.legacy.SGD(1.0)

    def replica() -> None:
        optimizer.apply_gradients([(tf.ones_like(variable), variable)])

    expect(_GRAPH, "f32[", tf.function(lambda: strategy.run(replica)))


def main() -> int:
    hvd.init()
    bps.init()
    run_cases(calls, dtypes_and_operations, optimizers, tapes, callbacks, strategies)
    bps.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
