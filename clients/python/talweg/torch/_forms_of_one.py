# SPDX-License-Identifier: Apache-2.0
"""The calls of a process group in the forms that take one tensor, as torch's own groups have them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d

from talweg.torch._process_group import ProcessGroup


def _options(kind: Any, timeout: timedelta | None, **named: Any) -> Any:
    """Options with these values; None: their own."""
    options = kind()
    for name, value in {**named, "timeout": timeout}.items():
        if value is not None:
            setattr(options, name, value)
    return options


class GroupWithForms(ProcessGroup):
    """A group whose calls may also be made with a tensor instead of a list of it. A root, an
    operation or a timeout stand then where the options do. allreduce() of any group may.
    """

    def broadcast(
        self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, root: int = 0
    ) -> Any:
        if isinstance(tensors, torch.Tensor):
            root = root if opts is None else opts
            tensors, opts = [tensors], _options(c10d.BroadcastOptions, timeout, rootRank=root)
        return super().broadcast(tensors, opts)

    def reduce(
        self,
        tensors: Any,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
        root: int = 0,
    ) -> Any:
        if isinstance(tensors, torch.Tensor):
            root = root if opts is None else opts
            opts = _options(c10d.ReduceOptions, timeout, rootRank=root, reduceOp=op)
            tensors = [tensors]
        return super().reduce(tensors, opts)

    def allgather(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Any:
        if isinstance(input_tensors, torch.Tensor):
            opts = _options(c10d.AllgatherOptions, timeout if opts is None else opts)
            output_tensors, input_tensors = [output_tensors], [input_tensors]
        return super().allgather(output_tensors, input_tensors, opts)

    def gather(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        root: int = 0,
    ) -> Any:
        if isinstance(input_tensors, torch.Tensor):
            root = root if opts is None else opts
            opts = _options(c10d.GatherOptions, timeout, rootRank=root)
            output_tensors, input_tensors = [output_tensors], [input_tensors]
        return super().gather(output_tensors, input_tensors, opts)

    def scatter(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        root: int = 0,
    ) -> Any:
        if isinstance(output_tensors, torch.Tensor):
            root = root if opts is None else opts
            opts = _options(c10d.ScatterOptions, timeout, rootRank=root)
            output_tensors, input_tensors = [output_tensors], [input_tensors]
        return super().scatter(output_tensors, input_tensors, opts)

    def reduce_scatter(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        op: Any = None,
    ) -> Any:
        if isinstance(output_tensors, torch.Tensor):
            op = op if opts is None else opts
            opts = _options(c10d.ReduceScatterOptions, timeout, reduceOp=op)
            output_tensors, input_tensors = [output_tensors], [input_tensors]
        return super().reduce_scatter(output_tensors, input_tensors, opts)

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Any:
        if isinstance(opts, timedelta) or timeout is not None:
            opts = _options(c10d.BarrierOptions, opts if timeout is None else timeout)
        return super().barrier(opts)
