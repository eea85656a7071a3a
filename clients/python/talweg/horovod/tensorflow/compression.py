# SPDX-License-Identifier: Apache-2.0
"""The compressors, under Horovod's name for their module."""

from talweg.tensorflow._compression import (
    Compression,
    Compressor,
    FP16Compressor,
    NoneCompressor,
)

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
