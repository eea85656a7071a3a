# SPDX-License-Identifier: Apache-2.0
"""BytePS's module of MirroredStrategy."""

from __future__ import annotations

from talweg.byteps.tensorflow.distribute import MirroredStrategy

__all__ = ["MirroredStrategy"]
