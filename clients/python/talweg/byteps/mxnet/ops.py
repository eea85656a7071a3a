# SPDX-License-Identifier: Apache-2.0
"""push_pull of NDArrays by BytePS's signatures."""

from __future__ import annotations

import os
from typing import Any

import mxnet as mx

from talweg import _client
from talweg._client import Client
from talweg._compat.mxnet import rounds
from talweg._compat.mxnet.errors import internal
from talweg._compat.mxnet.rounds import AS_IT_IS, Reduction
from talweg._declaration import Op
from talweg._exchange.compressing import Compressing
from talweg.byteps import _asynchrony
from talweg.byteps._codecs import codec_of_declaration
from talweg.byteps.common import surface
from talweg.byteps.common.surface import *  # noqa: F403
from talweg.byteps.mxnet._compressed import takes, travel_of
from talweg.errors import InvalidArgument

__all__ = [
    "byteps_declare_tensor",
    "byteps_push_pull",
]
__all__ += surface.__all__


def byteps_push_pull(
    tensor: mx.nd.NDArray,
    version: int = 0,
    priority: int = 0,
    name: str | None = None,
    is_average: bool = True,
) -> None:
    """Makes `tensor` its average, or its sum, over all ranks. Returns at once.

    Code that reads the tensor waits for the result. It raises MXNetError if ranks disagree on the
    tensor. Calls without a name are matched by their order. `version` has no effect. Averages of
    integers are rounded towards zero.
    """
    if not isinstance(version, int) or isinstance(version, bool):
        raise InvalidArgument(f"version is {version!r}; it must be a number, which has no effect")
    _asynchrony.warn_of_rounds()
    reduction = Reduction(Op.AVERAGE if is_average else Op.SUM)
    wire_name = None if name is None else f"byteps.{name}"

    def start() -> None:
        rounds.check(tensor, "byteps_push_pull")
        compressing, travel = _compressing.get(wire_name or ""), AS_IT_IS
        if compressing is not None and wire_name is not None and takes(compressing, tensor):
            travel = travel_of(compressing, wire_name, tensor, None)
        rounds.start(tensor, reduction, wire_name, priority, "byteps_push_pull", travel=travel)

    internal(start)


# How tensors that were declared with keywords are compressed, by their names here.
_compressing: dict[str, Compressing] = {}


def _forget(_: Client) -> None:
    _compressing.clear()


_client.call_when_replaced(_forget)


def byteps_declare_tensor(name: str, **kwargs: Any) -> None:
    """Says how byteps_push_pull() compresses the tensor; without keywords it does nothing.

    `kwargs` are BytePS's: byteps_compressor_type, byteps_compressor_k and others (docs/byteps.md).
    All ranks give the same ones. Ranks agree on a tensor by name, at its first push_pull, in any
    order. Error feedback then does not follow a learning rate, which nobody has told.
    """
    internal(_client.current)  # Raises MXNetError before init(), as every call.
    if not isinstance(name, str):
        raise InvalidArgument(f"a tensor's name is a str, not {type(name).__name__}")
    codec = codec_of_declaration(kwargs, os.environ) if kwargs else None
    if codec is not None:
        _compressing[f"byteps.{name}"] = codec.compressing()
