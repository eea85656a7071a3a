# SPDX-License-Identifier: Apache-2.0
"""byteps.torch over Talweg: `import byteps.torch as bps` runs unchanged. See docs/byteps.md."""

from __future__ import annotations

from talweg._frameworks import needed_by as _needed_by

with _needed_by(__name__):
    import torch as _torch  # noqa: F401

from talweg.byteps.common import surface
from talweg.byteps.common.surface import *  # noqa: F403
from talweg.byteps.common.unreleased import remedies
from talweg.byteps.torch import ops, parallel
from talweg.byteps.torch._optimizer import DistributedOptimizer
from talweg.byteps.torch._state import (
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from talweg.byteps.torch.compression import Compression
from talweg.byteps.torch.ops import *  # noqa: F403
from talweg.torch._uncompiled import leave_calls_uncompiled as _leave_calls_uncompiled

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "parallel",
]
__all__ += ops.__all__
__all__ += surface.__all__

_REMEDIES = {
    "allgather": "talweg.torch.all_gather",
    "alltoall": "talweg.torch.all_to_all",
    "batched_fuse_": "torch.cat",
    "batched_unfuse_": "torch.split",
    "batched_zero_": "the optimizer's zero_grad()",
    "dc_adam_": "torch.optim.Adam: each round is a sum over all ranks of one step",
    "delay_compensation_": "gradients as they are: each round is a sum over all ranks of one step",
    "recv_async": "torch.distributed.irecv over the backend talweg",
    "send_async": "torch.distributed.isend over the backend talweg",
    "SyncBatchNorm": "talweg.horovod.torch.SyncBatchNorm",
}
__getattr__ = remedies("byteps.torch", _REMEDIES)

_leave_calls_uncompiled(globals())
