# SPDX-License-Identifier: Apache-2.0
"""byteps.tensorflow over Talweg: `import byteps.tensorflow as bps` runs unchanged.

See docs/byteps.md.
"""

from __future__ import annotations

from talweg._frameworks import needed_by as _needed_by

with _needed_by(__name__):
    import tensorflow as _tensorflow  # noqa: F401

from talweg.byteps.common import surface
from talweg.byteps.common.surface import *  # noqa: F403
from talweg.byteps.common.unreleased import remedies
from talweg.byteps.tensorflow import distribute, ops
from talweg.byteps.tensorflow.compression import Compression
from talweg.byteps.tensorflow.gradients import DistributedGradientTape, DistributedOptimizer
from talweg.byteps.tensorflow.ops import *  # noqa: F403

__all__ = [
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "distribute",
]
__all__ += ops.__all__
__all__ += surface.__all__

_REMEDIES = {
    "allgather": "talweg.tensorflow.all_gather",
    "alltoall": "talweg.tensorflow.all_to_all",
    "alltoall_cpu2gpu": "talweg.tensorflow.all_to_all",
    "alltoall_gpu2cpu": "talweg.tensorflow.all_to_all",
}
__getattr__ = remedies("byteps.tensorflow", _REMEDIES)
