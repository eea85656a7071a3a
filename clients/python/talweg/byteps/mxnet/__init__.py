# SPDX-License-Identifier: Apache-2.0
"""byteps.mxnet over Talweg: `import byteps.mxnet as bps` runs unchanged. See docs/byteps.md."""

from __future__ import annotations

from talweg.byteps.mxnet._training import (
    DistributedOptimizer,
    DistributedTrainer,
    broadcast_parameters,
)
from talweg.byteps.mxnet.compression import Compression
from talweg.byteps.mxnet.ops import (
    byteps_declare_tensor,
    byteps_push_pull,
    init,
    local_rank,
    local_size,
    rank,
    resume,
    shutdown,
    size,
    suspend,
)

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "broadcast_parameters",
    "byteps_declare_tensor",
    "byteps_push_pull",
    "init",
    "local_rank",
    "local_size",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
]
