# SPDX-License-Identifier: Apache-2.0
"""One rank whose optimizer averages torch's gradients as ./bench orders (see control.h).

Elements are f32. There is no backward pass, and parameters stay as they are: a round changes one
element of each gradient, as a pass would change all, and step() averages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import talweg.torch as tw
import torch
from control import Control, Order

# The rounds until a gradient lies where its tensor's buffer is.
_ROUNDS_TO_SETTLE = 3


class Keeping(torch.optim.Optimizer):
    """Leaves the parameters as they are."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:
        pass


def main() -> int:
    torch.set_num_threads(1)
    Keeping([torch.nn.Parameter(torch.zeros(1))])  # The first optimizer imports much of torch.
    tw.init()
    rank, size = tw.rank(), tw.size()
    optimizers: dict[tuple[int, ...], torch.optim.Optimizer] = {}  # By the gradients' bytes.
    parameters: list[torch.nn.Parameter] = []
    steps: list[Callable[[], object]] = []  # The one that counts now.

    def run_round() -> None:
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad[:1].mul_(1)
        steps[-1]()

    def prepare(order: Order) -> None:
        """Takes the optimizer of these sizes, and checks the result of some rounds."""
        sizes = tuple(order.sizes)
        if sizes not in optimizers:
            # The kernel gives memory when it is written, and nobody writes parameters here.
            made = [torch.nn.Parameter(torch.empty(nbytes // 4)) for nbytes in sizes]
            named = [(str(index), each) for index, each in enumerate(made)]
            name = f"bench.{len(optimizers)}"
            optimizers[sizes] = tw.DistributedOptimizer(Keeping(made), named, name=name)
        parameters[:] = optimizers[sizes].param_groups[0]["params"]
        steps[:] = [optimizers[sizes].step]
        for _ in range(_ROUNDS_TO_SETTLE):
            for parameter in parameters:
                parameter.grad = torch.full_like(parameter, rank + 1.0)
            run_round()
            for parameter in parameters:
                assert parameter.grad is not None
                # Comparing each element would make a tensor, whose memory the process keeps.
                least, most = parameter.grad.aminmax()
                if not least == most == (size + 1) / 2:
                    raise ValueError("an average is wrong")

    Control(rank).serve(prepare, run_round)
    tw.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
