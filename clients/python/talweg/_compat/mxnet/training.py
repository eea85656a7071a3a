# SPDX-License-Identifier: Apache-2.0
"""The common part of the other systems' optimizers and trainers for MXNet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mxnet as mx

from talweg import _client
from talweg._arguments import require_compressor
from talweg._call_site import warn
from talweg._client import Client
from talweg._compat.mxnet import rounds
from talweg._compat.mxnet.compression import NoneCompressor
from talweg._compat.mxnet.rounds import AS_IT_IS, Reduction, Travel
from talweg.errors import InvalidArgument


class Gradients:
    """Combines the gradients of one optimizer or trainer.

    `reduction` is called in each step, because ranks may come and go. If it returns None, the
    gradients stay this rank's own.
    """

    def __init__(
        self,
        reduction: Callable[[], Reduction | None],
        name_of: Callable[[Any], str],
        compression: Any = NoneCompressor,
    ) -> None:
        require_compressor(compression, "DistributedTrainer")
        self._reduction = reduction
        self._name_of = name_of
        self._compression = compression
        self._declared: set[Any] = set()  # Indices that the current client's ranks have agreed on.
        _client.call_when_replaced(self._begin_anew)

    def _begin_anew(self, _: Client) -> None:
        self._declared.clear()

    def combine(self, indices: Sequence[Any], gradients: Sequence[mx.nd.NDArray]) -> None:
        """Starts the gradients' rounds. Reading a gradient waits for its round.

        `indices` hold the parameters' numbers or names. Lower numbers have higher priority.
        """
        reduction = self._reduction()
        if reduction is None:
            return
        new = [place for place, index in enumerate(indices) if index not in self._declared]
        travels = [self._travel_of(*pair) for pair in zip(indices, gradients)]
        pushed = [
            (gradient, None) if travel.prepare else self._compression.compress(gradient)
            for gradient, travel in zip(gradients, travels)
        ]
        if new:
            rounds.declare_all(
                [
                    (
                        self._name_of(indices[i]),
                        pushed[i][0],
                        self._priority(indices[i]),
                        travels[i].encoding,
                    )
                    for i in new
                ],
                reduction,
                "gradients",
            )
            self._declared.update(indices[place] for place in new)
        for index, gradient, (tensor, context), travel in zip(indices, gradients, pushed, travels):
            rounds.start(
                tensor,
                reduction,
                self._name_of(index),
                self._priority(index),
                "gradients",
                is_fresh=True,
                travel=travel,
            )
            if tensor is not gradient:
                gradient[:] = self._compression.decompress(tensor, context)

    def _travel_of(self, index: Any, gradient: mx.nd.NDArray) -> Travel:
        return AS_IT_IS

    def _priority(self, index: Any) -> int:
        return -index if isinstance(index, int) else 0


class WrappedOptimizer(mx.optimizer.Optimizer):
    """An optimizer that combines each gradient over the ranks before it uses it.

    All other attributes are those of the wrapped optimizer.
    """

    _OWN = frozenset({"_optimizer", "_gradients", "_arguments"})

    def __init__(
        self, optimizer: mx.optimizer.Optimizer, gradients: Gradients, *arguments: Any
    ) -> None:
        """`arguments` are what the subclass's constructor takes after `optimizer`."""
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise InvalidArgument(
                f"DistributedOptimizer: expected an mxnet.optimizer.Optimizer, got "
                f"{type(optimizer).__name__}: make one with mxnet.optimizer.create(name)"
            )
        self._optimizer = optimizer
        self._gradients = gradients
        self._arguments = arguments

    def __getattr__(self, name: str) -> Any:
        if name in self._OWN:  # While the object is unpickled, it has none of them yet.
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._optimizer, name, value)

    def __reduce__(self) -> Any:
        """Pickles the optimizer so that a loaded one combines gradients as well."""
        return type(self), (self._optimizer, *self._arguments)

    def create_state(self, index: int, weight: mx.nd.NDArray) -> Any:
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: int, weight: mx.nd.NDArray) -> Any:
        return self._optimizer.create_state_multi_precision(index, weight)

    def _combine(self, index: Any, grad: Any) -> None:
        if isinstance(index, (tuple, list)):
            self._gradients.combine(index, grad)
        else:
            self._gradients.combine([index], [grad])

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        self._combine(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        self._combine(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: dict[Any, float]) -> None:
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: dict[Any, float]) -> None:
        self._optimizer.set_wd_mult(args_wd_mult)


class GluonTrainer(mx.gluon.Trainer):
    """A Trainer that combines gradients over the ranks and updates the weights at this rank."""

    _gradients: Gradients
    _optimizer: mx.optimizer.Optimizer
    _updaters: list[Any]
    _params: list[mx.gluon.Parameter]
    _params_to_init: list[mx.gluon.Parameter]
    _scale: float  # Gradients are multiplied by this and by 1 / batch_size.

    def __init__(self, params: Any, optimizer: Any, optimizer_params: Any) -> None:
        super().__init__(params, optimizer, optimizer_params=optimizer_params, kvstore=None)
        if len(self._contexts) > 1:
            raise InvalidArgument(
                f"the parameters lie on {len(self._contexts)} devices, but a rank has one: start a "
                "rank for each device"
            )

    def _allreduce_grads(self) -> None:
        used = [i for i, param in enumerate(self._params) if param.grad_req != "null"]
        self._gradients.combine(used, [self._params[i].list_grad()[0] for i in used])


def unwrapped(optimizer: Any) -> Any:
    """Returns the optimizer that a DistributedOptimizer wraps, and warns; others as they are."""
    if not isinstance(optimizer, WrappedOptimizer):
        return optimizer
    warn(
        "DistributedTrainer does not take DistributedOptimizer as its optimizer; it has been "
        "unwrapped"
    )
    return optimizer._optimizer
