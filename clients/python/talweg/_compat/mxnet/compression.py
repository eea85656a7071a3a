# SPDX-License-Identifier: Apache-2.0
"""What an NDArray travels as."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np


class Compressor:
    """compress() gives what is pushed and a context; decompress() turns the result back."""

    @staticmethod
    def compress(tensor: mx.nd.NDArray) -> tuple[mx.nd.NDArray, Any]:
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: mx.nd.NDArray, ctx: Any) -> mx.nd.NDArray:
        raise NotImplementedError


class NoneCompressor(Compressor):
    """As it is."""

    @staticmethod
    def compress(tensor: mx.nd.NDArray) -> tuple[mx.nd.NDArray, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: mx.nd.NDArray, ctx: Any) -> mx.nd.NDArray:
        return tensor


class FP16Compressor(Compressor):
    """Floating-point arrays as f16; others as they are."""

    @staticmethod
    def compress(tensor: mx.nd.NDArray) -> tuple[mx.nd.NDArray, Any]:
        if not np.issubdtype(tensor.dtype, np.floating):
            return tensor, None
        return tensor.astype("float16", copy=False), tensor.dtype

    @staticmethod
    def decompress(tensor: mx.nd.NDArray, ctx: Any) -> mx.nd.NDArray:
        return tensor if ctx is None else tensor.astype(ctx, copy=False)


class Compression:
    """none, or fp16."""

    none = NoneCompressor
    fp16 = FP16Compressor
