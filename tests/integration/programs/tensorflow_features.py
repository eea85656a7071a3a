# SPDX-License-Identifier: Apache-2.0
"""One rank of tensorflow_test.py. It compares talweg.tensorflow with NumPy, eager and in graphs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import keras
import numpy as np
import talweg.tensorflow as tw
import tensorflow as tf
from cases import run_cases
from expected_errors import expect
from talweg import InvalidArgument, Mismatch, Unsupported

_FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
_INTEGERS = (tf.uint8, tf.int8, tf.uint16, tf.int16, tf.int32, tf.int64)


def _both_ways(call: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Returns the results of `call`, made once eagerly and twice in a graph."""
    graph = tf.function(call)
    return [call(*arguments), graph(*arguments), graph(*arguments)]


def _calls(operation: Callable[..., Any], *rest: Any, **options: Any) -> Callable[[Any], Any]:
    """Returns a function of a tensor that calls the operation, which AutoGraph converts once.

    AutoGraph would parse this whole file for each lambda.
    """

    def call(x: Any) -> Any:
        return operation(x, *rest, **options)

    return call


def _own(rank: int, dtype: tf.DType) -> np.ndarray:
    return (np.arange(6).reshape(2, 3) + rank + 1).astype(dtype.as_numpy_dtype)


def reductions() -> None:
    size = tw.size()
    for dtype in (*_FLOATS, *_INTEGERS):
        every = np.stack([_own(r, dtype).astype(np.float64) for r in range(size)])
        wanted = {
            tw.Op.SUM: every.sum(0),
            tw.Op.AVERAGE: every.mean(0),
            tw.Op.MIN: every.min(0),
            tw.Op.MAX: every.max(0),
        }
        if dtype in _INTEGERS:
            wanted[tw.Op.AVERAGE] = np.trunc(every.mean(0))
        own = tf.constant(_own(tw.rank(), dtype))

        def reduce_all(tensor: tf.Tensor, ops: tuple[tw.Op, ...] = tuple(wanted)) -> Any:
            return [tw.push_pull(tensor, f"{tensor.dtype.name}.{op.name}", op) for op in ops]

        for results in _both_ways(reduce_all, own):
            for op, result in zip(wanted, results):
                assert result.dtype == dtype and result.shape == own.shape
                found = tf.cast(result, tf.float64).numpy()
                assert np.allclose(found, wanted[op], rtol=1e-2), (dtype, op, found, wanted[op])


def factors_and_shapes() -> None:
    size = tw.size()
    scaled = _both_ways(
        _calls(tw.push_pull, "scaled", average=False, prescale_factor=0.5, postscale_factor=4),
        tf.fill([3], 3.0),
    )
    assert all((each.numpy() == 6 * size).all() for each in scaled)
    whole = _both_ways(
        _calls(tw.push_pull, "whole", average=False, prescale_factor=0.5), tf.constant([3, 5])
    )
    assert all(each.numpy().tolist() == [size, 2 * size] for each in whole)  # 1.5 is truncated.
    scalar = _both_ways(_calls(tw.push_pull, "scalar", average=False), tf.constant(2.0))
    assert all(each.shape == () and float(each) == 2.0 * size for each in scalar)
    empty = _both_ways(_calls(tw.push_pull, "empty"), tf.zeros([0, 3]))
    assert all(each.shape == (0, 3) for each in empty)
    # One function with one name takes batches of several lengths.
    function = tf.function(
        _calls(tw.push_pull, "lengths", average=False),
        input_signature=[tf.TensorSpec([None, 2], tf.float32)],
    )
    for rows in (1, 3, 1):
        assert (function(tf.ones([rows, 2])).numpy() == np.full((rows, 2), size)).all()


def gathers() -> None:
    size, rank = tw.size(), tw.rank()
    wanted = np.concatenate([np.full((r + 1, 2), r, np.float32) for r in range(size)])
    own = tf.fill([rank + 1, 2], float(rank))
    for result in _both_ways(_calls(tw.all_gather, "gather"), own):
        assert (result.numpy() == wanted).all()
    for result in _both_ways(_calls(tw.all_gather, "bools"), tf.constant([rank % 2 == 0])):
        assert result.numpy().tolist() == [r % 2 == 0 for r in range(size)]

    def grouped(x: Any) -> Any:
        return tw.grouped_all_gather([x, x[:1]], "two")

    for first, second in _both_ways(grouped, own):
        assert (first.numpy() == wanted).all()
        assert second.numpy()[:, 0].tolist() == list(range(size))


def exchanges() -> None:
    size, rank = tw.size(), tw.rank()
    own = tf.range(2 * size) + 100 * rank
    for rows, counts in _both_ways(_calls(tw.all_to_all, name="exchange"), own):
        assert rows.numpy().tolist() == [
            100 * r + 2 * rank + i for r in range(size) for i in (0, 1)
        ]
        assert counts.dtype == tf.int32 and counts.numpy().tolist() == [2] * size
    splits = [r + 1 for r in range(size)]
    many = tf.fill([sum(splits), 2], float(rank))
    for rows, counts in _both_ways(_calls(tw.all_to_all, splits, "splits"), many):
        assert rows.numpy()[:, 0].tolist() == [r for r in range(size) for _ in range(rank + 1)]
        assert counts.numpy().tolist() == [rank + 1] * size


def scatters() -> None:
    size, rank = tw.size(), tw.rank()
    own: np.ndarray = np.arange(size + 1, dtype=np.float32) * (rank + 1)
    total: np.ndarray = np.arange(size + 1, dtype=np.float32) * (size * (size + 1) // 2)
    mine = np.array_split(total, size)[rank]
    for result in _both_ways(_calls(tw.reduce_scatter, "scatter", average=False), own):
        assert np.allclose(result.numpy(), mine)

    def grouped(x: Any) -> Any:
        return tw.grouped_reduce_scatter([x], "mean")

    for [result] in _both_ways(grouped, own):
        assert np.allclose(result.numpy() * size, mine)


def broadcasts() -> None:
    size, rank = tw.size(), tw.rank()
    root = size - 1
    for dtype in (tf.float32, tf.int64, tf.bool):
        own = tf.cast(tf.fill([2, 2], rank), dtype)
        name = f"broadcast.{dtype.name}"
        for result in _both_ways(_calls(tw.broadcast, root, name), own):
            assert (result.numpy() == tf.cast(tf.fill([2, 2], root), dtype).numpy()).all()
    variables = [tf.Variable(float(rank)), tf.Variable([rank, rank])]
    tw.broadcast_variables(variables, root)
    assert float(variables[0]) == root and variables[1].numpy().tolist() == [root, root]
    variables[0].assign(float(rank))
    tf.function(lambda: tw.broadcast_variables(variables, 0))()
    assert float(variables[0]) == 0.0
    assert tw.broadcast_object({"rank": rank}, root) == {"rank": root}
    assert tw.all_gather_object(rank) == list(range(size))


def gradients() -> None:
    """A tape gives each operation's gradient, eagerly and in a graph."""
    size, rank = tw.size(), tw.rank()

    def gradient_of(call: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> list[np.ndarray]:
        def run(x: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = call(x)
                loss = tf.reduce_sum(y * tf.cast(rank + 1, y.dtype))
            return tape.gradient(loss, x)

        return [each.numpy() for each in _both_ways(run, x)]

    def exchanged(x: tf.Tensor) -> tf.Tensor:
        return tw.all_to_all(x, name="g.exchange")[0]

    ranks = size * (size + 1) / 2
    x = tf.ones([2 * size, 2])
    rows = 2 * size
    cases: list[tuple[Callable[..., Any], Any]] = [
        (_calls(tw.push_pull, "g.sum", average=False), ranks),
        (_calls(tw.push_pull, "g.mean"), ranks / size),
        (_calls(tw.all_gather, "g.gather"), ranks / size),
        (_calls(tw.broadcast, 0, "g.broadcast"), ranks / size if rank == 0 else 0.0),
        (
            _calls(tw.reduce_scatter, "g.scatter", average=False),
            np.repeat(np.arange(1, size + 1) * size, 2)[:, None],
        ),
        (
            exchanged,
            np.repeat(np.arange(1, size + 1), 2)[:, None],
        ),
    ]
    for call, wanted in cases:
        for found in gradient_of(call, x):
            assert np.allclose(found, np.broadcast_to(wanted, (rows, 2))), (found, wanted)


def process_sets() -> None:
    size, rank = tw.size(), tw.rank()
    if size == 1:
        return
    some = tw.ProcessSet(range(size - 1))
    one = tf.ones(2)
    if rank == size - 1:
        expect(InvalidArgument, f"rank {rank}", tw.push_pull, one, process_set=some)
    else:
        for result in _both_ways(
            _calls(tw.push_pull, "some", average=False, process_set=some), one
        ):
            assert (result.numpy() == size - 1).all()
        assert tw.all_gather(tf.constant([rank]), process_set=some).shape == (size - 1,)
    tw.barrier()


def repeated_calls() -> None:
    """A loop repeats a name. Each execution pushes a constant, and merges it with no other."""
    size, rank = tw.size(), tw.rank()

    @tf.function
    def loop(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(5):
            x = tw.push_pull(x, "loop", average=False)
        return x

    assert float(loop(tf.constant(1.0))) == float(size**5)

    @tf.function
    def twice() -> tf.Tensor:
        one = tf.constant(1.0)
        return tw.push_pull(one, average=False) + tw.push_pull(one, average=False)

    before = tw.pushed_bytes()
    for _ in range(3):
        assert float(twice()) == 2.0 * size
    assert tw.pushed_bytes() - before == 3 * 2 * 4

    @tf.function
    def branch(x: tf.Tensor) -> tf.Tensor:
        if tf.reduce_sum(x) > 0:
            return tw.push_pull(x, "taken", average=False)
        return tw.push_pull(-x, "other", average=False)

    assert float(branch(tf.constant(2.0))) == 2.0 * size
    assert rank >= 0


def gradients_leave_early() -> None:
    """The first layer's backward pass waits until the second layer's gradient is pushed."""
    pushed: list[int] = []

    def wait(gradient: np.ndarray) -> np.ndarray:
        end = time.monotonic() + 120.0  # It ends a wait that hangs.
        while tw.pushed_bytes() == pushed[-1] and time.monotonic() < end:
            time.sleep(0.001)
        assert tw.pushed_bytes() > pushed[-1], "no gradient left while backward ran"
        return gradient

    @tf.custom_gradient
    def first_layer(x: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            waited = tf.numpy_function(wait, [upstream], upstream.dtype)
            return tf.ensure_shape(waited, upstream.shape)

        return tf.identity(x), gradient

    first, second = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(first_layer(first) * second)
        return tw.DistributedGradientTape(tape, average=False).gradient(loss, [first, second])

    for _ in range(2):
        pushed.append(tw.pushed_bytes())
        gradients = step()
        assert np.allclose(gradients[0], np.array([3.0, 4.0]) * tw.size())
        assert np.allclose(gradients[1], np.array([1.0, 2.0]) * tw.size())


def under_xla() -> None:
    """Every kind of operation tells at tracing what to do; the next call works."""
    x = tf.ones([tw.size(), 2])

    def compiled(call: Callable[..., Any]) -> Any:
        return tf.function(call, jit_compile=True)

    def within(call: Callable[..., Any]) -> Any:
        def outer(x: Any) -> Any:
            return tf.function(call)(x) + 1.0

        return compiled(outer)

    def exchanged(x: Any) -> Any:
        return tw.all_to_all(x)[0]

    def branch(x: Any) -> Any:
        return tf.cond(tf.reduce_sum(x) > 0, lambda: tw.push_pull(x), lambda: x)

    for call in (
        tw.push_pull,
        tw.broadcast,
        tw.all_gather,
        tw.reduce_scatter,
        exchanged,
        branch,
    ):
        for wrapped in (compiled(call), within(call)):
            # AutoGraph replaces the exception if the program's own function lies between.
            expect(Exception, "jit_compile=False", wrapped, x)
    expect(Unsupported, "jit_compile=False", compiled(tw.push_pull), x)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(tw.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=True)
    expect(Exception, "jit_compile=False", model.fit, x, x[:, :1], verbose=0)
    assert (tf.function(tw.push_pull)(x).numpy() == 1).all()
    assert float(compiled(lambda y: y + 1.0)(tw.push_pull(tf.constant(1.0)))) == 2.0


def errors() -> None:
    size, rank = tw.size(), tw.rank()
    expect(InvalidArgument, "op is", tw.push_pull, tf.ones(2), op=17)
    expect(InvalidArgument, "IndexedSlices", tw.push_pull, tf.IndexedSlices([1.0], [0]))
    expect(InvalidArgument, "first dimension", tw.all_gather, tf.constant(1.0))
    expect(InvalidArgument, "root_rank is 99", tw.broadcast, tf.ones(1), 99)
    sgd = keras.optimizers.SGD(0.1)
    with mock.patch.object(keras.backend, "backend", return_value="jax"):
        expect(Unsupported, "KERAS_BACKEND=tensorflow", tw.DistributedOptimizer, sgd)
    if size == 1:
        return
    expect(Mismatch, "f32[", tw.push_pull, tf.ones(3 + rank), "shapes")
    assert float(tw.push_pull(tf.constant(1.0), "shapes", average=False)) == size
    graph = tf.function(_calls(tw.push_pull, "graph"))
    with_kernel = os.environ.get("TALWEG_TENSORFLOW_OPS") == "kernel"
    failed = tf.errors.FailedPreconditionError if with_kernel else tf.errors.UnknownError
    expect(failed, "f32[", graph, tf.ones(3 + rank))
    assert (graph(tf.fill([2], float(rank))).numpy() == (size - 1) / 2).all()
    gather = tf.function(_calls(tw.all_gather, "gathered"))
    expect(failed, "f32 rows", gather, tf.ones([2, 3 + rank]))
    assert gather(tf.ones([1, 2])).shape == (size, 2)
    other_forms(failed)


def other_forms(failed: type[Exception]) -> None:
    """If a rank uses a name in another way, all ranks get an error, and none waits."""
    size, is_first = tw.size(), tw.rank() == 0

    def summed(name: str) -> Any:
        return tf.function(_calls(tw.push_pull, name, average=False))

    def sums(graph: Any, *shapes: list[int]) -> None:
        for shape in shapes:
            assert (graph(tf.ones(shape)).numpy() == np.full(shape, size)).all()

    graph = summed("form.new")
    expect(failed, "[3, 2]", graph, tf.ones([2, 3] if is_first else [3, 2]))
    sums(graph, [2, 3])
    graph = summed("form.known")
    sums(graph, [2, 3], [2, 3])
    expect(failed, "[3, 2]", graph, tf.ones([2, 3] if is_first else [3, 2]))
    sums(graph, [2, 3], [6])
    graph = summed("form.longer")
    sums(graph, [4], [4])
    expect(failed, "f32[5]", graph, tf.ones([4 if is_first else 5]))
    sums(graph, [5])
    graph = summed("form.both_known")
    sums(graph, [4], [5], [4])
    expect(failed, "f32[5]", graph, tf.ones([4 if is_first else 5]))
    sums(graph, [5])
    # Several fail at once, and ranks learn of them in different orders. Each has its own graph,
    # because TensorFlow begins nothing more in a failed graph, and other ranks would wait for that.
    graphs = [summed(f"form.of.{number}") for number in range(9)]
    with ThreadPoolExecutor(len(graphs)) as threads:
        for _ in threads.map(lambda each: sums(each, [2, 3]), graphs):
            pass
        tensor = tf.ones([2, 3] if is_first else [3, 2])
        for _ in threads.map(lambda each: expect(failed, "[3, 2]", each, tensor), graphs):
            pass
        for _ in threads.map(lambda each: sums(each, [3, 2]), graphs):
            pass
    copied = tf.function(_calls(tw.broadcast, size - 1, "form.copied"))
    assert (copied(tf.ones([2, 3])).numpy() == 1).all()
    expect(failed, "[3, 2]", copied, tf.ones([2, 3] if is_first else [3, 2]))


def main() -> int:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tw.init()
    run_cases(
        reductions,
        factors_and_shapes,
        gathers,
        exchanges,
        scatters,
        broadcasts,
        gradients,
        process_sets,
        repeated_calls,
        gradients_leave_early,
        under_xla,
        errors,
    )
    tw.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
