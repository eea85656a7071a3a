# SPDX-License-Identifier: Apache-2.0
"""Horovod's module of this name."""

from talweg._compat.mxnet.compression import (
    Compression,
    Compressor,
    FP16Compressor,
    NoneCompressor,
)

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
