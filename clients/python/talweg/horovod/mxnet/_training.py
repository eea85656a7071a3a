# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer and DistributedTrainer with Horovod's signatures."""

from __future__ import annotations

from typing import Any

import mxnet as mx

from talweg._arguments import factor_of
from talweg._collectives.scaling import Factors
from talweg._compat.mxnet import kvstore
from talweg._compat.mxnet.compression import Compression
from talweg._compat.mxnet.errors import internal
from talweg._compat.mxnet.rounds import Reduction
from talweg._compat.mxnet.training import GluonTrainer, Gradients, WrappedOptimizer, unwrapped
from talweg._declaration import Op
from talweg.errors import InvalidArgument
from talweg.horovod.common import basics
from talweg.horovod.common.process_sets import ProcessSet, global_process_set, members_of


def _check(gradient_predivide_factor: float, num_groups: int) -> None:
    """Checks the arguments. Groups have no effect: small gradients share frames anyway."""
    if not factor_of(gradient_predivide_factor, "gradient_predivide_factor") > 0:
        raise InvalidArgument(
            f"gradient_predivide_factor is {gradient_predivide_factor}; it must be larger than 0"
        )
    if isinstance(num_groups, bool) or not isinstance(num_groups, int) or num_groups < 0:
        raise ValueError(f"num_groups is {num_groups!r}; it must be a number of 0 or more")


def _size_of(process_set: ProcessSet) -> int:
    """Returns how many ranks' gradients are combined now; 1 for a rank outside the set."""
    return 1 if process_set.included() is False else process_set.size() or 1


class DistributedOptimizer(WrappedOptimizer):
    """An optimizer that averages each gradient over all ranks before it uses it.

    An update returns at once, and reading the weights waits for it. All other attributes are those
    of the given optimizer. A rank outside `process_set` updates with its own gradients.
    """

    def __init__(
        self,
        optimizer: mx.optimizer.Optimizer,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        basics.rank()
        _check(gradient_predivide_factor, num_groups)

        def reduction() -> Reduction | None:
            if _size_of(process_set) == 1:
                return None
            members = members_of(process_set, "DistributedOptimizer")
            factors = Factors(1.0 / gradient_predivide_factor, gradient_predivide_factor)
            return Reduction(Op.AVERAGE, factors, members)

        reduction()  # Raises now if it cannot be carried out.
        gradients = Gradients(reduction, lambda index: f"allreduce.{index}")
        super().__init__(optimizer, gradients, gradient_predivide_factor, num_groups, process_set)


class DistributedTrainer(GluonTrainer):
    """A gluon.Trainer that sums gradients over all ranks. step() divides them by their number.

    step() returns at once. The first parameters' gradients overtake others. Two trainers need
    different prefixes. A rank outside `process_set` trains alone.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        compression: Any = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        basics.rank()
        _check(gradient_predivide_factor, num_groups)
        if prefix is not None and not isinstance(prefix, str):
            raise ValueError(f"prefix is {prefix!r}; it must be a str")
        super().__init__(params, unwrapped(optimizer), optimizer_params)
        self._process_set = process_set
        self._predivide = gradient_predivide_factor

        def reduction() -> Reduction | None:
            size = _size_of(process_set)
            if size == 1:
                return None
            members = members_of(process_set, "DistributedTrainer")
            factors = Factors(1.0 / gradient_predivide_factor)
            # The update divides by the number of ranks that the job has in this step.
            return Reduction(Op.SUM, factors, members, counts_as=size)

        reduction()  # Raises now if it cannot be carried out.
        self._gradients = Gradients(
            reduction, lambda index: f"allreduce.{prefix or ''}{index}", compression
        )

    def _init_params(self) -> None:
        """Clears the list of new parameters: there is no KVStore that must know them."""
        self._params_to_init = []

    def _check_and_rescale_grad(self, scale: float) -> None:
        """Makes the update divide the gradients, which are sums, by the current number of ranks."""
        size = _size_of(self._process_set)
        super()._check_and_rescale_grad(scale if size == 1 else scale * self._predivide / size)

    def _allreduce_grads(self) -> None:
        internal(super()._allreduce_grads)


class Horovod(kvstore.TalwegStore):
    """The KVStore `horovod`."""

    compressing_trainer = "horovod.mxnet.DistributedTrainer(compression=hvd.Compression.fp16)"


kvstore.register(Horovod)
