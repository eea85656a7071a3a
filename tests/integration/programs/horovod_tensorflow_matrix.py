# SPDX-License-Identifier: Apache-2.0
"""One rank of tensorflow_compat_test.py. It compares operations of horovod.tensorflow with NumPy.

Each operation has each dtype and number of dimensions, eagerly, in tf.function and in a session.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from expected_errors import expect

# The dtypes that Horovod reduces, and those that it only moves.
_SCATTERED = ("int32", "int64", "float16", "float32", "float64")
_REDUCED = (*_SCATTERED, "uint8", "int8")
_MOVED = (*_REDUCED, "uint16", "int16", "bool")
_OPS = (hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product)

# A call, and its expected result.
_Case = tuple[Callable[[], Any], Any]


def _own(rank: int, rows: int, dims: int, dtype: str) -> np.ndarray:
    shape = (rows, 2, 3)[:dims]
    numbers: np.ndarray = np.arange(np.prod(shape)).reshape(shape)
    return ((numbers * (rank + 1)) % 4 + rank % 3).astype(dtype)


def _combined(every: np.ndarray, op: int) -> np.ndarray:
    """Returns the ranks' tensors, combined. Averages of integers are truncated."""
    wide: np.ndarray = every.astype(np.float64 if every.dtype.kind == "f" else np.int64)
    if op == hvd.Average:
        return (wide.sum(0) / len(every)).astype(every.dtype)
    reduced: dict[int, Any] = {hvd.Sum: np.add, hvd.Min: np.minimum, hvd.Max: np.maximum}
    return np.asarray(reduced.get(op, np.multiply).reduce(wide)).astype(every.dtype)


def _part(index: int, call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Returns one of the results of a call that has several."""
    return call(*arguments, **keywords)[index]


def _reductions(way: str) -> list[_Case]:
    size, rank = hvd.size(), hvd.rank()
    cases: list[_Case] = []
    for dtype in _REDUCED:
        for dims in (1, 2, 3):
            every = np.stack([_own(each, 3, dims, dtype) for each in range(size)])
            own, name = every[rank], f"{way}.{dtype}.{dims}"
            for op in _OPS if dims == 2 else (hvd.Sum,):
                call = partial(hvd.allreduce, own, op=op, name=f"{name}.{op}")
                cases.append((call, _combined(every, op)))
        call = partial(hvd.allreduce, own, op=hvd.Sum, prescale_factor=0.5, name=f"{name}.before")
        halves: np.ndarray = (every.astype(np.float64) * 0.5).astype(dtype)
        cases.append((call, _combined(halves, hvd.Sum)))
        if dtype.startswith("int"):  # The average is rounded once.
            call = partial(hvd.allreduce, own, op=hvd.Average, postscale_factor=0.5)
            mean: np.ndarray = np.trunc(every.sum(0) * 0.5 / size).astype(dtype)
            cases.append((partial(call, name=f"{name}.after"), mean))
        grouped = partial(_part, 1, hvd.grouped_allreduce, [own, own[0]], op=hvd.Sum)
        cases.append((partial(grouped, name=f"{name}.group"), _combined(every[:, 0], hvd.Sum)))
    return cases


def _moves(way: str) -> list[_Case]:
    size, rank = hvd.size(), hvd.rank()
    cases: list[_Case] = []
    splits = list(range(size))
    for dtype in _MOVED:
        for dims in (1, 3):
            every = [_own(each, each + 1, dims, dtype) for each in range(size)]
            own, name = every[rank], f"{way}.{dtype}.{dims}"
            cases.append((partial(hvd.allgather, own, name=name), np.concatenate(every)))
            root = dims % size
            mine = _own(rank, 2, dims, dtype)
            cases.append(
                (partial(hvd.broadcast, mine, root, name=name), _own(root, 2, dims, dtype))
            )
            # Each rank sends i rows to rank i, so rank 0 gets none.
            sent = [_own(each, sum(splits), dims, dtype) for each in range(size)]
            first = rank * (rank - 1) // 2
            got = np.concatenate([each[first : first + rank] for each in sent])
            cases.append((partial(_part, 0, hvd.alltoall, sent[rank], splits, name=name), got))
        grouped = partial(_part, 1, hvd.grouped_allgather, [own, own[:1]], name=f"{name}.group")
        cases.append((grouped, np.concatenate([each[:1] for each in every])))
    rows: np.ndarray = np.zeros([sum(splits), 1], np.float32)
    counts = partial(_part, 1, hvd.alltoall, rows, splits, name=f"{way}.counts")
    cases.append((counts, np.full(size, rank, np.int32)))
    return cases


def _scatters(way: str) -> list[_Case]:
    size, rank = hvd.size(), hvd.rank()
    cases: list[_Case] = []
    for dtype in _SCATTERED:
        for dims in (1, 3):
            # The first rank has one more row.
            every = np.stack([_own(each, size + 1, dims, dtype) for each in range(size)])
            begin = rank + (rank > 0)
            for op in (hvd.Sum, hvd.Average):
                name = f"{way}.{dtype}.{dims}.{op}"
                call = partial(hvd.reducescatter, every[rank], op=op, name=name)
                cases.append((call, _combined(every, op)[begin : begin + 1 + (rank == 0)]))
    tensors = [np.ones([size, 2], np.float32), np.ones(2 * size, np.float32)]
    grouped = partial(_part, 1, hvd.grouped_reducescatter, tensors, op=hvd.Sum)
    cases.append((grouped, np.full(2, size, np.float32)))
    return cases


def _gradients(way: str) -> list[_Case]:
    """Returns cases of gradients. Rank r's loss is r + 1 times the sum of its result."""
    size, rank = hvd.size(), hvd.rank()
    mean, total = (size + 1) / 2, size * (size + 1) / 2

    def of(call: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[], Any]:
        def gradient() -> Any:
            own = tf.ones([size, 2])
            with tf.GradientTape() as tape:
                tape.watch(own)
                loss = tf.reduce_sum(call(own)) * (rank + 1.0)
            return tape.gradient(loss, own)

        return gradient

    def rows(*values: float) -> np.ndarray:
        return np.repeat(np.array(values, np.float32)[:, None], 2, axis=1)

    each = [r + 1.0 for r in range(size)]
    return [
        (of(lambda x: hvd.allreduce(x, op=hvd.Sum, name=f"{way}.g.sum")), rows(*[total] * size)),
        (of(lambda x: hvd.allreduce(x, name=f"{way}.g.mean")), rows(*[mean] * size)),
        (of(lambda x: hvd.allgather(x, name=f"{way}.g.gather")), rows(*[mean] * size)),
        (
            of(lambda x: hvd.broadcast(x, 1 % size, name=f"{way}.g.copy")),
            rows(*[mean if rank == 1 % size else 0.0] * size),
        ),
        (of(lambda x: hvd.alltoall(x, name=f"{way}.g.exchange")), rows(*each)),
        (
            of(lambda x: hvd.reducescatter(x, op=hvd.Sum, name=f"{way}.g.scatter")),
            rows(*[size * value for value in each]),
        ),
        (of(lambda x: hvd.reducescatter(x, name=f"{way}.g.share")), rows(*each)),
    ]


def _check(way: str, found: list[Any], cases: list[_Case]) -> None:
    for number, (result, (_, wanted)) in enumerate(zip(found, cases)):
        array = np.asarray(result)
        assert array.dtype == wanted.dtype, (way, number, array.dtype, wanted.dtype)
        assert array.shape == wanted.shape, (way, number, array.shape, wanted.shape)
        exact = wanted.dtype.kind != "f"
        same = (array == wanted).all() if exact else np.allclose(array, wanted, rtol=2e-3)
        assert same, (way, number, array, wanted)


def calls() -> None:
    for kind in (_reductions, _moves, _scatters, _gradients):
        cases = kind("eager")
        _check("eager", [call() for call, _ in cases], cases)
        cases = kind("function")
        traced = [call for call, _ in cases]
        function = tf.function(lambda traced=traced: [call() for call in traced])
        for _ in range(2):
            _check("function", list(function()), cases)
        if kind is _gradients:  # In a session tf.gradients() computes them.
            continue
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            cases = kind("session")
            fetched = [call() for call, _ in cases]
            _check("session", session.run(fetched), cases)


def disagreements() -> None:
    """An error names both sides, and the next call with the name works."""
    size, rank = hvd.size(), hvd.rank()
    if size == 1:
        return
    odd = rank % 2 == 1
    dtype = tf.int32 if odd else tf.float32
    wrong: dict[str, Callable[[str], Any]] = {
        "reduce.dtype": lambda name: hvd.allreduce(tf.ones([2, 2], dtype), op=hvd.Sum, name=name),
        "reduce.rank": lambda name: hvd.allreduce(
            tf.ones([2, 6] if odd else [2, 2, 3]), op=hvd.Sum, name=name
        ),
        "reduce.op": lambda name: hvd.allreduce(
            tf.ones(3), op=hvd.Max if odd else hvd.Sum, name=name
        ),
        "gather.dtype": lambda name: hvd.allgather(tf.ones([2, 2], dtype), name=name),
        "gather.rows": lambda name: hvd.allgather(tf.ones([2, 3 if odd else 2]), name=name),
        "copy.dtype": lambda name: hvd.broadcast(tf.ones([2, 2], dtype), 0, name=name),
        "copy.shape": lambda name: hvd.broadcast(tf.ones([3, 2] if odd else [2, 3]), 0, name=name),
        "copy.root": lambda name: hvd.broadcast(tf.ones(2), 1 if odd else 0, name=name),
        "exchange.dtype": lambda name: hvd.alltoall(tf.ones([size, 2], dtype), name=name),
        "scatter.shape": lambda name: hvd.reducescatter(
            tf.ones([2 * size, 3 if odd else 2]), op=hvd.Sum, name=name
        ),
    }
    for name, call in wrong.items():
        expect(tf.errors.FailedPreconditionError, "rank", call, f"eager.{name}")
        assert float(hvd.allreduce(1.0, op=hvd.Sum, name=f"eager.{name}")) == size
        graph = tf.function(lambda call=call, name=name: call(f"graph.{name}"))
        expect(tf.errors.OpError, "rank", graph)
    expect(tf.errors.InvalidArgumentError, "rank", hvd.broadcast, tf.ones(1), size)
    expect(tf.errors.InvalidArgumentError, "", hvd.alltoall, tf.ones([size + 1, 1]))


def main() -> int:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    calls()
    disagreements()
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
