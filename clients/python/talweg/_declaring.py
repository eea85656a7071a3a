# SPDX-License-Identifier: Apache-2.0
"""Declarations of tensors before their first rounds."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from talweg import _client
from talweg._collectives.process_sets import Group, ProcessSet
from talweg._declaration import Declaration, DType, Op, milliseconds_of, numpy_dtype, op_of
from talweg._library.native_arguments import check_name_and_priority, whole
from talweg.errors import InvalidArgument


def declare(
    name: str,
    dtype: DType | DTypeLike,
    count: int,
    op: Op = Op.AVERAGE,
    root_rank: int = 0,
    priority: int = 0,
    process_set: ProcessSet | None = None,
    patience: float | None = None,
) -> None:
    """Agrees on a tensor before its first round, which then starts sooner. Optional.

    `dtype` is a DType or a NumPy dtype. `count` is the number of elements; the first round sets
    their shape. Each `process_set` has its own tensor of a name, which its ranks declare. Raises
    Mismatch, which names both ranks, if another rank has declared the name differently. Then the
    first call of the name raises Mismatch at every rank, and after it the name is usable again.

    `patience`, in seconds, lets rounds of a sum or an average of f32 or f64 go on without late
    ranks (docs/collectives.md, "Late ranks"). All ranks then call declare() with the same patience
    before the first round of the name.
    """
    wire_dtype = dtype if isinstance(dtype, DType) else numpy_dtype(dtype)
    count, root_rank = whole("count", count), whole("root_rank", root_rank)
    client, operation = _client.current(), op_of(op)
    group = Group(client, process_set, "declare")
    if group.listed and operation is Op.BROADCAST:
        group.require_root(root_rank, "declare")
    declaration = Declaration(
        wire_dtype, count, operation, root_rank, group.listed, patience_ms=milliseconds_of(patience)
    )
    check_name_and_priority(name, priority)
    wire_name = group.name_of(name)
    if not client.tensors.is_free(wire_name):
        client.tensors.require_patience(wire_name, declaration.patience_ms)
        client.tensors.declare_shapeless(wire_name, declaration, priority)


def declare_in_place(
    name: str, dtype: DTypeLike, count: int, op: Op = Op.AVERAGE, priority: int = 0
) -> np.ndarray:
    """Declares a tensor, and returns the array in which a program computes what it gives to it.

    push_pull_inplace() of this array, or of the array in another shape, copies nothing where the
    ranks of the node sum (one node), or where each node has one rank and no nodes come and go. The
    result is then in the array, too. Elsewhere it works as with any other array. The array has one
    dimension of `count` elements of `dtype`, which are 0 at first, and keeps its memory as long as
    the program has it. All ranks call this alike.

    Where nothing is copied, a repeated call returns the same memory. Elsewhere it returns a new
    array of zeros. If another array is pushed under the name, or with a prescale_factor, the memory
    becomes an ordinary array's, and rounds copy from then on. Another use of the name raises
    InvalidArgument. Raises as declare() does, and InvalidArgument if the name's tensors change.
    """
    wire_dtype, count = numpy_dtype(dtype), whole("count", count)
    declaration = Declaration(wire_dtype, count, op_of(op), 0)
    tensors = _client.current().tensors
    if tensors.is_free(name):
        raise InvalidArgument(
            f"declare_in_place: tensor '{name}' has been used in several ways before: give this "
            "array a name of its own"
        )
    buffer = tensors.declare_shapeless(name, declaration, priority, in_place=True).buffer
    if buffer is None or count == 0:
        return np.zeros(count, dtype)
    return np.frombuffer(buffer.memory, dtype)
