# SPDX-License-Identifier: Apache-2.0
"""byteps.keras over Talweg: `import byteps.keras as bps` runs unchanged.

See docs/byteps.md.
"""

from __future__ import annotations

from typing import Any

from talweg._frameworks import needed_by as _needed_by

with _needed_by(__name__):
    import keras
    import tensorflow as _tensorflow  # noqa: F401  # Keras may run on another backend.

from talweg.byteps.common import surface
from talweg.byteps.common.surface import *  # noqa: F403
from talweg.byteps.keras import _impl, callbacks
from talweg.byteps.keras._impl import (
    DistributedOptimizer,
    broadcast,
    broadcast_global_variables,
    push_pull,
)
from talweg.tensorflow._compression import Compression

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "load_model",
    "push_pull",
]
__all__ += surface.__all__


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: Any = None,
    compression: Any = Compression.none,
) -> Any:
    """Loads a model whose optimizer averages its gradients over all ranks."""
    return _impl.load_model(keras, filepath, custom_optimizers, custom_objects, compression)
