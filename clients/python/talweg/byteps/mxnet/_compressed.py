# SPDX-License-Identifier: Apache-2.0
"""Gradients of a trainer that are compressed as BytePS's codecs do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mxnet as mx

from talweg import _client
from talweg._client import Client
from talweg._compat.mxnet.rounds import AS_IT_IS, Reduction, Travel
from talweg._compat.mxnet.training import Gradients
from talweg._declaration import DType, numpy_dtype
from talweg._elastic.membership import membership_of
from talweg._exchange.compressing import Compressing, Stand
from talweg.byteps._codecs import Codec


def takes(compressing: Compressing, tensor: mx.nd.NDArray) -> bool:
    """Whether arrays of that dtype and size are compressed."""
    dtype = numpy_dtype(tensor.dtype)
    return dtype is DType.F32 and compressing.takes(dtype, 4 * tensor.size)


def travel_of(
    compressing: Compressing, name: str, tensor: mx.nd.NDArray, rate: float | None
) -> Travel:
    """Returns how an array travels that is compressed."""
    client = _client.current()
    stand = Stand(client.rank, membership_of(client).view.epoch)
    compress = partial(compressing.compress, name, count=tensor.size, stand=stand, rate=rate)
    return Travel(compressing.encoding, compress)


class CompressedGradients(Gradients):
    """Gradients of which each large one is compressed when it is complete, before it leaves.

    If the codec has momentum, large gradients get it before they are compressed, and small ones
    after their round. Onebit's weight decay is added after the round. All this runs in MXNet's
    engine.
    """

    def __init__(
        self,
        reduction: Callable[[], Reduction | None],
        name_of: Callable[[Any], str],
        compression: Any,
        codec: Codec,
        rate: Callable[[], float],
        parameters: Sequence[mx.gluon.Parameter],
    ) -> None:
        super().__init__(reduction, name_of, compression)
        self._codec = codec
        self._compressing = codec.compressing()
        self._rate = rate
        self._parameters = parameters
        self._momentum: dict[int, mx.nd.NDArray] = {}
        self._decay_momentum: dict[int, mx.nd.NDArray] = {}

    def _begin_anew(self, client: Client) -> None:
        super()._begin_anew(client)
        self._compressing.begin_anew()

    def combine(self, indices: Sequence[Any], gradients: Sequence[mx.nd.NDArray]) -> None:
        super().combine(indices, gradients)
        with mx.autograd.pause():
            for index, gradient in zip(indices, gradients):
                self._finish(index, gradient)

    def _travel_of(self, index: Any, gradient: mx.nd.NDArray) -> Travel:
        if not takes(self._compressing, gradient):
            return AS_IT_IS
        rate = self._rate() if self._codec.follows_rate else None
        return travel_of(self._compressing, self._name_of(index), gradient, rate)

    def _finish(self, index: int, gradient: mx.nd.NDArray) -> None:
        """Adds what is added to averages: with v an average and x its weight, m and n momenta,

        small: v += wd x,  m = mu (m + v),  v += m
        large: n = mu (n + wd x),  v += n + wd x
        """
        mu = self._codec.mu
        if mu is None:
            return
        is_large = takes(self._compressing, gradient)
        parameter = self._parameters[index]
        decay = None
        if self._codec.wd:
            factor = self._codec.wd * parameter.wd_mult
            decay = parameter.list_data()[0].astype(gradient.dtype) * factor
        if is_large and decay is not None:
            moved = _momentum_of(self._decay_momentum, index, gradient)
            moved += decay
            moved *= mu
            gradient += moved
        if decay is not None:
            gradient += decay
        if not is_large:
            moved = _momentum_of(self._momentum, index, gradient)
            moved += gradient
            moved *= mu
            gradient += moved


def _momentum_of(
    momenta: dict[int, mx.nd.NDArray], index: int, like: mx.nd.NDArray
) -> mx.nd.NDArray:
    found = momenta.get(index)
    if found is None:
        found = momenta[index] = mx.nd.zeros(like.shape, ctx=like.context, dtype=like.dtype)
    return found
