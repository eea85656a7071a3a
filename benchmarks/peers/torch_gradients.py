# SPDX-License-Identifier: Apache-2.0
"""One rank that averages torch's gradients as ./bench orders (see control.h):

    torch_gradients.py optimizer    a DistributedOptimizer does, in step()
    torch_gradients.py hook         ddp_hook does, while a backward pass runs

Elements are f32. No pass computes gradients, and parameters stay as they are: a round changes one
element of each gradient, as a pass would change all, and then averages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import talweg.torch as tw
import torch
import torch.distributed as dist
from control import Control, Order
from torch.nn.parallel import DistributedDataParallel

# The rounds until a gradient lies where its tensor's buffer is.
_ROUNDS_TO_SETTLE = 3


class _Way(Protocol):
    """Averages gradients of given sizes."""

    def fill(self, value: float) -> None: ...

    def gradients(self) -> Sequence[torch.Tensor]: ...

    def average(self) -> None: ...


class _Keeping(torch.optim.Optimizer):
    """Leaves the parameters as they are."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:
        pass


class _ByOptimizer:
    """Averages in the step of a DistributedOptimizer."""

    def __init__(self, sizes: Sequence[int], name: str) -> None:
        # The kernel gives memory when it is written, and nobody writes parameters here.
        self._parameters = [torch.nn.Parameter(torch.empty(nbytes // 4)) for nbytes in sizes]
        named = [(str(index), each) for index, each in enumerate(self._parameters)]
        self._optimizer = tw.DistributedOptimizer(_Keeping(self._parameters), named, name=name)

    def fill(self, value: float) -> None:
        for parameter in self._parameters:
            parameter.grad = torch.full_like(parameter, value)

    def gradients(self) -> list[torch.Tensor]:
        return [parameter.grad for parameter in self._parameters if parameter.grad is not None]

    def average(self) -> None:
        self._optimizer.step()


class _Hooked(torch.autograd.Function):
    """Calls the hook for each bucket in its backward pass, which waits as that of
    DistributedDataParallel does: when the pass ends.
    """

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, way: _ByHook) -> torch.Tensor:
        ctx.way = way
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        futures = [tw.ddp_hook(ctx.way.name, bucket) for bucket in ctx.way.buckets]
        engine = torch.autograd.Variable._execution_engine
        engine.queue_callback(lambda: torch.futures.wait_all(futures))
        return gradient, None


class _ByHook:
    """Averages buckets that DistributedDataParallel has made, one for each size."""

    def __init__(self, sizes: Sequence[int], name: str) -> None:
        self.name = name
        self.buckets = [_bucket_of(nbytes) for nbytes in sizes]
        self._value = torch.zeros(1, requires_grad=True)

    def fill(self, value: float) -> None:
        for gradient in self.gradients():
            gradient.fill_(value)

    def gradients(self) -> list[torch.Tensor]:
        return [bucket.buffer() for bucket in self.buckets]

    def average(self) -> None:
        _Hooked.apply(self._value, self).backward()


class _One(torch.nn.Module):
    """A model of one parameter."""

    def __init__(self, nbytes: int) -> None:
        super().__init__()
        self.parameter = torch.nn.Parameter(torch.zeros(nbytes // 4))

    def forward(self) -> torch.Tensor:
        return self.parameter.sum()


def _bucket_of(nbytes: int) -> Any:
    """Returns the bucket of a model whose only gradient has so many bytes."""
    found: list[Any] = []

    def keep(bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        found.append(bucket)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model = DistributedDataParallel(_One(nbytes))
    # DistributedDataParallel accepts annotations only if they are no text.
    model.register_comm_hook(None, lambda _, bucket: keep(bucket))
    model().backward()
    return found[0]


def main(way: str) -> int:
    torch.set_num_threads(1)
    _Keeping([torch.nn.Parameter(torch.zeros(1))])  # The first optimizer imports much of torch.
    tw.init()
    rank, size = tw.rank(), tw.size()
    if way == "hook":  # The hook needs no group of all ranks.
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    ways: dict[str, Callable[[Sequence[int], str], _Way]]
    ways = {"optimizer": _ByOptimizer, "hook": _ByHook}
    make = ways[way]
    made: dict[tuple[int, ...], _Way] = {}  # By the gradients' bytes.
    now: list[_Way] = []

    def run_round() -> None:
        for gradient in now[-1].gradients():
            gradient[:1].mul_(1)
        now[-1].average()

    def prepare(order: Order) -> None:
        """Takes the gradients of these sizes, and checks the result of some rounds."""
        sizes = tuple(order.sizes)
        if sizes not in made:
            made[sizes] = make(sizes, f"bench.{len(made)}")
        now[:] = [made[sizes]]
        for _ in range(_ROUNDS_TO_SETTLE):
            now[-1].fill(rank + 1.0)
            run_round()
            for gradient in now[-1].gradients():
                # Comparing each element would make a tensor, whose memory the process keeps.
                least, most = gradient.aminmax()
                if not least == most == (size + 1) / 2:
                    raise ValueError("an average is wrong")

    Control(rank).serve(prepare, run_round)
    if way == "hook":
        dist.destroy_process_group()
    tw.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
