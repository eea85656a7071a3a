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
from talweg._collectives.process_sets import Group, ProcessSet
from talweg._node.launchers import World
from talweg.errors import InvalidArgument, Unsupported
from talweg.torch._c10d_tensors import DEVICES
from talweg.torch._forms_of_one import GroupWithForms
from talweg.torch._lanes import take_lane
from talweg.torch._process_group import NAME, ProcessGroup
from talweg.torch._uncompiled import leave_package_uncompiled

leave_package_uncompiled()

# Jobs that this process has joined by a store of torch's.
_stores = itertools.count()


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


def _join(store: Any, rank: int, size: int, timeout_s: float) -> None:
    """Joins Talweg's job, unless the program has, as torch's rank `rank` of `size`."""
    store = dist.PrefixStore(f"talweg.{next(_stores)}", store)
    _client.connect(None, timeout_s, world=World(store, rank, size))
    _at_exit.register(talweg.shutdown)
    if (rank, size) != (talweg.rank(), talweg.size()):
        raise InvalidArgument(
            f"init_process_group: torch has rank {rank} of {size}, but Talweg's job has this "
            f"process as rank {talweg.rank()} of {talweg.size()}: start the program with "
            "`talweg run`, which sets RANK and WORLD_SIZE, or pass rank=talweg.rank() and "
            "world_size=talweg.size()"
        )


def create(options: Any, backend_options: Any) -> ProcessGroup:
    """Makes a group for torch.distributed."""
    rank, ranks = options.group_rank, options.global_ranks_in_group
    timeout_s = options.timeout.total_seconds()
    if not ranks:
        _join(options.store, rank, options.group_size, timeout_s)
    elif not talweg.is_initialized():
        # The group of all ranks is another backend's.
        _join(c10d._get_default_store(), dist.get_rank(), dist.get_world_size(), timeout_s)
    ranks = ranks or range(options.group_size)
    client = _client.current()
    lane = take_lane(client, Group(client, ProcessSet(ranks), "a process group"), timeout_s)
    try:
        group = GroupWithForms(options.store, rank, ranks, options.timeout, lane)
        _add_backends(group, options)
    except Exception:
        lane.let_go()
        raise
    return group
