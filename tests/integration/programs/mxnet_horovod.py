# SPDX-License-Identifier: Apache-2.0
"""One rank of mxnet_test.py. It checks what Horovod's documents and source say of horovod.mxnet."""

from __future__ import annotations

import inspect
import pickle
import tempfile
from pathlib import Path
from typing import Any

import mxnet as mx
import mxnet_models as models
import numpy as np
import talweg
import talweg.horovod.mxnet as hvd
from expected_errors import expect, expect_warning
from mxnet import gluon

_DTYPES = ("uint8", "int8", "int32", "int64", "float16", "float32", "float64")


def _parameters(function: Any) -> str:
    def text(parameter: inspect.Parameter) -> str:
        if parameter.default is parameter.empty:
            return parameter.name
        if parameter.default is hvd.global_process_set:
            return "PS"
        default = getattr(parameter.default, "__name__", parameter.default)
        return f"{parameter.name}={default}"

    return ", ".join(text(each) for each in inspect.signature(function).parameters.values())


def signatures() -> None:
    scale = "prescale_factor=1.0, postscale_factor=1.0"
    reduced = f"average=None, name=None, priority=0, {scale}, PS, op=None"
    scattered = f"op=0, name=None, priority=0, PS, {scale}"
    wanted = {
        hvd.init: "comm=None, process_sets=None",
        hvd.allreduce: f"tensor, {reduced}",
        hvd.allreduce_: f"tensor, {reduced}",
        hvd.grouped_allreduce: f"tensors, {reduced}",
        hvd.grouped_allreduce_: f"tensors, {reduced}",
        hvd.allgather: "tensor, name=None, priority=0, PS",
        hvd.grouped_allgather: "tensors, name=None, priority=0, PS",
        hvd.broadcast: "tensor, root_rank, name=None, priority=0, PS",
        hvd.broadcast_: "tensor, root_rank, name=None, priority=0, PS",
        hvd.alltoall: "tensor, splits=None, name=None, priority=0, PS",
        hvd.reducescatter: f"tensor, {scattered}",
        hvd.grouped_reducescatter: f"tensors, {scattered}",
        hvd.barrier: "PS",
        hvd.broadcast_parameters: "params, root_rank=0, prefix=None",
        hvd.broadcast_object: "obj, root_rank=0, name=None",
        hvd.allgather_object: "obj, name=None",
        hvd.DistributedOptimizer: "optimizer, gradient_predivide_factor=1.0, num_groups=0, PS",
        hvd.DistributedTrainer: "params, optimizer, optimizer_params=None, "
        "compression=NoneCompressor, gradient_predivide_factor=1.0, prefix=None, num_groups=0, PS",
    }
    for function, text in wanted.items():
        assert _parameters(function) == text, (function, _parameters(function))
    for name in hvd.__all__:
        assert hasattr(hvd, name), name


def before_init() -> None:
    expect(ValueError, "not been initialized", hvd.rank)
    expect(mx.MXNetError, "not initialized", hvd.allreduce, mx.nd.ones((2,)))
    expect(mx.MXNetError, "not initialized", hvd.allgather, mx.nd.ones((2,)))
    expect(mx.MXNetError, "not initialized", hvd.barrier)
    expect(mx.MXNetError, "not initialized", hvd.join)


def _of(rank: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Returns the array of a rank: small numbers, so that sums fit into 8 bits."""
    return (np.random.RandomState(rank).randint(0, 6, shape) + rank).astype(dtype)


def _shapes() -> list[tuple[int, ...]]:
    return [(5,), (3, 4), (2, 3, 4), (2, 2, 3, 3)]


def reductions() -> None:
    size, rank = hvd.size(), hvd.rank()
    for dtype in _DTYPES:
        for shape in _shapes():
            every = np.stack([_of(r, shape, dtype) for r in range(size)])
            total = every.sum(axis=0, dtype=dtype)
            tensor = mx.nd.array(every[rank], dtype=dtype)
            what = f"{dtype}.{len(shape)}"
            result = hvd.allreduce(tensor, op=hvd.Sum, name=what)
            assert isinstance(result, mx.nd.NDArray) and result.dtype == np.dtype(dtype).type
            assert (result.asnumpy() == total).all(), what
            assert (tensor.asnumpy() == every[rank]).all()  # The input is unchanged.
            mean = hvd.allreduce(tensor).asnumpy()  # Averages of integers are truncated.
            wanted = np.trunc(total / size) if dtype[0] in "iu" else total / np.float64(size)
            assert np.allclose(mean, wanted, rtol=1e-3 if dtype == "float16" else 1e-6), what
            largest = hvd.allreduce(tensor, op=hvd.Max, name=f"{what}.max").asnumpy()
            assert (largest == every.max(axis=0)).all()
            back = hvd.allreduce_(tensor, average=False, name=f"{what}.in_place")
            assert back is tensor and (tensor.asnumpy() == total).all()
    for reduce in (hvd.allreduce, hvd.allreduce_):
        out = expect_warning(DeprecationWarning, "`average`", reduce, mx.nd.ones((1,)), False)
        assert int(out.asscalar()) == size
    for grouped in (hvd.grouped_allreduce, hvd.grouped_allreduce_):
        [out] = expect_warning(DeprecationWarning, "`average`", grouped, [mx.nd.ones((1,))], False)
        assert int(out.asscalar()) == size
    negative = hvd.allreduce(mx.nd.array([-1 if rank == 0 else 0], dtype="int32"))
    assert int(negative.asscalar()) == (-1 if size == 1 else 0)
    expect(ValueError, "supersedes", hvd.allreduce, mx.nd.ones((1,)), average=True, op=hvd.Sum)
    expect(NotImplementedError, "Adasum", hvd.allreduce, mx.nd.ones((1,)), op=hvd.Adasum)
    expect(ValueError, "NDArray", hvd.allreduce, np.ones(1))
    sparse = mx.nd.ones((2, 2)).tostype("row_sparse")
    expect(ValueError, "tostype", hvd.allreduce, sparse)
    truths = mx.nd.ones((2,)).astype("bool")
    expect(ValueError, "bool", hvd.allreduce, truths, op=hvd.Sum)
    assert hvd.allreduce(truths, op=hvd.Min).asnumpy().all()
    short = mx.nd.ones((2,)).astype(np.dtype([("bfloat16", np.uint16)]))
    expect(mx.MXNetError, "bfloat16", hvd.allreduce, short)


def scaling() -> None:
    size, rank = hvd.size(), hvd.rank()
    ones = mx.nd.ones((4,)) * (rank + 1)
    total = size * (size + 1) / 2
    result = hvd.allreduce(ones, op=hvd.Sum, name="pre", prescale_factor=0.5, postscale_factor=3.0)
    assert np.allclose(result.asnumpy(), total * 1.5)
    whole = mx.nd.array([rank + 1], dtype="int32")
    halves = hvd.allreduce(whole, op=hvd.Sum, name="whole", prescale_factor=0.5)
    assert halves.asscalar() == sum((r + 1) // 2 for r in range(size))
    odd = mx.nd.array([1 + (rank == 0)] * size, dtype="int32")
    for call in (hvd.allreduce, hvd.reducescatter):  # The average is rounded once.
        mean = call(odd, op=hvd.Average, name="odd", postscale_factor=2.0)
        assert (mean.asnumpy() == 2 * (size + 1) // size).all(), mean
    expect(ValueError, "prescale_factor", hvd.allreduce, ones, prescale_factor="x")


def groups() -> None:
    size, rank = hvd.size(), hvd.rank()
    tensors = [mx.nd.ones((n + 1, 3)) * (rank + n) for n in range(5)]
    wanted = [sum(r + n for r in range(size)) for n in range(5)]
    results = hvd.grouped_allreduce(tensors, op=hvd.Sum, name="group")
    assert isinstance(results, list)
    for result, total in zip(results, wanted):
        assert (result.asnumpy() == total).all()
    back = hvd.grouped_allreduce_(tensors, average=False, name="group_")
    assert all(a is b for a, b in zip(back, tensors))
    assert all((t.asnumpy() == total).all() for t, total in zip(tensors, wanted))


def numpy_arrays() -> None:
    """Calls take MXNet's other kind of array."""
    size, rank = hvd.size(), hvd.rank()
    result = hvd.allreduce(mx.np.ones((2, 3)) * rank, op=hvd.Sum, name="np")
    assert isinstance(result, mx.np.ndarray)
    assert (result.asnumpy() == size * (size - 1) / 2).all()
    gathered = hvd.allgather(mx.np.ones((1, 2)) * rank)
    assert isinstance(gathered, mx.np.ndarray) and gathered.shape == (size, 2)


def own_layouts() -> None:
    """oneDNN keeps a convolution's result in its own layout."""
    size = hvd.size()
    images, weight = mx.nd.ones((2, 8, 6, 6)), mx.nd.ones((16, 8, 3, 3))
    out = mx.nd.Convolution(images, weight, no_bias=True, kernel=(3, 3), num_filter=16)
    hvd.allreduce_(out, average=False, name="convolution")
    assert (out.asnumpy() == 72 * size).all()
    out = mx.nd.Convolution(images, weight, no_bias=True, kernel=(3, 3), num_filter=16)
    assert (hvd.allreduce(out, op=hvd.Sum, name="convolved").asnumpy() == 72 * size).all()


def _late(value: float) -> mx.nd.NDArray:
    """Returns an array of this value that MXNet still computes."""
    product = mx.nd.ones((300, 300)) * value
    for _ in range(20):
        product = mx.nd.dot(product, mx.nd.ones((300, 300))) / 300
    return product


def asynchronous() -> None:
    """Reductions return at once, without waiting for their input or for other ranks."""
    size, rank = hvd.size(), hvd.rank()
    if rank != 0:
        talweg.broadcast_object(None, name="asynchronous")
    total = hvd.allreduce(_late(rank + 1), op=hvd.Sum, name="late")
    doubled = total * 2
    if rank == 0:  # If the call waited for the other ranks, they would wait for this one.
        talweg.broadcast_object(None, name="asynchronous")
    assert np.allclose(doubled.asnumpy(), size * (size + 1), rtol=1e-5)


def orders() -> None:
    """Ranks reduce 50 tensors in opposite orders. Then each needs another rank's tensor first."""
    size, rank = hvd.size(), hvd.rank()
    order = range(50) if rank % 2 == 0 else range(49, -1, -1)
    results = {n: hvd.allreduce(mx.nd.ones((n + 1,)), op=hvd.Sum, name=f"o{n}") for n in order}
    assert all((results[n].asnumpy() == size).all() for n in results)
    one = mx.nd.ones((1,))
    if rank == 0:  # At this rank the oldest round ends last.
        a = hvd.allreduce(one, op=hvd.Sum, name="a")
        b = hvd.allreduce(one, op=hvd.Sum, name="b")
        b.wait_to_read()
        c = hvd.allreduce(one, op=hvd.Sum, name="c")
    else:
        b = hvd.allreduce(one, op=hvd.Sum, name="b")
        c = hvd.allreduce(one, op=hvd.Sum, name="c")
        c.wait_to_read()
        a = hvd.allreduce(one, op=hvd.Sum, name="a")
    assert [int(each.asscalar()) for each in (a, b, c)] == [size] * 3


def repeated_names() -> None:
    """Rounds of one name follow each other, even if nobody reads their results."""
    size = hvd.size()
    tensors = [mx.nd.ones((3,)) * n for n in range(10)]
    for tensor in tensors:
        hvd.allreduce_(tensor, average=False, name="again")
    assert all((tensor.asnumpy() == n * size).all() for n, tensor in enumerate(tensors))


def names_stay() -> None:
    """A second init() forgets handles, but not the names on which the ranks have agreed."""
    size = hvd.size()
    first, second = mx.nd.ones((3,)), mx.nd.ones((4,))
    hvd.allreduce_(first, op=hvd.Sum, name="stays")
    hvd.broadcast_parameters({"stays": second})
    hvd.init()
    hvd.allreduce_(second, op=hvd.Sum, name="stays")
    hvd.broadcast_parameters({"stays": second}, root_rank=size - 1)
    assert (first.asnumpy() == size).all() and (second.asnumpy() == size).all()
    if size == 1:
        return
    # Ranks that use a name in different ways get an error, also if they have agreed on it before.
    for _ in range(2):
        other = mx.nd.ones((5 + hvd.rank() % 2,))
        expect(
            mx.MXNetError,
            "f32[6]",
            lambda each: hvd.allreduce(each, name="stays").wait_to_read(),
            other,
        )
        again = hvd.allreduce(mx.nd.ones((3,)), op=hvd.Sum, name="stays")
        assert (again.asnumpy() == size).all()


def gathers() -> None:
    size, rank = hvd.size(), hvd.rank()
    for dtype in _DTYPES:
        parts: list[np.ndarray] = [np.full((r + 1, 3), r, dtype) for r in range(size)]
        result = hvd.allgather(mx.nd.array(parts[rank], dtype=dtype), name=f"gather.{dtype}")
        assert result.dtype == np.dtype(dtype).type
        assert (result.asnumpy() == np.concatenate(parts)).all()
    results = hvd.grouped_allgather([mx.nd.ones((1,)) * rank, mx.nd.ones((2, 2))], name="g")
    assert isinstance(results, list)
    assert results[0].asnumpy().tolist() == list(range(size)) and results[1].shape == (2 * size, 2)


def exchanges() -> None:
    size, rank = hvd.size(), hvd.rank()
    own = mx.nd.arange(2 * size) + 100 * rank
    wanted = [100 * r + 2 * rank + i for r in range(size) for i in range(2)]
    assert hvd.alltoall(own).asnumpy().tolist() == wanted
    splits = [r + 1 for r in range(size)]
    rows = mx.nd.ones((sum(splits) + 1, 2)) * rank  # The last row is dropped.
    for given in (splits, mx.nd.array(splits, dtype="int32")):
        received, counts = hvd.alltoall(rows, given)
        assert counts.dtype == np.int32 and counts.asnumpy().tolist() == [rank + 1] * size
        senders = [r for r in range(size) for _ in range(rank + 1)]
        assert received.asnumpy()[:, 0].tolist() == senders
    expect(ValueError, "sum", hvd.alltoall, own, [2 * size + 1] + [0] * (size - 1))
    expect(ValueError, "int32", hvd.alltoall, own, mx.nd.ones((size,)))
    if size > 1:
        expect(ValueError, "multiple", hvd.alltoall, mx.nd.ones((size + 1,)))


def scatters() -> None:
    size, rank = hvd.size(), hvd.rank()
    rows = [0, 1] if rank == 0 else [rank + 1]  # The lowest ranks get the remainder.
    for dtype in ("int32", "float32"):
        every = np.stack([_of(r, (size + 1, 3), dtype) for r in range(size)])
        tensor = mx.nd.array(every[rank], dtype=dtype)
        total = every.sum(axis=0, dtype=dtype)[rows]
        result = hvd.reducescatter(tensor, op=hvd.Sum, name=f"scatter.{dtype}")
        assert (result.asnumpy() == total).all()
        mean = hvd.reducescatter(tensor, name=f"scatter.mean.{dtype}").asnumpy()
        wanted = np.trunc(total / size) if dtype == "int32" else total / size
        assert np.allclose(mean, wanted)
    results = hvd.grouped_reducescatter([mx.nd.ones((size,))] * 2, op=hvd.Sum, name="gs")
    assert [each.asnumpy().tolist() for each in results] == [[float(size)]] * 2
    expect(ValueError, "Average or hvd.Sum", hvd.reducescatter, mx.nd.ones((4,)), op=hvd.Max)
    expect(ValueError, "Adasum", hvd.reducescatter, mx.nd.ones((4,)), op=hvd.Adasum)


def broadcasts() -> None:
    size, rank = hvd.size(), hvd.rank()
    root = size - 1
    for dtype in _DTYPES:
        tensor = mx.nd.array(np.full((2, 3), rank), dtype=dtype)
        result = hvd.broadcast(tensor, root, name=f"b.{dtype}")
        assert (result.asnumpy() == root).all() and (tensor.asnumpy() == rank).all()
        assert hvd.broadcast_(tensor, root_rank=root) is tensor
        assert (tensor.asnumpy() == root).all()
    expect(ValueError, "root_rank", hvd.broadcast, mx.nd.ones((1,)), size)
    assert hvd.broadcast_object({"rank": rank}, root) == {"rank": root}
    assert hvd.allgather_object(rank) == list(range(size))
    params = {"a": mx.nd.ones((2,)) * rank, "b": mx.nd.ones((2, 2)) * rank}
    hvd.broadcast_parameters(params, root_rank=root, prefix="plain.")
    assert all((each.asnumpy() == root).all() for each in params.values())
    expect(ValueError, "invalid params", hvd.broadcast_parameters, [mx.nd.ones((1,))])


def late_parameters() -> None:
    """Parameters whose shapes come with the first batch are broadcast then."""
    net = models.network(hvd.rank(), shapes_are_known=False)
    hvd.broadcast_parameters(net.collect_params(), prefix="late.")
    net(mx.nd.ones((1, 1, 28, 28))).wait_to_read()
    models.same_everywhere(net, "late")


def process_sets() -> None:
    size, rank = hvd.size(), hvd.rank()
    ends = hvd.add_process_set([0, size - 1])
    if rank in (0, size - 1):
        total = hvd.allreduce(mx.nd.ones((3,)), op=hvd.Sum, name="set", process_set=ends)
        assert total.asnumpy().tolist() == [2.0] * 3
        assert hvd.allgather(mx.nd.ones((1,)), process_set=ends).shape == (2,)
        shared = hvd.broadcast(mx.nd.ones((2,)) * rank, size - 1, process_set=ends)
        assert (shared.asnumpy() == size - 1).all()
        rows = hvd.reducescatter(mx.nd.ones((2,)), op=hvd.Sum, process_set=ends)
        assert rows.asnumpy().tolist() == [2.0]
        assert hvd.alltoall(mx.nd.ones((2,)), process_set=ends).shape == (2,)
        # The ranks disagree, and the name is free again.
        wrong = mx.nd.ones((2 if rank == 0 else 3,))
        expect(
            mx.MXNetError,
            "",
            lambda: hvd.allreduce(wrong, op=hvd.Sum, name="again", process_set=ends).wait_to_read(),
        )
        again = hvd.allreduce(mx.nd.ones((2,)), op=hvd.Sum, name="again", process_set=ends)
        assert again.asnumpy().tolist() == [2.0] * 2
        hvd.barrier(ends)
    else:
        expect(ValueError, "not in process set", hvd.allreduce, mx.nd.ones((1,)), process_set=ends)
        expect(ValueError, "not in process set", hvd.barrier, ends)
    assert hvd.remove_process_set(ends)


def disagreements() -> None:
    """Each rank gets MXNetError if they disagree, and the name is free again."""
    rank = hvd.rank()
    wrong = mx.nd.ones((2 + rank % 2,))
    for what, call in {
        "shape": lambda: hvd.allreduce(wrong, name="shape").wait_to_read(),
        "dtype": lambda: hvd.allreduce(
            mx.nd.ones((2,), dtype=("float32", "int32")[rank % 2]), name="dtype"
        ).wait_to_read(),
        "op": lambda: hvd.allreduce(
            mx.nd.ones((2,)), op=(hvd.Sum, hvd.Average)[rank % 2], name="op"
        ).wait_to_read(),
        "root": lambda: hvd.broadcast(mx.nd.ones((2,)), rank % 2, name="root").wait_to_read(),
        "columns": lambda: hvd.allgather(mx.nd.ones((1, 2 + rank % 2)), name="columns"),
        "exchange": lambda: hvd.alltoall(mx.nd.ones((4, 2 + rank % 2)), name="exchange"),
    }.items():
        expect(mx.MXNetError, "rank", call)
        again = hvd.allreduce(mx.nd.ones((2,)), op=hvd.Sum, name=what)
        assert again.asnumpy().tolist() == [float(hvd.size())] * 2, what
    other_forms()
    models.check_lengths_that_differ(lambda params: hvd.DistributedTrainer(params, "sgd"))


def other_forms() -> None:
    """If a rank uses a name in another way, all ranks get an error, and none waits."""
    size, is_first = hvd.size(), hvd.rank() == 0

    def summed(name: str | None, *shape: int) -> mx.nd.NDArray:
        return hvd.allreduce(mx.nd.ones(shape), op=hvd.Sum, name=name)

    def sums(name: str | None, *shapes: tuple[int, ...]) -> None:
        for shape in shapes:
            assert (summed(name, *shape).asnumpy() == np.full(shape, size)).all()

    def differ(name: str | None, first: tuple[int, ...], others: tuple[int, ...]) -> None:
        words = str(list(others))
        shape = first if is_first else others
        expect(mx.MXNetError, words, lambda: summed(name, *shape).wait_to_read())

    differ("form.new", (2, 3), (3, 2))
    sums("form.new", (2, 3))
    sums("form.known", (2, 3), (2, 3))
    differ("form.known", (2, 3), (3, 2))
    sums("form.known", (2, 3), (6,))
    sums("form.longer", (4,), (4,))
    differ("form.longer", (4,), (5,))
    sums("form.longer", (5,))
    sums("form.both_known", (4,), (5,), (4,))
    differ("form.both_known", (4,), (5,))
    sums("form.both_known", (5,))
    for _ in range(20):  # These calls have no name.
        sums(None, (4,), (5,))
    differ(None, (4,), (5,))
    differ(None, (2, 3), (3, 2))
    sums(None, (2, 3))


def training() -> None:
    size, rank = hvd.size(), hvd.rank()
    options = {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-3}
    wanted = models.reference(7, "sgd", options, size)

    def run(what: str, **choices: Any) -> None:
        net = models.network(7 + rank)
        hvd.broadcast_parameters(net.collect_params(), prefix=f"{what}.")
        trainer = hvd.DistributedTrainer(
            net.collect_params(), "sgd", dict(options), prefix=what, **choices
        )
        losses = models.train(net, trainer.step, size, rank)
        models.check_training(net, losses, wanted, what)

    run("plain")
    run("predivided", gradient_predivide_factor=float(size), num_groups=2)

    # The optimizer in Gluon's own trainer, with states that are saved and loaded in between.
    net = models.network(7 + rank)
    hvd.broadcast_parameters(net.collect_params(), prefix="optimizer.")
    optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd", **options))
    assert isinstance(optimizer, mx.optimizer.Optimizer) and optimizer.momentum == 0.9
    optimizer = pickle.loads(pickle.dumps(optimizer))
    assert isinstance(optimizer, hvd.DistributedOptimizer)
    trainer = gluon.Trainer(net.collect_params(), optimizer, kvstore=None)
    losses = models.train(net, trainer.step, size, rank)
    models.check_training(net, losses, wanted, "optimizer")

    # Gradients travel as f16. Results are near those of f32, and the same at all ranks.
    net = models.network(7 + rank)
    hvd.broadcast_parameters(net.collect_params(), prefix="fp16.")
    trainer = hvd.DistributedTrainer(
        net.collect_params(), "sgd", dict(options), hvd.Compression.fp16, prefix="fp16"
    )
    losses = models.train(net, trainer.step, size, rank)
    models.same_everywhere(net, "fp16")
    together = np.sum(talweg.all_gather_object(losses), axis=0)
    assert np.allclose(together, wanted, rtol=0.05), (together, wanted)

    # Between allreduce_grads() and update() the gradients are sums.
    weight = gluon.Parameter("weight", shape=(3,))
    weight.initialize(mx.init.Zero())
    trainer = hvd.DistributedTrainer({"weight": weight}, "sgd", {"learning_rate": 1.0}, prefix="s")
    trainer._init_params()  # Programs call it before the first step.
    with mx.autograd.record():
        loss = (weight.data() * (rank + 1)).sum()
    loss.backward()
    trainer.allreduce_grads()
    assert (weight.grad().asnumpy() == size * (size + 1) / 2).all()
    trainer.update(1)
    assert np.allclose(weight.data().asnumpy(), -(size + 1) / 2)


def leaving() -> None:
    """A rank that does not read a result still gives its part before it leaves."""
    size, rank = hvd.size(), hvd.rank()
    total = hvd.allreduce(_late(1), op=hvd.Sum, name="last")
    if rank != 0:
        assert np.allclose(total.asnumpy(), size, rtol=1e-5)
    hvd.shutdown()


def refusals() -> None:
    params = models.network(0).collect_params()
    sgd = mx.optimizer.create("sgd")
    expect(ValueError, "larger than 0", hvd.DistributedOptimizer, sgd, gradient_predivide_factor=0)
    expect(ValueError, "num_groups", hvd.DistributedTrainer, params, "sgd", num_groups=-1)
    wrapped = hvd.DistributedOptimizer(sgd)
    trainer = expect_warning(UserWarning, "unwrapped", hvd.DistributedTrainer, params, wrapped)
    assert trainer._optimizer is sgd
    expect(ValueError, "prefix", hvd.DistributedTrainer, params, "sgd", prefix=1)
    expect(ValueError, "Optimizer", hvd.DistributedOptimizer, "sgd")


def _broadcast(tensor: mx.nd.NDArray, root_rank: int, name: str | None) -> np.ndarray:
    found: np.ndarray = hvd.broadcast(tensor, root_rank, name=name).asnumpy()
    return found


def barriers() -> None:
    """No rank leaves a barrier before all have come to it."""
    size, rank = hvd.size(), hvd.rank()
    with tempfile.TemporaryDirectory() as own:
        shared = Path(hvd.broadcast_object(own))
        (shared / f"{rank}").touch()
        hvd.barrier()
        assert len(list(shared.iterdir())) == size
        hvd.barrier()  # Rank 0 removes the directory.


def joined() -> None:
    """Rank r has r + 1 batches. The others' reductions go on with zeros. Other calls do not."""
    size, rank = hvd.size(), hvd.rank()
    for turn in range(2):
        for batch in range(rank + 1):
            there = size - batch
            for name in (None, "joined", f"joined.{turn}.{batch}"):
                found = hvd.allreduce(mx.nd.ones((2000,)) * size, name=name)
                assert (found.asnumpy() == there).all()
            own = mx.nd.ones((batch + 1, 2), dtype="int32")
            hvd.allreduce_(own, average=False, name=f"joined.{turn}")
            assert (own.asnumpy() == there).all()
            pair = hvd.grouped_allreduce([own, own], average=False, name="joined.pair")
            assert (pair[1].asnumpy() == there * there).all()
            if batch > 0:
                for name in (None, "refused"):
                    expect(mx.MXNetError, "joined", hvd.allgather, own, name=name)
                    expect(mx.MXNetError, "joined", _broadcast, own, size - 1, name)
        assert hvd.join() == size - 1
        found = hvd.broadcast(mx.nd.ones((2, 2)) * rank, size - 1, name="refused")
        assert (found.asnumpy() == size - 1).all()
    found = hvd.allreduce(mx.nd.ones((3,)), average=False, name="joined")
    assert (found.asnumpy() == size).all()


def main() -> None:
    signatures()
    before_init()
    hvd.init(process_sets="dynamic")
    for check in (
        reductions,
        scaling,
        groups,
        numpy_arrays,
        own_layouts,
        repeated_names,
        names_stay,
        gathers,
        exchanges,
        scatters,
        broadcasts,
        late_parameters,
        training,
        refusals,
        barriers,
    ):
        check()
    if hvd.size() > 1:
        joined()
        asynchronous()
        orders()
        disagreements()
    if hvd.size() > 2:
        process_sets()
    leaving()
    expect(mx.MXNetError, "not initialized", hvd.allreduce, mx.nd.ones((2,)))


if __name__ == "__main__":
    main()
