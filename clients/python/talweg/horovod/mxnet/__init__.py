# SPDX-License-Identifier: Apache-2.0
"""horovod.mxnet over Talweg: `import horovod.mxnet as hvd` runs unchanged. See docs/horovod.md."""

from __future__ import annotations

from talweg._frameworks import needed_by as _needed_by

with _needed_by(__name__):
    import mxnet as _mxnet  # noqa: F401

from talweg.horovod.common import surface
from talweg.horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    remove_process_set,
)
from talweg.horovod.common.surface import *  # noqa: F403
from talweg.horovod.mxnet import mpi_ops
from talweg.horovod.mxnet._training import DistributedOptimizer, DistributedTrainer
from talweg.horovod.mxnet.compression import Compression
from talweg.horovod.mxnet.functions import (
    allgather_object,
    broadcast_object,
    broadcast_parameters,
)
from talweg.horovod.mxnet.mpi_ops import *  # noqa: F403

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "ProcessSet",
    "add_process_set",
    "allgather_object",
    "broadcast_object",
    "broadcast_parameters",
    "remove_process_set",
]
__all__ += mpi_ops.__all__
__all__ += surface.__all__
