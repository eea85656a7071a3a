# SPDX-License-Identifier: Apache-2.0
"""Horovod's collectives of TensorFlow's tensors, with Horovod's signatures.

Errors are those of tf.errors: InvalidArgumentError, which is a ValueError too, for a call that
cannot be carried out, and FailedPreconditionError if ranks disagree, or before init().
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import talweg
from talweg import Op, _client
from talweg._arguments import compressed, factors_of, listed
from talweg._compat.tensorflow.failures import operation
from talweg._compat.tensorflow.slices import reduce_slices
from talweg.errors import InvalidArgument, NotInitialized
from talweg.horovod.common import basics, joining, surface
from talweg.horovod.common import process_sets as sets
from talweg.horovod.common.basics import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    is_homogeneous,
)
from talweg.horovod.common.process_sets import ProcessSet, global_process_set, members_of
from talweg.horovod.common.surface import *  # noqa: F403
from talweg.tensorflow import _ops, _variables
from talweg.tensorflow._compression import Compression
from talweg.tensorflow._rounds import Reduction

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "is_homogeneous",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
]
__all__ += surface.__all__

_basics = basics  # Programs that know Horovod's own code use this name.

_GROUP = "{name}_{number}of{count}"


def _name(kind: str, tensor: Any, name: str | None, ignores_scope: bool = False) -> str | None:
    """Returns an operation's name, which begins with its kind: `allreduce.x`."""
    if not basics.is_initialized():
        raise NotInitialized("Horovod has not been initialized; use hvd.init().")
    unique = _ops.unique_name(kind, tensor, name, ignores_scope)
    return None if unique is None else f"{kind}.{unique}"


def _reduction(
    op: int | None,
    average: bool | None,
    pre: float,
    post: float,
    process_set: ProcessSet,
    operation_name: str,
) -> Reduction:
    pre, post = factors_of(pre, post, operation_name)
    wanted, members = basics.resolve(op, average), members_of(process_set, operation_name)
    if basics.is_adasum(wanted):
        return Reduction(Op.SUM, pre, post, members, is_adasum=True)
    return Reduction(basics.op_of(wanted, None, operation_name), pre, post, members)


@operation
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Returns the reduction of `tensor` over all ranks; differentiable.

    tf.IndexedSlices give tf.IndexedSlices with the rows of all ranks. These can only be summed or
    averaged, without factors; anything else raises NotImplementedError.
    """
    if isinstance(tensor, tf.IndexedSlices):
        wanted = basics.resolve(op, average)
        if wanted not in (Average, Sum):
            raise NotImplementedError(
                "The Adasum, Min, Max and Product reductions do not support sparse tensors: use "
                "tf.convert_to_tensor(slices), or sparse_as_dense=True"
            )
        if prescale_factor != 1.0 or postscale_factor != 1.0:
            raise NotImplementedError("prescaling and postscaling do not support sparse tensors")
        unique = _name("allreduce", tensor.indices, name, ignore_name_scope)
        members = members_of(process_set, "allreduce")
        with tf.device(device_sparse):
            kind = basics.op_of(wanted, None, "allreduce")
            return reduce_slices(tensor, unique, kind, members, compression)
    unique = _name("allreduce", tensor, name, ignore_name_scope)
    how = _reduction(op, average, prescale_factor, postscale_factor, process_set, "allreduce")
    with tf.device(device_dense):
        own = _ops.as_tensor(tensor, "allreduce")
        pushed, context = compressed(own, compression, "allreduce")
        [reduced] = _ops.reduce_tensors([pushed], [unique], how)
        return compression.decompress(reduced, context)


def _grouped(
    kind: str, tensors: Sequence[Any], name: str | None, ignores_scope: bool = False
) -> list[str | None]:
    if not tensors:
        return []
    base = _name(kind, tensors[0], name, ignores_scope)
    count = len(tensors)
    if base is None:
        return [None] * count
    return [_GROUP.format(name=base, number=i + 1, count=count) for i in range(count)]


@operation
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Returns the reductions of all tensors; differentiable."""
    tensors = listed(tensors, "grouped_allreduce")
    if any(isinstance(each, tf.IndexedSlices) for each in tensors):
        return [
            allreduce(
                each,
                average,
                device_dense,
                device_sparse,
                compression,
                op,
                prescale_factor,
                postscale_factor,
                None
                if name is None
                else _GROUP.format(name=name, number=i + 1, count=len(tensors)),
                process_set,
                ignore_name_scope,
            )
            for i, each in enumerate(tensors)
        ]
    names = _grouped("grouped_allreduce", tensors, name, ignore_name_scope)
    how = _reduction(
        op, average, prescale_factor, postscale_factor, process_set, "grouped_allreduce"
    )
    with tf.device(device_dense):
        pushed = [
            compressed(_ops.as_tensor(each, "grouped_allreduce"), compression, "grouped_allreduce")
            for each in tensors
        ]
        reduced = _ops.reduce_tensors([tensor for tensor, _ in pushed], names, how)
        return [
            compression.decompress(result, context) for result, (_, context) in zip(reduced, pushed)
        ]


@operation
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Returns the ranks' tensors joined along the first dimension; differentiable."""
    names = [_name("allgather", tensor, name, ignore_name_scope)]
    members = members_of(process_set, "allgather")
    [result] = _ops.gather_tensors([tensor], names, members, "allgather")
    return result


@operation
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Returns allgather() of each tensor; differentiable."""
    tensors = list(tensors)
    names = _grouped("grouped_allgather", tensors, name, ignore_name_scope)
    members = members_of(process_set, "grouped_allgather")
    return _ops.gather_tensors(tensors, names, members, "grouped_allgather")


@operation
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Returns the root's tensor at every rank; differentiable. `root_rank` is a rank of the job."""
    names = [_name("broadcast", tensor, name, ignore_name_scope)]
    members = members_of(process_set, "broadcast")
    [result] = _ops.broadcast_tensors([tensor], names, root_rank, members)
    return result


@operation
def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Makes every rank's variables equal to the root's, in place; returns the variables."""
    variables = list(variables)
    if not basics.is_initialized():
        raise NotInitialized("Horovod has not been initialized; use hvd.init().")
    kinds = {_is_resource(each) for each in variables}
    if len(kinds) > 1:
        raise ValueError("broadcast_: resource and reference variables may not be mixed")
    members = members_of(process_set, "broadcast_")
    done = _variables.assign_from_root(variables, root_rank, members, name or "broadcast_")
    if done is None:
        return variables
    with tf.control_dependencies([done]):
        return [tf.identity(each) for each in variables]


def _is_resource(variable: Any) -> bool:
    return getattr(_variables.tf_variable(variable), "dtype", None) is not None and (
        not getattr(getattr(variable, "dtype", None), "_is_ref_dtype", False)
    )


@operation
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the rows that the ranks have sent here, with `splits` also how many each sent.

    `splits` has an int32 for each rank. Rows beyond their sum are dropped.
    """
    unique = _name("alltoall", tensor, name, ignore_name_scope)
    members = members_of(process_set, "alltoall")
    wanted = None if splits is None else tf.convert_to_tensor(splits, dtype_hint=tf.int32)
    if wanted is not None and wanted.dtype != tf.int32:
        raise InvalidArgument(f"alltoall: splits are {wanted.dtype.name}; they must be int32")
    rows, counts = _ops.exchange_tensor(tensor, wanted, unique, members, drops_surplus=True)
    return rows if splits is None else (rows, counts)


def _scattered(
    op: int, pre: float, post: float, process_set: ProcessSet, operation_name: str
) -> Reduction:
    if op not in (Average, Sum):
        raise InvalidArgument(f"{operation_name}: op is {op!r}; it must be hvd.Average or hvd.Sum")
    return _reduction(op, None, pre, post, process_set, operation_name)


def _scatter(
    kind: str,
    tensors: list[Any],
    names: list[str | None],
    compression: Any,
    how: Reduction,
) -> list[Any]:
    pushed = [compressed(_ops.as_tensor(each, kind), compression, kind) for each in tensors]
    results = _ops.scatter_tensors([tensor for tensor, _ in pushed], names, how, kind)
    return [
        compression.decompress(result, context) for result, (_, context) in zip(results, pushed)
    ]


@operation
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Returns this rank's rows of the reduction, in rank order; differentiable."""
    if isinstance(tensor, tf.IndexedSlices):
        raise NotImplementedError("reducescatter: tf.IndexedSlices are not supported")
    names = [_name("reducescatter", tensor, name, ignore_name_scope)]
    how = _scattered(op, prescale_factor, postscale_factor, process_set, "reducescatter")
    with tf.device(device_dense):
        [result] = _scatter("reducescatter", [tensor], names, compression, how)
    return result


@operation
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Returns reducescatter() of each tensor; differentiable."""
    tensors = list(tensors)
    names = _grouped("grouped_reducescatter", tensors, None)
    how = _scattered(op, prescale_factor, postscale_factor, process_set, "grouped_reducescatter")
    with tf.device(device_dense):
        return _scatter("grouped_reducescatter", tensors, names, compression, how)


@operation
def join() -> tf.Tensor:
    """Gives zeros to the others' reductions until all ranks have joined, if this one has no more
    data.

    Returns the last rank to join, as int32. Meanwhile all other collectives raise at the ranks that
    call them.
    """
    _client.current()  # A graph raises NotInitialized when it is made.
    return _asked(joining.join, "HorovodJoin")


# ----- Operations that answer when the graph runs -----


def _asked(ask: Callable[[], int], name: str | None) -> tf.Tensor:
    def number() -> np.int32:
        _client.current()  # Raises NotInitialized before any other error.
        return np.int32(ask())

    if tf.executing_eagerly():
        return tf.constant(number(), tf.int32)
    answer = tf.numpy_function(number, [], tf.int32, name=name)
    answer.set_shape(())
    return answer


# Horovod's answer of process_set_included_op() for a set that is not registered.
_UNKNOWN_SET = -3


def _found(process_set_id: int) -> ProcessSet | None:
    return global_process_set if process_set_id == 0 else sets._registered.get(process_set_id)


def _set_of(process_set_id: int) -> ProcessSet:
    found = _found(process_set_id)
    if found is None:
        raise InvalidArgument(f"there is no process set with id {process_set_id}")
    return found


@operation
def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Returns the number of ranks in a process set when the graph runs, as int32."""
    return _asked(lambda: int(_set_of(process_set_id).size() or 0), name)


@operation
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Returns 1 if this rank is in a process set when the graph runs, 0 if not, as int32.

    Returns -3 if no set with that id is registered then.
    """

    def ask() -> int:
        found = _found(process_set_id)
        return _UNKNOWN_SET if found is None else int(bool(found.included()))

    return _asked(ask, name)


@operation
def rank_op(name: str | None = None) -> tf.Tensor:
    """Returns rank() when the graph runs, as int32."""
    return _asked(talweg.rank, name)


@operation
def local_rank_op(name: str | None = None) -> tf.Tensor:
    """Returns local_rank() when the graph runs, as int32."""
    return _asked(talweg.local_rank, name)


@operation
def local_size_op(name: str | None = None) -> tf.Tensor:
    """Returns local_size() when the graph runs, as int32."""
    return _asked(talweg.local_size, name)
