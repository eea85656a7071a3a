# SPDX-License-Identifier: Apache-2.0
"""KVStores over Talweg: `mx.kv.create("byteps")`, `gluon.Trainer(..., kvstore="byteps")`.

Horovod's store works alike, under its own name. Given one device and a name without "dist", MXNet
makes no store and trains each rank alone. So register() changes the functions of MXNet that make
stores, and they make these too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import mxnet as mx
from mxnet.kvstore import KVStoreBase

from talweg import _client
from talweg._compat.mxnet import rounds
from talweg._compat.mxnet.errors import internal
from talweg._compat.mxnet.rounds import Reduction
from talweg._declaration import Op
from talweg._elastic.membership import membership_of
from talweg.errors import InvalidArgument, Unsupported

_names: set[str] = set()


class TalwegStore(KVStoreBase):
    """A store that sums over all ranks. Each rank has its own, and updates its own weights."""

    # What a trainer uses instead of the store to compress gradients.
    compressing_trainer: str

    def __init__(self) -> None:
        internal(_client.current)  # Raises MXNetError before init().

    @staticmethod
    def is_capable(capability: str) -> bool:
        if capability.lower() != KVStoreBase.OPTIMIZER:
            raise ValueError(f"Unknown capability: {capability}")
        return False

    @property
    def type(self) -> str:
        return type(self).__name__.lower()

    @property
    def rank(self) -> int:
        return internal(_client.current).rank

    @property
    def local_rank(self) -> int:
        return internal(_client.current).local_rank

    @property
    def num_workers(self) -> int:
        return internal(_client.current).size

    def _name(self, key: Any) -> str:
        return f"{self.type}.kv.{key}"

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Copies rank 0's `value` into `out`, an array or a list of arrays, at every rank.

        If ranks have begun at different times, each copies its own `value`. The earlier ranks do
        not call this again, and the State gives the later ones their values.
        """
        value = value[0] if isinstance(value, (list, tuple)) else value
        outs = list(out) if isinstance(out, (list, tuple)) else [out]
        if membership_of(internal(_client.current)).began_apart:
            _copy(value, outs)
            return
        _copy(value, outs[:1])
        reduction = Reduction(Op.BROADCAST)
        internal(
            lambda: rounds.start(
                outs[0], reduction, f"{self._name(key)}.broadcast", priority, "broadcast"
            )
        )
        _copy(outs[0], outs[1:])

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Puts the sum of all ranks' `value` into `out`, or into `value` if `out` is None.

        `value` and `out` are an array, or a list with one array for each device. If `key` is a
        list, they are lists too, with an entry for each key.
        """
        if isinstance(key, (list, tuple)):
            for place, each in enumerate(key):
                self.pushpull(each, value[place], None if out is None else out[place], priority)
            return
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        outs = values if out is None else list(out) if isinstance(out, (list, tuple)) else [out]
        total = values[0]
        for other in values[1:]:
            total = total + other.as_in_context(total.context)
        _copy(total, outs[:1])
        # Such an array is a gradient, and those are in MXNet's default layout.
        is_gradient = outs[0] is values[0]
        internal(
            lambda: rounds.start(
                outs[0], Reduction(Op.SUM), self._name(key), priority, "pushpull", is_gradient
            )
        )
        _copy(outs[0], outs[1:])

    def init(self, key: Any, value: Any) -> None:
        """Does nothing: the ranks agree on a tensor at its first pushpull()."""

    def set_optimizer(self, optimizer: Any) -> None:
        raise Unsupported(
            f"the store '{self.type}' updates no weights: leave update_on_kvstore out, or set it to "
            "False"
        )

    def set_gradient_compression(self, compression_params: Any) -> None:
        raise Unsupported(
            f"the store '{self.type}' does not compress (compression_params={compression_params!r}): "
            f"leave them out, or use {self.compressing_trainer} without a store"
        )

    def _refuse_sparse(self) -> None:
        raise Unsupported(
            f"the store '{self.type}' takes no sparse arrays: build layers with sparse_grad=False"
        )

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        self._refuse_sparse()

    def pull(
        self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True
    ) -> None:
        self._refuse_sparse()

    def row_sparse_pull(
        self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None
    ) -> None:
        self._refuse_sparse()

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        raise InvalidArgument(
            f"the store '{self.type}' has no optimizer: save the trainer's states"
        )

    def load_optimizer_states(self, fname: str) -> None:
        raise InvalidArgument(
            f"the store '{self.type}' has no optimizer: load the trainer's states"
        )


def _copy(source: mx.nd.NDArray, targets: list[mx.nd.NDArray]) -> None:
    for target in targets:
        if target is not source:
            source.copyto(target)


def _knowing(create: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create)
    def create_kvstore(kvstore: Any, *arguments: Any, **keywords: Any) -> Any:
        if isinstance(kvstore, str) and kvstore.lower() in _names:
            kvstore = mx.kv.create(kvstore)
        return create(kvstore, *arguments, **keywords)

    return create_kvstore


def register(store: type[TalwegStore]) -> None:
    """Makes MXNet know `store` under its class's name in lower case. May be called again."""
    name = store.__name__.lower()
    if KVStoreBase.kv_registry.get(name) is store:
        return
    if not _names:
        for module in (mx.model, mx.gluon.trainer, mx.module.module):
            for function in ("_create_kvstore", "_create_sparse_kvstore"):
                if hasattr(module, function):
                    setattr(module, function, _knowing(getattr(module, function)))
    KVStoreBase.register(store)
    _names.add(name)
