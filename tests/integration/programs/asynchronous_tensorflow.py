# SPDX-License-Identifier: Apache-2.0
"""One rank of asynchronous_frameworks_test.py: steps of TensorFlow and Keras that wait for nobody.

asynchronous_tensorflow.py [byteps]: with BYTEPS_ENABLE_ASYNC=1, by BytePS's modules.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import talweg
import talweg.tensorflow as tw
import tensorflow as tf
import tf_keras
from cases import run_cases
from expected_errors import expect

_COUNT = 5
_LEGACY = tf_keras.optimizers.legacy


def _sum_of_all(number: float) -> float:
    return float(sum(tw.all_gather_object(number)))


def _same_everywhere(values: Sequence[Any], name: str) -> None:
    own = [np.asarray(each) for each in values]
    for others in tw.all_gather_object(own, name=name):
        for one, other in zip(own, others):
            np.testing.assert_array_equal(one, other)


def _has(variable: tf.Variable, wanted: float) -> None:
    np.testing.assert_array_equal(variable.numpy().astype(np.float64), wanted)


def _counting(
    make: Callable[[], Any], wraps: Callable[[Any], Any], name: str, **keywords: Any
) -> None:
    """Ranks make different numbers of steps. Each adds the negative of its gradient, exactly."""
    for dtype in (tf.float32, tf.float64, tf.bfloat16):
        full = f"{name}.{dtype.name}"
        variable = tf.Variable(tf.zeros(_COUNT, dtype), name="counter")
        optimizer = tw.AsynchronousOptimizer(make(), name=full, **keywords)
        step = wraps(
            lambda o=optimizer, v=variable, d=dtype: o.apply_gradients(
                [(tf.fill([_COUNT], tf.cast(-1.0 - tw.rank(), d)), v)]
            )
        )
        steps = 3 + 2 * tw.rank()
        for _ in range(steps):
            step()
        optimizer.flush()
        _has(variable, _sum_of_all(steps * (1.0 + tw.rank())))


def each_step_counts_once() -> None:
    for ahead in (0, 2):
        for kind, make in (
            ("keras", lambda: keras.optimizers.SGD(1.0)),
            ("legacy", lambda: _LEGACY.SGD(1.0)),
            ("v1", lambda: tf.compat.v1.train.GradientDescentOptimizer(1.0)),
        ):
            _counting(make, lambda step: step, f"eager.{kind}.{ahead}", ahead=ahead)
    _counting(lambda: keras.optimizers.SGD(1.0), tf.function, "function", ahead=0, lead=4)


def steps_of_several_passes() -> None:
    variable = tf.Variable(tf.zeros(_COUNT))
    optimizer = tw.AsynchronousOptimizer(
        keras.optimizers.SGD(1.0), name="passes", backward_passes_per_step=2
    )

    @tf.function
    def make_pass() -> None:
        optimizer.apply_gradients([(-tf.ones(_COUNT), variable)])

    for _ in range(2 * (1 + tw.rank())):
        make_pass()
    optimizer.flush()
    _has(variable, _sum_of_all(2.0 * (1 + tw.rank())))


def _digits(seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.standard_normal((64, 6)).astype(np.float32)
    return x, (x.sum(axis=1) > 0).astype(np.int64)


def models_that_fit() -> None:
    """Both Keras versions, and ranks with different numbers of batches."""
    for module in (keras, tf_keras):
        module.utils.set_random_seed(tw.rank())  # The first step takes rank 0's parameters.
        model = module.Sequential(
            [module.layers.Input((6,)), module.layers.Dense(8, "relu"), module.layers.Dense(2)]
        )
        optimizer = tw.AsynchronousOptimizer(
            module.optimizers.Adam(0.01 / tw.size()), ahead=1, name=f"fit.{module.__name__}"
        )
        loss = module.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss)
        x, y = _digits(1 + tw.rank())
        x, y = x[: 32 + 16 * (tw.rank() % 3)], y[: 32 + 16 * (tw.rank() % 3)]
        before = model.evaluate(*_digits(0), verbose=0)
        model.fit(x, y, batch_size=8, epochs=10, verbose=0)
        optimizer.flush()
        _same_everywhere(model.get_weights(), f"weights.{module.__name__}")
        after = model.evaluate(*_digits(0), verbose=0)
        assert after < before, (before, after)
        model.fit(x, y, batch_size=8, epochs=1, verbose=0)  # Once more, after a flush.
        optimizer.flush()
        _same_everywhere(model.get_weights(), f"again.{module.__name__}")


def own_variables_stay() -> None:
    shared, own = tf.Variable(tf.zeros(_COUNT)), tf.Variable(tf.zeros(_COUNT))
    optimizer: Any = tw.AsynchronousOptimizer(keras.optimizers.SGD(1.0), name="own")
    optimizer.register_local_var(own)
    ones = -tf.ones(_COUNT)
    for _ in range(1 + tw.rank()):
        optimizer.apply_gradients([(ones, shared), (ones, own)])
    optimizer.flush()
    _has(shared, _sum_of_all(1.0 + tw.rank()))
    _has(own, 1.0 + tw.rank())


def a_graph_of_a_session() -> None:
    """The variables keep what the last step has left, which has all earlier steps of all ranks."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("counter", initializer=tf.zeros(_COUNT))
        optimizer: Any = tw.AsynchronousOptimizer(
            tf.compat.v1.train.GradientDescentOptimizer(1.0), name="session", ahead=0
        )
        count = tf.compat.v1.train.get_or_create_global_step()
        pairs = [(-tf.ones(_COUNT), variable)]
        step = optimizer.apply_gradients(pairs, global_step=count)
        session.run(tf.compat.v1.global_variables_initializer())
        for number in range(3):
            session.run(step)
            assert session.run(count) == number + 1
            assert (session.run(variable) >= number + 1).all()
        talweg.barrier()
        session.run(step)
        assert (session.run(variable) >= 3 * tw.size() + 1).all(), session.run(variable)
        optimizer.flush()


def wrong_calls() -> None:
    make = tw.AsynchronousOptimizer
    expect(talweg.InvalidArgument, "ahead is -1", make, keras.optimizers.SGD(), ahead=-1)
    expect(talweg.InvalidArgument, "lead is 1.5", make, keras.optimizers.SGD(), lead=1.5)
    expect(talweg.InvalidArgument, "object is not an optimizer", make, object())
    errors = (talweg.Mismatch, lambda call: call), (tf.errors.OpError, tf.function)
    for error, function in errors:
        optimizer: Any = make(keras.optimizers.SGD(1.0), name=f"shapes.{error.__name__}")
        variable = tf.Variable(tf.zeros(_COUNT + tw.rank() % 2), name="odd")
        step = function(lambda o=optimizer, v=variable: o.apply_gradients([(tf.ones_like(v), v)]))
        if tw.size() > 1:
            expect(error, "has 'odd", step)
    optimizer = make(keras.optimizers.SGD(1.0), name="others")
    one, other = tf.Variable(tf.zeros(2)), tf.Variable(tf.zeros(3))
    optimizer.build([one, other])
    optimizer.apply_gradients([(tf.ones(2), one)])
    text = "a step changes other variables than the first one"
    expect(talweg.InvalidArgument, text, optimizer.apply_gradients, [(tf.ones(3), other)])
    optimizer.flush()


def byteps_variable() -> None:
    """A program that was written for BytePS."""
    import talweg.byteps.keras as bps_keras
    import talweg.byteps.tensorflow as bps
    import talweg.byteps.tensorflow.keras as bps_tf_keras

    expect(talweg.Unsupported, "with DistributedGradientTape", bps.DistributedGradientTape, None)
    expect(talweg.Unsupported, "with MirroredStrategy", bps.distribute.MirroredStrategy)
    expect(
        talweg.Unsupported,
        "with compression",
        bps.DistributedOptimizer,
        keras.optimizers.SGD(),
        compression=bps.Compression.fp16,
    )
    for make in (
        bps.DistributedOptimizer,
        bps_keras.DistributedOptimizer,
        bps_tf_keras.DistributedOptimizer,
    ):
        variable = tf.Variable(tf.zeros(_COUNT))
        optimizer = make(keras.optimizers.SGD(1.0))
        bps.broadcast_variables([variable], root_rank=0)
        for step in range(1 + bps.rank()):
            optimizer.apply_gradients([(-tf.ones(_COUNT), variable)])
            assert (variable.numpy() >= step + 1).all(), variable
        optimizer.flush()
        _has(variable, _sum_of_all(1.0 + bps.rank()))
    # The end of a program of BytePS's, which has no flush(), waits for the others.
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(1.0), enable_async=True)
    size = bps.size()
    for _ in range(1 + bps.rank()):
        optimizer.apply_gradients([(-tf.ones(_COUNT), variable)])
    before = size * (size + 1) / 2
    bps.shutdown()
    _has(variable, 2 * before)


def main() -> None:
    tw.init()
    if sys.argv[1:] == ["byteps"]:
        run_cases(byteps_variable)
    else:
        run_cases(
            each_step_counts_once,
            steps_of_several_passes,
            models_that_fit,
            own_variables_stay,
            a_graph_of_a_session,
            wrong_calls,
        )
    print("done", flush=True)


if __name__ == "__main__":
    main()
