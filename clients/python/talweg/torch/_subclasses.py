# SPDX-License-Identifier: Apache-2.0
"""Calls of tensors whose class says what a call does with the tensors that it wraps.

Such a tensor has no memory of its own. Its class gets each operator of torch with the tensor, the
operators of torch.distributed too, and calls the operator with the tensors inside. torch's own
ProcessGroup calls the operators. Their kernels want a backend in C++, so a mode of the dispatcher
hands what comes out of the class to the group in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from talweg.torch._checks import TAKEN_OUT_BY, has_memory
from talweg.torch._devices import GroupOfDevices


def unwraps_itself(tensor: Any) -> bool:
    """Whether the tensor's class gets the operators of torch.distributed. A tensor that has a
    method for what it wraps, as DTensor has, is none: torch knows no such operators for it.
    """
    kind = type(tensor)
    if kind is torch.Tensor or not isinstance(tensor, torch.Tensor):
        return False
    if kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__ or has_memory(tensor):
        return False
    return not any(hasattr(tensor, method) for method in TAKEN_OUT_BY)


class _OfSeveral(dist.Work):
    """The calls of the tensors inside, as one call."""

    def __init__(self, works: Sequence[dist.Work], outputs: list[torch.Tensor]) -> None:
        super().__init__()
        self._works, self._outputs = works, outputs

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> Any:
        return next(filter(None, (work.exception() for work in self._works)), None)

    def result(self) -> list[torch.Tensor]:
        return self._outputs

    def get_future(self) -> torch.futures.Future[Any]:
        futures = torch.futures.collect_all([work.get_future() for work in self._works])

        def outputs(all_of_them: Any) -> list[torch.Tensor]:
            for each in all_of_them.value():
                each.value()  # Raises what has failed.
            return self._outputs

        return futures.then(outputs)


class _TensorsInside(TorchDispatchMode):
    """Hands the operators that a class calls with the tensors inside to a method of the group."""

    def __init__(self, method: Callable[..., Any], rest: Sequence[Any]) -> None:
        super().__init__()
        self._method, self._rest = method, rest
        self.works: list[dist.Work] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types:
            return NotImplemented  # The class has its turn first.
        if func.namespace != "c10d":
            return func(*args, **(kwargs or {}))
        names = [argument.name for argument in func._schema.arguments]
        tensors = args[: names.index("process_group")]
        work = self._method(*tensors, *self._rest)
        self.works.append(work)
        return work.boxed() if len(func._schema.returns) == 1 else (tensors[0], work.boxed())


def _calls(name: str, tensors: int) -> Callable[..., Any]:
    """Returns the method `name` of GroupOfSubclasses, which begins with so many arguments of
    tensors.
    """

    def call(self: GroupOfSubclasses, *args: Any) -> Any:
        in_torch = getattr(super(GroupOfSubclasses, self), name)
        if not any(map(unwraps_itself, tree_leaves(args[:tensors]))):
            return in_torch(*args)
        with _TensorsInside(getattr(self, name), args[tensors:]) as mode:
            in_torch(*args)
        outputs = [each for each in tree_leaves(args[0]) if isinstance(each, torch.Tensor)]
        return _OfSeveral(mode.works, outputs)

    # torch takes the call for torch's own, and not for one to be overridden, by this name.
    call.__code__ = call.__code__.replace(co_name=name)
    return call


class GroupOfSubclasses(GroupOfDevices):
    """torch's own calls. A class of tensors that wraps others gets their operators."""

    broadcast = _calls("broadcast", 1)
    allreduce = _calls("allreduce", 1)
    allreduce_coalesced = _calls("allreduce_coalesced", 1)
    reduce = _calls("reduce", 1)
    gather = _calls("gather", 2)
    gather_single = _calls("gather_single", 2)
    scatter = _calls("scatter", 2)
    allgather = _calls("allgather", 2)
    allgather_coalesced = _calls("allgather_coalesced", 2)
    all_gather_single = _calls("all_gather_single", 2)
    all_gather_single_coalesced = _calls("all_gather_single_coalesced", 2)
    reduce_scatter = _calls("reduce_scatter", 2)
    reduce_scatter_single = _calls("reduce_scatter_single", 2)
    reduce_scatter_single_coalesced = _calls("reduce_scatter_single_coalesced", 2)
    alltoall = _calls("alltoall", 2)
    all_to_all_single = _calls("all_to_all_single", 2)
    send = _calls("send", 1)
    recv = _calls("recv", 1)
    recv_anysource = _calls("recv_anysource", 1)
