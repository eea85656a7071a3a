# SPDX-License-Identifier: Apache-2.0
"""One rank of tensorflow_compat_test.py. It checks Adasum of TensorFlow's tensors, eager and in graphs."""

from __future__ import annotations

import sys

import numpy as np
import talweg.horovod.tensorflow as hvd
import tensorflow as tf
from adasum_reference import adasum
from cases import run_cases
from expected_errors import expect


def _of_rank(rank: int, shape: tuple[int, ...]) -> np.ndarray:
    drawn = np.random.default_rng(rank).standard_normal(shape) + 1 + rank
    return np.asarray(drawn, np.float32)


def _wanted(shape: tuple[int, ...]) -> np.ndarray:
    return adasum([_of_rank(rank, shape) for rank in range(hvd.size())])


_SHAPES: tuple[tuple[int, ...], ...] = ((), (3, 5), (9000,))


def eager() -> None:
    for shape in _SHAPES:
        for dtype, limit in ((tf.float16, 1e-2), (tf.bfloat16, 5e-2), (tf.float64, 1e-5)):
            own = tf.cast(_of_rank(hvd.rank(), shape), dtype)
            result = hvd.allreduce(own, op=hvd.Adasum)
            assert result.dtype == dtype and result.shape == shape
            assert np.allclose(tf.cast(result, tf.float64), _wanted(shape), limit, limit)
        own = tf.constant(_of_rank(hvd.rank(), shape))
        scaled = hvd.allreduce(own, op=hvd.Adasum, prescale_factor=4.0, postscale_factor=0.5)
        assert np.allclose(scaled, 2 * _wanted(shape), 1e-5, 1e-5)
        half = hvd.allreduce(own, op=hvd.Adasum, compression=hvd.Compression.fp16)
        assert half.dtype == tf.float32 and np.allclose(half, _wanted(shape), 1e-2, 1e-2)
    own = tf.constant(_of_rank(hvd.rank(), (4,)))
    with tf.GradientTape() as tape:
        tape.watch(own)
        loss = tf.reduce_sum(hvd.allreduce(own, op=hvd.Adasum) * own)
    assert tape.gradient(loss, own).shape == (4,)
    invalid = tf.errors.InvalidArgumentError
    expect(invalid, "not for i32", hvd.allreduce, tf.constant([1, 2]), op=hvd.Adasum)
    rows = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([1, 2]))
    expect(NotImplementedError, "Adasum", hvd.allreduce, rows, op=hvd.Adasum)


def graphs() -> None:
    @tf.function
    def reduced(one: tf.Tensor, other: tf.Tensor) -> list[tf.Tensor]:
        first = hvd.allreduce(one, op=hvd.Adasum, name="one")
        return [first, *hvd.grouped_allreduce([other, one], op=hvd.Adasum, name="both")]

    shapes = ((2, 3), (5000,), (2, 3))
    for _ in range(3):
        own = [tf.constant(_of_rank(hvd.rank(), shape)) for shape in shapes[:2]]
        for result, shape in zip(reduced(*own), shapes):
            assert result.shape == shape and np.allclose(result, _wanted(shape), 1e-5, 1e-5)


def tapes() -> None:
    variable = tf.Variable([1.0, 2.0, 3.0])
    factor = tf.constant(_of_rank(hvd.rank(), (3,)))

    def gradient() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * factor)
        distributed = hvd.DistributedGradientTape(tape, op=hvd.Adasum)
        [found] = distributed.gradient(loss, [variable])
        return found

    for call in (gradient, tf.function(gradient)):
        assert np.allclose(call(), _wanted((3,)), 1e-5)
    table = tf.Variable(tf.ones([4, 2]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [0]))
    sparse = hvd.DistributedGradientTape(tape, op=hvd.Adasum)
    expect(ValueError, "sparse_as_dense", sparse.gradient, loss, [table])
    of = (ValueError, "predivide", hvd.DistributedGradientTape, tf.GradientTape())
    expect(*of, op=hvd.Adasum, gradient_predivide_factor=2.0)
    v1 = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    expect(NotImplementedError, "GradientTape", hvd.DistributedOptimizer, v1, op=hvd.Adasum)


def ranks_that_differ() -> None:
    if hvd.size() == 1:
        return
    own = tf.ones([2, 3] if hvd.rank() == 0 else [3, 2])
    text = "of f32[2, 3], but rank 1 calls allreduce of f32[3, 2]"
    failed = tf.errors.FailedPreconditionError
    expect(failed, text, hvd.allreduce, own, op=hvd.Adasum, name="differ")
    assert np.allclose(hvd.allreduce(tf.ones(7), op=hvd.Adasum, name="differ"), 1)


def main() -> int:
    hvd.init()
    run_cases(eager, graphs, tapes, ranks_that_differ)
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
