# SPDX-License-Identifier: Apache-2.0
"""Refuses values of which a rank holds a part only: no rank has the whole to give to a joiner."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from talweg.errors import InvalidArgument

# torch's classes, and the modules in which they are. A program that uses them has imported these.
_TENSORS = (
    ("torch.distributed.tensor", "DTensor"),
    ("torch.distributed._tensor", "DTensor"),
    ("torch.distributed._shard.sharded_tensor", "ShardedTensor"),
)
_MODULES = (
    ("torch.distributed.fsdp", "FSDPModule"),
    ("torch.distributed.fsdp", "FullyShardedDataParallel"),
)
_OPTIMIZERS = (("torch.distributed.optim", "ZeroRedundancyOptimizer"),)


def _kind_of(value: Any, classes: tuple[tuple[str, str], ...]) -> str | None:
    """Returns the name of that of the classes whose object `value` is."""
    for module, name in classes:
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and isinstance(value, kind):
            return name
    return None


def _is_whole(module: torch.nn.Module) -> bool:
    """Whether a module of FSDP1 shards nothing."""
    return getattr(getattr(module, "sharding_strategy", None), "name", "") == "NO_SHARD"


def _sharded(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yields what is sharded of a value: its name, and the name of torch's class."""
    if isinstance(value, torch.nn.Module):
        for part in (value.named_parameters(), value.named_buffers()):
            for key, tensor in part:
                kind = _kind_of(tensor, _TENSORS)
                if kind is not None:
                    yield f"{name}.{key}", kind
        for key, module in value.named_modules():
            kind = _kind_of(module, _MODULES)
            if kind is not None and not _is_whole(module):
                yield f"{name}.{key}".rstrip("."), kind
    elif isinstance(value, torch.optim.Optimizer):
        kind = _kind_of(value, _OPTIMIZERS)
        if kind is not None:
            yield name, kind
        for number, group in enumerate(value.param_groups):
            for place, parameter in enumerate(group["params"]):
                kind = _kind_of(parameter, _TENSORS)
                if kind is not None:
                    yield f"{name}.param_groups[{number}]['params'][{place}]", kind
    elif isinstance(value, torch.Tensor):
        kind = _kind_of(value, _TENSORS)
        if kind is not None:
            yield name, kind


def refuse_sharded(values: Mapping[str, Any]) -> None:
    """Raises InvalidArgument if a value of an Elastic is sharded over ranks."""
    for name, value in values.items():
        for place, kind in _sharded(name, value):
            raise InvalidArgument(
                f"Elastic: '{place}' is a {kind}, of which each rank holds a part, so no rank could "
                "give a joiner the whole: save it by torch.distributed.checkpoint and start the job "
                "again from there, give a talweg.State the full state dict "
                "(StateDictOptions(full_state_dict=True)), or train without shards (DDP, "
                "DistributedOptimizer)"
            )
