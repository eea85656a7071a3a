# SPDX-License-Identifier: Apache-2.0
"""Collectives of TensorFlow's tensors: eager, in tf.function and in graphs, with gradients."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from talweg import _client
from talweg._arguments import chosen_op, factors_of
from talweg._client import Client
from talweg._collectives import objects
from talweg._collectives.process_sets import Group, ProcessSet
from talweg._declaration import Op
from talweg.errors import InvalidArgument, WrongType
from talweg.tensorflow import _kernel, _rounds
from talweg.tensorflow._engine import Part, call_each_time, require_no_xla, run
from talweg.tensorflow._rounds import Reduction

# The functions below make a graph in tf.function. AutoGraph would only make them slower.
plain = tf.autograph.experimental.do_not_convert


def unique_name(
    kind: str, tensor: Any, name: str | None, ignores_scope: bool = False
) -> str | None:
    """Returns the name by which an operation's ranks find each other.

    A graph does not fix the order of its operations, so each has a name: the caller's, or one made
    of the tensor's. It lies in the name scope and is unique in the graph, as TensorFlow's own names
    are. Eager calls without a name are matched by their order, and get None.
    """
    if tf.executing_eagerly():
        return name
    base = name
    if base is None:
        base = f"{kind}_{re.sub('[^A-Za-z0-9_.]', '_', getattr(tensor, 'name', 'tensor'))}"
    graph = tf.compat.v1.get_default_graph()
    unique: str = graph.unique_name(re.sub("[^A-Za-z0-9_./@~>-]", "_", base))
    return unique.rpartition("/")[2] if ignores_scope else unique


def asked(ask: Callable[[Client], int], after: tf.Tensor) -> tf.Tensor:
    """Returns `ask`'s answer as int64. If nodes may change, a graph asks when `after` is there."""
    client = _client.current()
    if tf.executing_eagerly() or not client.nodes_change:
        return tf.constant(ask(client), tf.int64)
    return call_each_time(lambda _: np.int64(ask(_client.current())), [after])


def size_of(process_set: ProcessSet | None, operation: str, after: tf.Tensor) -> tf.Tensor:
    """Returns the number of ranks in the set, as asked() does."""
    return asked(lambda client: Group(client, process_set, operation).size, after)


def _gradient_names(names: Sequence[str | None]) -> list[str | None]:
    """Returns names for the operations' gradients. A graph gets new ones each time.

    A graph that asks for several gradients through one operation may compute them in any order, and
    at the same time.
    """
    if tf.executing_eagerly():
        return [None if name is None else f"{name}.gradient" for name in names]
    graph = tf.compat.v1.get_default_graph()
    with graph.name_scope(None):  # Without the scope in which the gradient is asked for.
        return [None if name is None else graph.unique_name(f"{name}.gradient") for name in names]


def _rows_unknown(tensor: tf.Tensor) -> tf.TensorShape:
    shape = tensor.shape
    return shape if shape.rank is None else tf.TensorShape([None, *shape[1:]])


def _require_rows(tensor: tf.Tensor, operation: str) -> None:
    if tensor.shape.rank == 0:
        raise InvalidArgument(
            f"{operation}: a scalar has no first dimension: use tf.reshape(tensor, [1])"
        )


def _tensor_of(value: Any, operation: str) -> tf.Tensor:
    if isinstance(value, tf.IndexedSlices):
        raise InvalidArgument(
            f"{operation}: tf.IndexedSlices have no one shape: use tf.convert_to_tensor(slices), or "
            "gather their indices and values"
        )
    return as_tensor(value, operation)


def as_tensor(value: Any, operation: str) -> tf.Tensor:
    """Returns the value as a tensor. Raises WrongType if TensorFlow makes none of it."""
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise WrongType(
            f"{operation}: expected a tf.Tensor, or what tf.convert_to_tensor() takes, got "
            f"{type(value).__name__}: {error}"
        ) from error


# ----- push_pull -----


def reduce_part(tensor: tf.Tensor, name: str | None, how: Reduction) -> Part:
    return Part(
        lambda array: _rounds.start_reduction(array, name, how),
        [tensor],
        [(tensor.dtype, tensor.shape)],
    )


def reduce_many(
    tensors: Sequence[tf.Tensor], names: Sequence[str | None], hows: Sequence[Reduction]
) -> list[tf.Tensor]:
    """Reduces all tensors, without gradients. Each leaves as soon as it is there."""
    if not tensors:
        return []
    _client.current()  # Raises NotInitialized before a graph is made.
    if not tf.executing_eagerly():
        require_no_xla()
    loaded = None if tf.executing_eagerly() else _kernel.kernel()
    if loaded is not None and not any(how.is_adasum for how in hows):
        return _kernel.reduce_many(loaded, tensors, names, hows)
    parts = [reduce_part(*each) for each in zip(tensors, names, hows)]
    return [result for [result] in run(parts)]


@plain
def reduce_tensors(
    tensors: Sequence[Any], names: Sequence[str | None], how: Reduction
) -> list[tf.Tensor]:
    """Reduces all tensors. Their gradients are reduced in the same way."""

    @tf.custom_gradient
    def reduced(*inputs: tf.Tensor) -> Any:
        outputs = reduce_many(inputs, names, [how] * len(inputs))

        def gradient(*upstream: tf.Tensor) -> Any:
            wanted = _gradient_names(names)
            return reduce_tensors(upstream, wanted, how)

        return outputs, gradient

    inputs = [_tensor_of(each, how.operation) for each in tensors]
    return list(reduced(*inputs)) if inputs else []


def _reduction(
    op: Op | None,
    average: bool,
    process_set: ProcessSet | None,
    prescale_factor: float,
    postscale_factor: float,
    priority: int,
) -> Reduction:
    wanted = chosen_op(op, average)
    factors = factors_of(prescale_factor, postscale_factor, "push_pull")
    return Reduction(wanted, *factors, process_set, priority)


@plain
def push_pull(
    tensor: Any,
    name: str | None = None,
    op: Op | None = None,
    *,
    average: bool = True,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
) -> tf.Tensor:
    """Returns the ranks' tensors combined. The result has the tensor's shape and dtype.

    Takes every shape, the dtypes of talweg.push_pull(), and bfloat16. Averages of integers are
    truncated. The gradient is combined in the same way. Eager calls raise Talweg's errors; a graph
    raises an error of tf.errors with the same text.
    """
    how = _reduction(op, average, process_set, prescale_factor, postscale_factor, priority)
    [result] = reduce_tensors([tensor], [unique_name("push_pull", tensor, name)], how)
    return result


def group_names(
    kind: str, tensors: Sequence[Any], name: str | None, pattern: str = "{name}.{index}"
) -> list[str | None]:
    """Returns a name for each tensor of a group; None for each if the call is eager and unnamed."""
    base = unique_name(kind, tensors[0], name) if tensors else None
    if base is None:
        return [None] * len(tensors)
    count = len(tensors)
    return [pattern.format(name=base, index=i, number=i + 1, count=count) for i in range(count)]


@plain
def grouped_push_pull(
    tensors: Sequence[Any],
    name: str | None = None,
    op: Op | None = None,
    *,
    average: bool = True,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
) -> list[tf.Tensor]:
    """Returns push_pull() of each tensor. With a name these are called name.0, name.1 and so on."""
    how = _reduction(op, average, process_set, prescale_factor, postscale_factor, priority)
    return reduce_tensors(tensors, group_names("grouped_push_pull", tensors, name), how)


# ----- broadcast -----


@plain
def broadcast_tensors(
    tensors: Sequence[Any],
    names: Sequence[str | None],
    root_rank: int,
    process_set: ProcessSet | None,
) -> list[tf.Tensor]:
    """Returns the root's tensors. The gradients are averaged at the root, and zero elsewhere."""
    client = _client.current()
    group = Group(client, process_set, "broadcast")
    group.require_root(root_rank, "broadcast")
    how = Reduction(Op.BROADCAST, process_set=process_set, root_rank=root_rank)
    average = Reduction(Op.AVERAGE, process_set=process_set)

    @tf.custom_gradient
    def spread(*inputs: tf.Tensor) -> Any:
        outputs = reduce_many(inputs, names, [how] * len(inputs))

        def gradient(*upstream: tf.Tensor) -> Any:
            wanted = _gradient_names(names)
            averages = reduce_many(upstream, wanted, [average] * len(upstream))
            is_root = asked(lambda client: int(client.rank == root_rank), averages[0]) > 0
            # Each rank must reduce, or the root would wait. A graph of tf.compat.v1 leaves out
            # an operation that nothing depends on.
            with tf.control_dependencies(averages):
                return [tf.where(is_root, each, tf.zeros_like(each)) for each in averages]

        return outputs, gradient

    inputs = [_tensor_of(each, "broadcast") for each in tensors]
    return list(spread(*inputs)) if inputs else []


@plain
def broadcast(
    tensor: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> tf.Tensor:
    """Returns the root's tensor, of the same shape and dtype as this rank's.

    `root_rank` is a rank of the job, even with a process set.
    """
    names = [unique_name("broadcast", tensor, name)]
    [result] = broadcast_tensors([tensor], names, root_rank, process_set)
    return result


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Any:
    """Returns the root's object at every rank; blocks. Uses pickle: only for ranks you trust."""
    own, call = objects.broadcast_name(name, root_rank), objects.broadcast_call(name)
    return objects.broadcast_object(_client.current(), obj, root_rank, own, process_set, call)


def all_gather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet | None = None
) -> list[Any]:
    """Returns all ranks' objects, by rank; blocks. Uses pickle: only for ranks you trust."""
    own, call = objects.gather_name(name), objects.gather_call(name)
    return objects.all_gather_object(_client.current(), obj, own, process_set, call=call)


# ----- all_gather -----


def gather_many(
    tensors: Sequence[tf.Tensor],
    names: Sequence[str | None],
    process_set: ProcessSet | None,
    priority: int = 0,
    of_some: bool = False,
    own_at_entry: bool = False,
) -> list[tf.Tensor]:
    """Gathers each tensor, without gradients; `of_some`: goes on without ranks that have joined."""
    _client.current()
    how = Reduction(process_set=process_set, priority=priority, own_at_entry=own_at_entry)

    def part(tensor: tf.Tensor, name: str | None) -> Part:
        return Part(
            lambda array: _rounds.start_all_gather(array, name, how, of_some),
            [tensor],
            [(tensor.dtype, _rows_unknown(tensor))],
        )

    parts = [part(tensor, name) for tensor, name in zip(tensors, names)]
    return [result for [result] in run(parts)] if parts else []


def sum_rows(
    values: tf.Tensor,
    indices: tf.Tensor,
    rows: tf.Tensor,
    name: str | None,
    how: Reduction,
    whole: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the values and the indices of the ranks' sum of a tensor with so many `rows`, without
    gradients. Each index comes once. `whole`: the name under which another rank would push it
    whole.
    """
    _client.current()
    part = Part(
        lambda own, at, count: _rounds.start_sparse_sum(own, at, count, name, how, whole),
        [values, indices, rows],
        [(values.dtype, _rows_unknown(values)), (indices.dtype, tf.TensorShape([None]))],
    )
    [[summed, numbers]] = run([part])
    return summed, numbers


@plain
def gather_tensors(
    tensors: Sequence[Any],
    names: Sequence[str | None],
    process_set: ProcessSet | None,
    operation: str = "all_gather",
) -> list[tf.Tensor]:
    """Gathers each tensor. The gradients are averaged, and each rank gets its own rows of them."""

    @tf.custom_gradient
    def gathered(*inputs: tf.Tensor) -> Any:
        outputs = gather_many(inputs, names, process_set)
        rows = [tf.shape(each, tf.int64)[:1] for each in inputs]

        def gradient(*upstream: tf.Tensor) -> Any:
            how = Reduction(Op.AVERAGE, process_set=process_set)
            wanted = _gradient_names(names)
            averages = reduce_many(upstream, wanted, [how] * len(upstream))
            own = [None if name is None else f"{name}.rows" for name in wanted]
            place = asked(lambda client: Group(client, process_set, operation).place, averages[0])
            slices = []
            for average, counts, mine in zip(averages, gather_many(rows, own, process_set), rows):
                begin = tf.reduce_sum(counts[:place])
                slices.append(average[begin : begin + mine[0]])
            return slices

        return outputs, gradient

    inputs = [_tensor_of(each, operation) for each in tensors]
    for each in inputs:
        _require_rows(each, operation)
    return list(gathered(*inputs)) if inputs else []


@plain
def all_gather(
    tensor: Any, name: str | None = None, process_set: ProcessSet | None = None
) -> tf.Tensor:
    """Returns the ranks' tensors joined along the first dimension, whose length may differ."""
    names = [unique_name("all_gather", tensor, name)]
    [result] = gather_tensors([tensor], names, process_set)
    return result


@plain
def grouped_all_gather(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet | None = None
) -> list[tf.Tensor]:
    """Returns all_gather() of each. With a name these are called name.0, name.1 and so on."""
    names = group_names("grouped_all_gather", tensors, name)
    return gather_tensors(tensors, names, process_set, "grouped_all_gather")


# ----- reduce_scatter -----


@plain
def scatter_tensors(
    tensors: Sequence[Any],
    names: Sequence[str | None],
    how: Reduction,
    operation: str = "reduce_scatter",
) -> list[tf.Tensor]:
    """Returns this rank's rows of each reduction. The gradients are gathered, and multiplied by the
    number of ranks for a sum.
    """
    _client.current()
    factor = how.prescale * how.postscale

    def part(tensor: tf.Tensor, name: str | None) -> Part:
        return Part(
            lambda array: _rounds.start_reduce_scatter(array, name, how),
            [tensor],
            [(tensor.dtype, _rows_unknown(tensor))],
        )

    @tf.custom_gradient
    def scattered(*inputs: tf.Tensor) -> Any:
        outputs = [result for [result] in run([part(*each) for each in zip(inputs, names)])]

        def gradient(*upstream: tf.Tensor) -> Any:
            scaled = [each * tf.cast(factor, each.dtype) for each in upstream]
            if how.op is Op.SUM:
                size = size_of(how.process_set, operation, scaled[0])
                scaled = [each * tf.cast(size, each.dtype) for each in scaled]
            return gather_many(scaled, _gradient_names(names), how.process_set)

        return outputs, gradient

    inputs = [_tensor_of(each, operation) for each in tensors]
    for each in inputs:
        _require_rows(each, operation)
    return list(scattered(*inputs)) if inputs else []


@plain
def reduce_scatter(
    tensor: Any,
    name: str | None = None,
    op: Op | None = None,
    *,
    average: bool = True,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Combines the ranks' tensors and returns this rank's rows, as talweg.reduce_scatter() does."""
    how = _reduction(op, average, process_set, prescale_factor, postscale_factor, 0)
    [result] = scatter_tensors([tensor], [unique_name("reduce_scatter", tensor, name)], how)
    return result


@plain
def grouped_reduce_scatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: Op | None = None,
    *,
    average: bool = True,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[tf.Tensor]:
    """Returns reduce_scatter() of each. With a name these are called name.0, name.1 and so on."""
    how = _reduction(op, average, process_set, prescale_factor, postscale_factor, 0)
    names = group_names("grouped_reduce_scatter", tensors, name)
    return scatter_tensors(tensors, names, how, "grouped_reduce_scatter")


# ----- all_to_all -----


def _exchange(
    tensor: tf.Tensor,
    splits: tf.Tensor | None,
    name: str | None,
    process_set: ProcessSet | None,
    drops_surplus: bool,
) -> tuple[tf.Tensor, tf.Tensor]:
    def start(array: np.ndarray, *given: np.ndarray) -> _rounds.Pending:
        counts = [int(count) for count in given[0].reshape(-1)] if given else None
        if counts is not None and drops_surplus and array.ndim and sum(counts) <= array.shape[0]:
            array = array[: sum(counts)]
        return _rounds.start_all_to_all(array, counts, name, process_set)

    inputs = [tensor] if splits is None else [tensor, splits]
    outputs = [(tensor.dtype, _rows_unknown(tensor)), (tf.int32, tf.TensorShape([None]))]
    [[rows, counts]] = run([Part(start, inputs, outputs)])
    return rows, counts


@plain
def exchange_tensor(
    tensor: Any,
    splits: Any,
    name: str | None,
    process_set: ProcessSet | None,
    drops_surplus: bool = False,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Exchanges rows as all_to_all() does. `drops_surplus` leaves out rows beyond the splits."""
    _client.current()

    @tf.custom_gradient
    def exchanged(rows: tf.Tensor) -> Any:
        received, counts = _exchange(rows, wanted, name, process_set, drops_surplus)

        def gradient(upstream: tf.Tensor, _: Any) -> Any:
            [wanted_back] = _gradient_names([name])
            back, _ = _exchange(upstream, counts, wanted_back, process_set, False)
            if not drops_surplus:
                return back
            missing = tf.shape(rows)[:1] - tf.shape(back)[:1]
            surplus = tf.zeros(tf.concat([missing, tf.shape(back)[1:]], 0), back.dtype)
            return tf.concat([back, surplus], 0)

        return (received, counts), gradient

    wanted = None if splits is None else tf.convert_to_tensor(splits)
    source = _tensor_of(tensor, "all_to_all")
    _require_rows(source, "all_to_all")
    received, counts = exchanged(source)
    return received, counts


@plain
def all_to_all(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Sends rows to every rank; returns the received rows, and int32[ranks]: how many from each.

    The first splits[0] rows go to the group's first rank, and so on. Without `splits` every rank
    gets the same number.
    """
    return exchange_tensor(tensor, splits, unique_name("all_to_all", tensor, name), process_set)


__all__ = [
    "all_gather",
    "all_gather_object",
    "all_to_all",
    "broadcast",
    "broadcast_object",
    "grouped_all_gather",
    "grouped_push_pull",
    "grouped_reduce_scatter",
    "push_pull",
    "reduce_scatter",
]
