# SPDX-License-Identifier: Apache-2.0
"""byteps.mxnet over Talweg: `import byteps.mxnet as bps` runs unchanged. See docs/byteps.md."""

from __future__ import annotations

from talweg._frameworks import needed_by as _needed_by

with _needed_by(__name__):
    import mxnet as _mxnet  # noqa: F401

from talweg.byteps.common import surface
from talweg.byteps.common.surface import *  # noqa: F403
from talweg.byteps.mxnet import ops
from talweg.byteps.mxnet._training import (
    DistributedOptimizer,
    DistributedTrainer,
    broadcast_parameters,
)
from talweg.byteps.mxnet.compression import Compression
from talweg.byteps.mxnet.ops import *  # noqa: F403

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "broadcast_parameters",
]
__all__ += ops.__all__
__all__ += surface.__all__
