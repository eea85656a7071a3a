# SPDX-License-Identifier: Apache-2.0
"""push_pull and broadcast by BytePS's signatures.

Calls raise errors of tf.errors. InvalidArgumentError, which is also a ValueError, says that a call
is not possible. FailedPreconditionError says that ranks disagree, or that init() was not called.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from talweg import _client
from talweg._arguments import compressed
from talweg._compat.tensorflow.failures import operation
from talweg._compat.tensorflow.slices import reduce_slices
from talweg._declaration import Op
from talweg.byteps import _asynchrony
from talweg.byteps.common import surface
from talweg.byteps.common.surface import *  # noqa: F403
from talweg.errors import InvalidArgument, Unsupported
from talweg.tensorflow import _ops, _variables
from talweg.tensorflow._compression import Compression
from talweg.tensorflow._rounds import Reduction

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Sum",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "push_pull",
]
__all__ += surface.__all__

Average, Sum, Adasum = "Average", "Sum", "Adasum"


def op_of(op: Any, average: bool | None = None) -> Op:
    """Returns Talweg's operation. Raises ValueError for Adasum, and if both arguments are given."""
    if op is not None and average is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    if op is None:
        return Op.SUM if average is False else Op.AVERAGE
    if op == Adasum:
        raise ValueError("op == Adasum is not supported yet: use Average")
    if op not in (Average, Sum):
        raise InvalidArgument(f"op is {op!r}; it must be Average or Sum")
    return Op.AVERAGE if op == Average else Op.SUM


def _name(scope: str, kind: str, tensor: Any, name: str | None = None) -> str | None:
    _client.current()
    if name is None:
        if tf.executing_eagerly():
            return f"byteps.{scope}{kind}" if scope else None
        name = f"{kind}_{getattr(tensor, 'name', 'tensor')}"
    unique = _ops.unique_name(kind, tensor, f"{scope}{name}")
    return f"byteps.{unique}"


@operation
def push_pull(
    tensor: Any,
    scope: str = "",
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Any = None,
    enable_async: bool = False,
    name: str | None = None,
) -> Any:
    """Returns the average, or the sum, of `tensor` over all ranks; differentiable.

    Calls are matched by `scope` and `name`. In a graph a call without a name takes the tensor's.
    Eager calls with neither are matched by their order. For tf.IndexedSlices the result has the
    rows of all ranks.
    """
    if enable_async:
        raise Unsupported(
            "push_pull(enable_async=True) is not offered by Talweg: every round is a sum over all "
            "ranks; leave it out"
        )
    _asynchrony.warn_of_rounds()
    wanted = op_of(op, average)
    if isinstance(tensor, tf.IndexedSlices):
        with tf.device(device_sparse):
            own = _name(scope, "BytePSPushPull", tensor.indices, name)
            return reduce_slices(tensor, own, wanted, None, compression)
    own = _name(scope, "BytePSPushPull", tensor, name)
    with tf.device(device_dense):
        given = _ops.as_tensor(tensor, "push_pull")
        pushed, context = compressed(given, compression, "push_pull")
        [reduced] = _ops.reduce_tensors([pushed], [own], Reduction(wanted))
        return compression.decompress(reduced, context)


@operation
def broadcast(
    tensor: Any, root_rank: int, scope: str = "", name: str | None = None, is_variable: bool = True
) -> Any:
    """Returns the root's tensor on every rank; differentiable."""
    names = [_name(scope, "BytePSBroadcast", tensor, name)]
    [result] = _ops.broadcast_tensors([tensor], names, root_rank, None)
    return result


@operation
def broadcast_variables(variables: Iterable[Any], root_rank: int, scope: str = "") -> Any:
    """Makes every rank's variables the root's. In a graph it returns the operation that does so."""
    _client.current()
    return _variables.assign_from_root(
        variables, root_rank, None, f"byteps.{scope}broadcast_variables"
    )


@operation
def broadcast_global_variables(root_rank: int, scope: str = "") -> Any:
    """Returns the operation that makes the graph's global variables the root's.

    Raises RuntimeError in eager mode.
    """
    return broadcast_variables(_variables.global_variables(), root_rank, scope)


class BroadcastGlobalVariablesHook(_variables.BroadcastGlobalVariablesHook):
    """Makes all global variables the root's when a session has been made or restored."""

    def __init__(self, root_rank: int, device: str = "", scope: str = "") -> None:
        super().__init__(root_rank, device)
        self.scope = scope
