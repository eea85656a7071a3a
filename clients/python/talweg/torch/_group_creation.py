# SPDX-License-Identifier: Apache-2.0
"""Makes groups for torch.distributed, with backends beside Talweg for other devices."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from talweg import _client
from talweg._collectives.process_sets import Group, ProcessSet
from talweg.errors import Unsupported
from talweg.torch._c10d_tensors import DEVICES
from talweg.torch._forms_of_one import GroupWithForms
from talweg.torch._job_of_store import has_joined_for, join
from talweg.torch._lanes import take_lane
from talweg.torch._process_group import NAME, ProcessGroup
from talweg.torch._uncompiled import leave_package_uncompiled

leave_package_uncompiled()


def _devices(default: str) -> dict[str, str]:
    """Returns the backend of each device, as the call that makes the group names it.

    torch does not tell a group in Python which other backends were named, and does not make them.
    So this reads torch's local variable in the stack.
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
                f'"{device}:{name}": this backend cannot stand beside talweg: name nccl or gloo, '
                "if torch has it"
            )


def create(options: Any, backend_options: Any) -> ProcessGroup:
    """Makes a group for torch.distributed."""
    rank, ranks = options.group_rank, options.global_ranks_in_group
    timeout_s = options.timeout.total_seconds()
    if not ranks:
        join(options.store, rank, options.group_size, timeout_s)
    else:
        world = c10d._get_default_group()
        if not isinstance(world, ProcessGroup) and not has_joined_for(world):
            # Another backend has the group of all ranks.
            store = c10d._get_default_store()
            join(store, dist.get_rank(), dist.get_world_size(), timeout_s, world)
    ranks = ranks or range(options.group_size)
    client = _client.current()
    if client.is_inherited:
        client.connection.check_health()  # Raises Forked: no thread makes the group's calls here.
    lane = take_lane(client, Group(client, ProcessSet(ranks), "a process group"), timeout_s)
    try:
        group = GroupWithForms(options.store, rank, ranks, options.timeout, lane)
        _add_backends(group, options)
    except Exception:
        lane.let_go()
        raise
    return group
