# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer, DistributedTrainer and broadcast_parameters by BytePS's signatures."""

from __future__ import annotations

import inspect
import os
import weakref
from typing import Any

import mxnet as mx

from talweg import _client
from talweg._call_site import warn
from talweg._compat.mxnet import kvstore
from talweg._compat.mxnet.compression import Compression
from talweg._compat.mxnet.errors import internal
from talweg._compat.mxnet.parameters import broadcast_all
from talweg._compat.mxnet.rounds import Reduction
from talweg._compat.mxnet.training import GluonTrainer, Gradients, WrappedOptimizer, unwrapped
from talweg._declaration import Op
from talweg._elastic.membership import membership_of
from talweg.byteps import _asynchrony
from talweg.byteps._codecs import Codec, codec_of, switch
from talweg.byteps.mxnet._asynchronous import AsynchronousOptimizer
from talweg.byteps.mxnet._compressed import CompressedGradients

_AVERAGE = Reduction(Op.AVERAGE)


def _average() -> Reduction | None:
    return _AVERAGE if internal(_client.current).size > 1 else None


def _compressed_average() -> Reduction:
    """A job of one rank compresses as well, so a program learns there what it learns elsewhere."""
    internal(_client.current)
    return _AVERAGE


def _gradient_name(index: Any) -> str:
    return f"byteps.gradient_{index}"


class DistributedOptimizer(WrappedOptimizer):
    """An optimizer that averages each gradient over all ranks before it uses it.

    An update returns at once. Code that reads the weights waits. All else is done by the given
    optimizer. With BYTEPS_ENABLE_ASYNC=1 gradients stay as they are, and the ranks' steps are added up
    without any rank waiting for another: the constructor makes an AsynchronousOptimizer.
    """

    # What help() shows. It would show the arguments of __new__(), of which copies have none.
    __signature__ = inspect.Signature(
        [inspect.Parameter("optimizer", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    )

    def __new__(cls, *arguments: Any, **keywords: Any) -> Any:
        if not _asynchrony.is_asked_for():
            return super().__new__(cls)
        internal(_client.current)  # MXNetError before init().
        return AsynchronousOptimizer(*arguments, **keywords)

    def __init__(self, optimizer: mx.optimizer.Optimizer) -> None:
        internal(_client.current)  # MXNetError before init().
        super().__init__(optimizer, Gradients(_average, _gradient_name))


_broadcasts = 0


def broadcast_parameters(params: Any, root_rank: int = 0) -> None:
    """Makes every rank's arrays the root's. `params` is a dict of them. Returns when it is done.

    Raises TypeError for Gluon's parameters, which DistributedTrainer broadcasts, and ValueError for
    other types.
    """
    global _broadcasts
    if isinstance(params, mx.gluon.ParameterDict):
        raise TypeError(
            "For gluon users, you should not call this function. DistributedTrainer will broadcast "
            "all parameters at the first training step."
        )
    if not isinstance(params, dict):
        raise ValueError(f"invalid params of type {type(params).__name__}: pass a dict of arrays")
    tensors = []
    for _, tensor in sorted(params.items()):
        tensors.append((f"byteps.parameter_{_broadcasts}", tensor))
        _broadcasts += 1
    internal(lambda: broadcast_all(tensors, root_rank))
    for _, tensor in tensors:
        tensor.wait_to_read()


class DistributedTrainer(GluonTrainer):
    """A gluon.Trainer that averages gradients over all ranks.

    step() divides the gradients by the batch size, averages them over the ranks, and updates. It
    returns at once. The averages of the first parameters come first. The root's parameters go to
    all ranks at the first step. If ranks have begun at different times, the State carries them
    instead. `compression_params` asks for fp16, or for one of BytePS's codecs (docs/byteps.md).
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        root_rank: int = 0,
        compression_params: dict[str, Any] | None = None,
    ) -> None:
        internal(_client.current)  # MXNetError before init().
        if not isinstance(params, mx.gluon.ParameterDict):
            raise ValueError(
                f"invalid params of type {type(params).__name__}: pass net.collect_params()"
            )
        compression, codec, rest = _checked(compression_params, optimizer_params)
        optimizer, own = unwrapped(optimizer), rest
        if _asynchrony.is_asked_for():
            optimizer, own = self._asynchronous(optimizer, rest, compression_params), None
        super().__init__(params, optimizer, own)
        self.root_rank = root_rank
        self._batch_size = 1
        if isinstance(optimizer, AsynchronousOptimizer):
            self._gradients = Gradients(lambda: None, _gradient_name)
        elif codec is None:
            self._gradients = Gradients(_average, _gradient_name, compression)
        else:
            trainer = weakref.proxy(self)  # It holds the gradients, which must not hold it.
            self._gradients = CompressedGradients(
                _compressed_average,
                _gradient_name,
                compression,
                codec,
                lambda: float(trainer.learning_rate),
                self._params,
            )

    @staticmethod
    def _asynchronous(
        optimizer: Any, parameters: dict[str, Any] | None, compression_params: Any
    ) -> AsynchronousOptimizer:
        internal(lambda: _asynchrony.refuse_compression(compression_params or None, None))
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            optimizer = mx.optimizer.create(optimizer, **(parameters or {}))
        elif parameters:
            raise ValueError(
                "optimizer_params must be None if optimizer is an Optimizer, not a name"
            )
        return AsynchronousOptimizer(optimizer)

    def flush(self) -> None:
        """Makes the weights equal at all ranks after asynchronous steps. Else does nothing."""
        if isinstance(self._optimizer, AsynchronousOptimizer):
            self._optimizer.flush()

    def load_states(self, fname: str) -> None:
        """Loads the optimizer and its state from a file of save_states()."""
        before: Any = self._optimizer
        super().load_states(fname)
        if isinstance(before, AsynchronousOptimizer):
            before.take(self._optimizer)
            self._optimizer = before
            for updater in self._updaters:
                updater.optimizer = before

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Divides gradients by `batch_size`, averages them over all ranks, and updates."""
        scale, self._batch_size = self._scale, batch_size
        self._scale = scale * batch_size  # The gradients are already divided by the batch size.
        try:
            internal(lambda: super(DistributedTrainer, self).step(batch_size, ignore_stale_grad))
        finally:
            self._scale, self._batch_size = scale, 1

    def _allreduce_grads(self) -> None:
        if self._batch_size != 1:
            for param in self._params:
                if param.grad_req != "null":
                    gradient = param.list_grad()[0]
                    gradient *= 1.0 / self._batch_size
        super()._allreduce_grads()

    def _init_params(self) -> None:
        deferred = [param for param in self._params_to_init if param._deferred_init]
        there = [param for param in self._params_to_init if not param._deferred_init]
        tensors = [
            (f"byteps.trainer.parameter_{self._param2idx[param.name]}", param.list_data()[0])
            for param in there
        ]
        if not membership_of(_client.current()).began_apart:
            broadcast_all(tensors, self.root_rank)
        self._params_to_init = deferred


def _checked(
    compression_params: dict[str, Any] | None, optimizer_params: dict[str, Any] | None
) -> tuple[Any, Codec | None, dict[str, Any] | None]:
    """Returns the cast that `compression_params` asks for, the codec, and the parameters that are
    left to the optimizer.
    """
    if compression_params is None or compression_params == {}:
        return Compression.none, None, optimizer_params
    rest = dict(optimizer_params or {})
    codec = codec_of(compression_params, rest, os.environ)
    if "compressor" not in compression_params:
        warn("compression_params names no compressor")
    cast = Compression.fp16 if switch(compression_params, "fp16") else Compression.none
    return cast, codec, rest if optimizer_params is not None else None


class BytePS(kvstore.TalwegStore):
    """The KVStore with the name `byteps`."""

    compressing_trainer = "byteps.mxnet.DistributedTrainer(compression_params=...)"

    def __init__(self) -> None:
        internal(lambda: _asynchrony.refuse("the KVStore 'byteps'"))
        super().__init__()


kvstore.register(BytePS)
