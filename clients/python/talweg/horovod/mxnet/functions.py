# SPDX-License-Identifier: Apache-2.0
"""Broadcasts of parameters and objects with Horovod's signatures."""

from __future__ import annotations

from typing import Any

import mxnet as mx
from mxnet.gluon import ParameterDict

import talweg
from talweg import _client
from talweg._collectives.process_sets import Group
from talweg._compat.mxnet.errors import internal
from talweg._compat.mxnet.parameters import broadcast_all, data_of
from talweg.horovod.common import basics

__all__ = ["allgather_object", "broadcast_object", "broadcast_parameters"]


def broadcast_parameters(params: Any, root_rank: int = 0, prefix: str | None = None) -> None:
    """Makes every rank's parameters equal to the root's. Returns at once.

    `params` is a dict or a ParameterDict. Parameters whose shapes are not known yet follow when
    they are initialized; every rank must do that in the same order. Two calls with parameters of
    the same names need different prefixes. Raises ValueError for other `params`.
    """
    if not isinstance(params, (dict, ParameterDict)):
        raise ValueError(
            f"invalid params of type: {type(params)}: pass a dict, or net.collect_params()"
        )
    if prefix is not None and not isinstance(prefix, str):
        raise ValueError(f"prefix is {prefix!r}; it must be a str")
    client = internal(_client.current)
    Group(client, None, "broadcast_parameters").require_root(root_rank, "broadcast_parameters")
    if client.size == 1:
        return
    tensors = []
    for name, value in sorted(params.items()):
        own = f"broadcast.{prefix or ''}{name}"

        def when_there(tensor: mx.nd.NDArray, own: str = own) -> None:
            internal(lambda: broadcast_all([(own, tensor)], root_rank))

        tensor = data_of(value, when_there)
        if tensor is not None:
            tensors.append((own, tensor))
    internal(lambda: broadcast_all(tensors, root_rank))


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Returns the root's object at every rank. Uses pickle: only for ranks you trust."""
    basics.rank()
    return internal(lambda: talweg.broadcast_object(obj, root_rank, name))


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Returns all ranks' objects, by rank. Uses pickle: only for ranks you trust."""
    basics.rank()
    return internal(lambda: talweg.all_gather_object(obj, name))
