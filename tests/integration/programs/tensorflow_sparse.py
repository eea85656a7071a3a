# SPDX-License-Identifier: Apache-2.0
"""Checks that optimizers and tapes sum the rows of tf.IndexedSlices, eagerly and in graphs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import keras
import numpy as np
import talweg.tensorflow as tw
import tensorflow as tf
import tf_keras
from cases import run_cases
from talweg._collectives import sparse_rows, sparse_sums
from talweg.tensorflow import _gradients
from talweg.tensorflow._gradients import Choices

_ROWS = 600


def _own(index: tf.DType, count: int = 400) -> tf.Tensor:
    """Returns which rows this rank uses, some of them more than once."""
    rng = np.random.default_rng(tw.rank())
    return tf.constant(rng.integers(0, _ROWS, count), index)


def _both_ways(call: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Returns the results of `call`, made once eagerly and twice in a graph."""
    graph = tf.function(call)
    return [call(*arguments), graph(*arguments), graph(*arguments)]


def _check(found: Any, wanted: Any, index: tf.DType) -> None:
    """Checks that `found` has each row of the dense tensor `wanted` once, in ascending order."""
    assert isinstance(found, tf.IndexedSlices) and found.indices.dtype == index
    assert found.values.dtype == wanted.dtype
    assert found.values.shape[0] == found.indices.shape[0]
    numbers = found.indices.numpy()
    assert np.all(numbers[1:] > numbers[:-1])
    dense: np.ndarray = np.zeros((_ROWS, *found.values.shape[1:]))
    dense[numbers] = tf.cast(found.values, tf.float64).numpy()
    np.testing.assert_allclose(dense, tf.cast(wanted, tf.float64).numpy(), rtol=1e-2, atol=1e-3)


def tapes() -> None:
    for dtype, index in (
        (tf.float32, tf.int32),
        (tf.float64, tf.int64),
        (tf.float16, tf.int64),
        (tf.bfloat16, tf.int32),
    ):
        for op in (tw.Op.SUM, tw.Op.AVERAGE):
            table = tf.Variable(tf.zeros([_ROWS, 3], dtype))

            def gradient(
                indices: tf.Tensor, table: Any = table, op: tw.Op = op, dense: bool = False
            ) -> Any:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(tf.gather(table, indices)) * (tw.rank() + 1)
                tape = tw.DistributedGradientTape(tape, op, sparse_as_dense=dense)
                return tape.gradient(loss, [table])[0]

            own = _own(index)
            wanted = gradient(own, dense=True)
            for found in _both_ways(gradient, own):
                _check(found, wanted, index)


def rows_that_are_dealt() -> None:
    table = tf.Variable(tf.zeros([_ROWS, 2]))

    @tf.function
    def gradient(indices: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, indices))
        return tw.DistributedGradientTape(tape).gradient(loss, [table])[0]

    own = _own(tf.int64)
    with (
        mock.patch.multiple(sparse_rows, _DEALT_BYTES_MIN=0, _DEALT_PART=1e9),
        mock.patch.object(sparse_sums, "dealt", wraps=sparse_sums.dealt) as dealt,
    ):
        gathered, *others = [gradient(own) for _ in range(3)]
    assert dealt.call_count == 2
    for other in others:
        assert np.array_equal(other.indices, gathered.indices)
        assert other.values.numpy().tobytes() == gathered.values.numpy().tobytes()


def optimizers() -> None:
    for kind in (
        lambda: keras.optimizers.SGD(0.5),
        lambda: keras.optimizers.Adam(0.1),
        lambda: tf_keras.optimizers.Adagrad(0.1),
        lambda: tf_keras.optimizers.legacy.Adam(0.1),
    ):
        tables = []
        for dense in (False, True):
            table = tf.Variable(tf.ones([_ROWS, 4]))
            optimizer = tw.DistributedOptimizer(kind(), sparse_as_dense=dense)

            @tf.function
            def step(optimizer: Any = optimizer, table: Any = table) -> None:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(tf.square(tf.gather(table, _own(tf.int64, 50))))
                optimizer.apply_gradients(zip(tape.gradient(loss, [table]), [table]))

            step()
            tables.append(table.numpy())
        used = np.unique(np.concatenate(tw.all_gather_object(_own(tf.int64, 50).numpy())))
        np.testing.assert_allclose(tables[0][used], tables[1][used], rtol=1e-4)
        assert set(tw.all_gather_object(tables[0].tobytes())) == {tables[0].tobytes()}


def sessions() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        table = tf.compat.v1.get_variable("table", initializer=np.ones((_ROWS, 2), np.float32))
        indices = tf.compat.v1.placeholder(tf.int64, [None])
        loss = tf.reduce_sum(tf.gather(table, indices))
        optimizer = tw.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0))
        train = optimizer.minimize(loss)
        session.run(tf.compat.v1.global_variables_initializer())
        for count in (3, 2000):  # In and beside the control round.
            own: np.ndarray = np.arange(count) % _ROWS
            before = session.run(table)
            session.run(train, {indices: own})
            used = np.bincount(own, minlength=_ROWS)
            np.testing.assert_allclose(before - session.run(table), np.stack([used, used], 1))


def many_in_one_graph() -> None:
    """No sum occupies the program's only thread while it waits. Ranks begin in opposite orders."""
    tables = [tf.Variable(tf.zeros([_ROWS, 8])) for _ in range(20)]

    @tf.function
    def gradients() -> Any:
        order = tables if tw.rank() % 2 else tables[::-1]
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(tf.gather(each, _own(tf.int64))) for each in order])
        return tw.DistributedGradientTape(tape).gradient(loss, tables)

    for _ in range(2):
        found = gradients()
        for each in found[1:]:
            assert np.array_equal(each.values, found[0].values)


def choices() -> None:
    """Slices that do not say how many rows there are, and sums of other kinds."""
    rank, size = tw.rank(), tw.size()

    def combined(values: tf.Tensor, variable: Any = None, **options: Any) -> Any:
        slices = tf.IndexedSlices(values, tf.constant([7, 7, rank]))
        variables = None if variable is None else [variable]
        return _gradients.combine([slices], variables, Choices(**options))[0]

    ones, table = tf.ones([3, 2]), tf.Variable(tf.zeros([_ROWS, 2]))
    several = sorted({7, *range(size)})
    for found in _both_ways(combined, ones):  # Gathered.
        assert found.indices.numpy().tolist() == [i for r in range(size) for i in (7, 7, r)]
        assert np.allclose(found.values, 1 / size)
    for found in _both_ways(lambda values: combined(values, table, prescale=3.0), ones):
        assert found.indices.numpy().tolist() == several and found.dense_shape is None
        assert np.allclose(found.values[several.index(7)], 6.0)
    for op, dtype, last in ((tw.Op.SUM, tf.int32, 2 * size), (tw.Op.AVERAGE, tf.float64, 2.0)):
        for found in _both_ways(
            lambda values, op=op: combined(values, table, op=op), tf.cast(ones, tf.int32)
        ):
            assert found.values.dtype == dtype and found.indices.numpy().tolist() == several
            assert found.values.numpy()[-1].tolist() == [last, last]
    half = tw.Compression.fp16
    for found in _both_ways(lambda values: combined(values, table, compression=half), ones):
        assert found.values.dtype == tf.float32 and np.allclose(found.values[-1], 2.0)


def main() -> int:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tw.init()
    run_cases(tapes, rows_that_are_dealt, optimizers, sessions, many_in_one_graph, choices)
    tw.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
