# SPDX-License-Identifier: Apache-2.0
"""horovod.torch over Talweg: `import horovod.torch as hvd` runs unchanged. See docs/horovod.md."""

from __future__ import annotations

from talweg._frameworks import needed_by as _needed_by

with _needed_by(__name__):
    import torch as _torch  # noqa: F401

from talweg.horovod.common import surface
from talweg.horovod.common.surface import *  # noqa: F403
from talweg.horovod.torch import elastic, mpi_ops
from talweg.horovod.torch.compression import Compression
from talweg.horovod.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from talweg.horovod.torch.mpi_ops import *  # noqa: F403
from talweg.horovod.torch.optimizer import DistributedOptimizer
from talweg.horovod.torch.sync_batch_norm import SyncBatchNorm
from talweg.torch._uncompiled import leave_calls_uncompiled as _leave_calls_uncompiled

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "SyncBatchNorm",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "elastic",
]
__all__ += mpi_ops.__all__
__all__ += surface.__all__

_leave_calls_uncompiled(globals())
