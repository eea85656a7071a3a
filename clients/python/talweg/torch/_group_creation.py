# SPDX-License-Identifier: Apache-2.0
"""Makes groups for torch.distributed, with the backends that stand beside Talweg."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import talweg
from talweg import _at_exit, _client
from talweg._node.launchers import World
from talweg.errors import InvalidArgument, Unsupported
from talweg.torch._c10d_tensors import DEVICES
from talweg.torch._process_group import NAME, ProcessGroup

# Jobs that this process has joined by a store of torch's.
_stores = itertools.count()
# The group of all ranks that was made last: torch numbers groups anew after each.
_world = ""


def _devices(default: str) -> dict[str, str]:
    """The backend of each device in the call that makes a group.

    torch tells a Python group nothing of the backends beside it, and makes none of them: it is read
    where torch has it.
    """
    frame = inspect.currentframe()
    while frame is not None:
        config = frame.f_locals.get("backend_config")
        if isinstance(config, c10d.BackendConfig):
            return {device: str(name) for device, name in config.device_backend_map.items()}
        frame = frame.f_back
    return {"cpu": default}


def _add_backends(group: ProcessGroup, options: Any) -> None:
    """Makes the backends that were named for other devices."""
    kinds = dist.ProcessGroup.BackendType
    for device, name in _devices(NAME).items():
        if name == NAME:
            if device not in DEVICES:
                raise Unsupported(
                    f'"{device}:talweg": the backend takes tensors in host memory and on GPUs of '
                    f"CUDA only: name another backend for {device}"
                )
            continue
        store = dist.PrefixStore(f"{device}/", options.store)
        rank, size = options.group_rank, options.group_size
        if name == "nccl" and dist.is_nccl_available():
            chosen = dist.ProcessGroupNCCL.Options()
            chosen._timeout = options.timeout
            chosen.global_ranks_in_group = options.global_ranks_in_group
            chosen.group_name = options.group_id
            backend = dist.ProcessGroupNCCL(store, rank, size, chosen)
            group._register_backend(torch.device(device), kinds.NCCL, backend)
        elif name == "gloo" and dist.is_gloo_available():
            backend = dist.ProcessGroupGloo(store, rank, size, timeout=options.timeout)
            group._register_backend(torch.device(device), kinds.GLOO, backend)
        else:
            raise Unsupported(
                f'"{device}:{name}": beside talweg there can be nccl and gloo, where torch has them'
            )


def create(options: Any, backend_options: Any) -> ProcessGroup:
    """Makes a group for torch.distributed."""
    global _world
    rank, size, ranks = options.group_rank, options.group_size, options.global_ranks_in_group
    if not ranks:
        store = dist.PrefixStore(f"talweg.{next(_stores)}", options.store)
        client = _client.connect(
            None, options.timeout.total_seconds(), world=World(store, rank, size)
        )
        _at_exit.register(talweg.shutdown)
        if (rank, size) != (talweg.rank(), talweg.size()):
            raise InvalidArgument(
                f"init_process_group: torch has rank {rank} of {size}, but Talweg's job has this "
                f"process as rank {talweg.rank()} of {talweg.size()}: start the program with "
                "`talweg run`, which sets RANK and WORLD_SIZE, or pass rank=talweg.rank() and "
                "world_size=talweg.size()"
            )
        ranks, _world = range(size), f"{client.count_world()}"
    elif list(ranks) != sorted(ranks):
        raise Unsupported(f"a process group of ranks {list(ranks)}: name them in ascending order")
    lane = f"c10d.{_world}.{options.group_id}"
    group = ProcessGroup(options.store, rank, ranks, options.timeout, lane)
    _add_backends(group, options)
    return group
