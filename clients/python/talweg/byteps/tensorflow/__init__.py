# SPDX-License-Identifier: Apache-2.0
"""byteps.tensorflow over Talweg: `import byteps.tensorflow as bps` runs unchanged.

See docs/byteps.md.
"""

from __future__ import annotations

from talweg.byteps.tensorflow.compression import Compression
from talweg.byteps.tensorflow.gradients import DistributedGradientTape, DistributedOptimizer
from talweg.byteps.tensorflow.ops import (
    Adasum,
    Average,
    BroadcastGlobalVariablesHook,
    Sum,
    broadcast,
    broadcast_global_variables,
    broadcast_variables,
    get_pushpull_speed,
    init,
    local_rank,
    local_size,
    push_pull,
    rank,
    resume,
    shutdown,
    size,
    suspend,
)

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Sum",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "get_pushpull_speed",
    "init",
    "local_rank",
    "local_size",
    "push_pull",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
]
