# SPDX-License-Identifier: Apache-2.0
"""Compressors, which change an NDArray's dtype while it travels."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np


class Compressor:
    """compress() returns the array to push and a context; decompress() restores the result."""

    @staticmethod
    def compress(tensor: mx.nd.NDArray) -> tuple[mx.nd.NDArray, Any]:
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: mx.nd.NDArray, ctx: Any) -> mx.nd.NDArray:
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Leaves arrays as they are."""

    @staticmethod
    def compress(tensor: mx.nd.NDArray) -> tuple[mx.nd.NDArray, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: mx.nd.NDArray, ctx: Any) -> mx.nd.NDArray:
        return tensor


class FP16Compressor(Compressor):
    """Casts floating-point arrays to float16, and results back; leaves others as they are."""

    @staticmethod
    def compress(tensor: mx.nd.NDArray) -> tuple[mx.nd.NDArray, Any]:
        if not np.issubdtype(tensor.dtype, np.floating):
            return tensor, None
        return tensor.astype("float16", copy=False), tensor.dtype

    @staticmethod
    def decompress(tensor: mx.nd.NDArray, ctx: Any) -> mx.nd.NDArray:
        return tensor if ctx is None else tensor.astype(ctx, copy=False)


class Compression:
    """The compressors to choose from: `none` and `fp16`."""

    none = NoneCompressor
    fp16 = FP16Compressor
