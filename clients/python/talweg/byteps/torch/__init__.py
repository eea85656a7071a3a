# SPDX-License-Identifier: Apache-2.0
"""byteps.torch over Talweg: `import byteps.torch as bps` runs unchanged. See docs/byteps.md."""

from __future__ import annotations

from talweg.byteps.torch import parallel
from talweg.byteps.torch._optimizer import DistributedOptimizer
from talweg.byteps.torch._state import (
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from talweg.byteps.torch.compression import Compression
from talweg.byteps.torch.ops import (
    byteps_push_pull,
    declare,
    get_pushpull_speed,
    init,
    local_rank,
    local_size,
    poll,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_inplace,
    rank,
    resume,
    shutdown,
    size,
    suspend,
    synchronize,
)

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "byteps_push_pull",
    "declare",
    "get_pushpull_speed",
    "init",
    "local_rank",
    "local_size",
    "parallel",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
    "synchronize",
]
