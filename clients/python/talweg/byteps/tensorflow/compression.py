# SPDX-License-Identifier: Apache-2.0
"""BytePS's module of this name."""

from talweg.tensorflow._compression import (
    Compression,
    Compressor,
    FP16Compressor,
    NoneCompressor,
)

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
