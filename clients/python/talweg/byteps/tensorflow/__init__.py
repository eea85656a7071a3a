# SPDX-License-Identifier: Apache-2.0
"""byteps.tensorflow over Talweg: `import byteps.tensorflow as bps` runs unchanged.

See docs/byteps.md.
"""

from __future__ import annotations

from talweg.byteps.tensorflow import ops
from talweg.byteps.tensorflow.compression import Compression
from talweg.byteps.tensorflow.gradients import DistributedGradientTape, DistributedOptimizer
from talweg.byteps.tensorflow.ops import *  # noqa: F403

__all__ = [
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
]
__all__ += ops.__all__
