# SPDX-License-Identifier: Apache-2.0
"""Broadcasts a model's parameters, also those whose shapes are not known yet."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import mxnet as mx
from mxnet.gluon.parameter import DeferredInitializationError, Parameter

from talweg import _client
from talweg._collectives.process_sets import Group
from talweg._compat.mxnet import rounds
from talweg._compat.mxnet.rounds import Reduction
from talweg._declaration import Encoding, Op


def broadcast_all(tensors: list[tuple[str, mx.nd.NDArray]], root_rank: int) -> None:
    """Makes the (name, tensor) of every rank equal to the root's. All are agreed on together."""
    client, operation = _client.current(), "broadcast_parameters"
    Group(client, None, operation).require_root(root_rank, operation)
    if not tensors or client.size == 1:
        return
    reduction = Reduction(Op.BROADCAST, root_rank=root_rank)
    declared = [(name, tensor, 0, Encoding.PLAIN) for name, tensor in tensors]
    rounds.declare_all(declared, reduction, operation)
    for name, tensor in tensors:
        rounds.start(tensor, reduction, name, 0, operation)


def data_of(value: Any, when_there: Callable[[mx.nd.NDArray], None]) -> mx.nd.NDArray | None:
    """Returns a parameter's array, or an array itself; None if it is not initialized yet.

    In that case `when_there` is called with the array as soon as it is initialized.
    """
    if not isinstance(value, Parameter):
        return value
    try:
        return value.data()
    except DeferredInitializationError:
        initialize = value._init_impl

        def and_then(parameter: Parameter, *arguments: Any, **keywords: Any) -> None:
            initialize(*arguments, **keywords)
            parameter._init_impl = initialize
            when_there(parameter.data())

        value._init_impl = types.MethodType(and_then, value)
        return None
