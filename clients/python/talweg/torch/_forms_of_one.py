# SPDX-License-Identifier: Apache-2.0
"""Adds what torch's own groups have beside the collectives: the forms of their calls that take one
tensor, and calls that make groups.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Backend as _InCpp
from torch.distributed import distributed_c10d as c10d

from talweg.errors import Unsupported
from talweg.torch._monitored_barrier import monitored_barrier
from talweg.torch._process_group import NAME, ProcessGroup


def _options(kind: Any, timeout: timedelta | None, **named: Any) -> Any:
    """Returns options with these values. A value of None leaves the default."""
    options = kind()
    for name, value in {**named, "timeout": timeout}.items():
        if value is not None:
            setattr(options, name, value)
    return options


class GroupWithForms(ProcessGroup):
    """A group whose calls take a tensor as well as a list of tensors. With a tensor, the root, the
    operation or the timeout stands where the options stand otherwise. allreduce() needs no such
    form here, because ProcessGroup has it.
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

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """What torch.distributed.monitored_barrier() calls from torch 2.14 on."""
        monitored_barrier(self, timeout, wait_all_ranks)

    @property
    def options(self) -> Any:
        """What the group was made with. It is this at Gloo's backend, too."""
        options = _InCpp.Options(NAME, self._timeout)
        options.group_name = self.group_name
        options.global_ranks_in_group = self._ranks
        return options

    # Torch's own code of these two wants a backend in C++, and crashes where there is none.

    def split_group(self, *args: Any, **kwargs: Any) -> Any:
        raise Unsupported(
            "split_group: a group of Talweg cannot be split: make the smaller group with "
            "torch.distributed.new_group(ranks)"
        )

    def merge_remote_group(self, *args: Any, **kwargs: Any) -> Any:
        raise Unsupported(
            "merge_remote_group: a group of Talweg takes no further ranks: call "
            "init_process_group() with all of them, and make groups with "
            "torch.distributed.new_group(ranks)"
        )
