# SPDX-License-Identifier: Apache-2.0
"""The collectives of NumPy arrays."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from talweg._collectives.grouped_calls import GroupedCalls
from talweg._declaration import NUMPY_DTYPES, DType, Op, numpy_dtype
from talweg.errors import InvalidArgument, Unsupported, WrongType

_NAMES = {dtype: wire.name.lower() for dtype, wire in NUMPY_DTYPES.items()} | {
    np.dtype(np.complex64): "complex64",
    np.dtype(np.complex128): "complex128",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def contiguous(array: np.ndarray) -> np.ndarray:
    """The array, or a contiguous copy; InvalidArgument for what is none."""
    if not isinstance(array, np.ndarray):
        raise WrongType(f"expected a numpy.ndarray, got {type(array).__name__}")
    if isinstance(array, np.ma.MaskedArray):
        raise InvalidArgument("a masked array cannot be pushed: use array.filled(value)")
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


_REAL = {np.dtype(np.complex64): np.float32, np.dtype(np.complex128): np.float64}


def real_pairs(array: np.ndarray, op: Op) -> np.ndarray:
    """An array of complex numbers as pairs of real ones; another one as it is."""
    real = _REAL.get(array.dtype)
    if real is None:
        return array
    if op not in (Op.SUM, Op.AVERAGE, Op.BROADCAST):
        raise Unsupported(
            f"{op.name.lower()} is not defined for {array.dtype}: use sum or average, or push the "
            "real and the imaginary parts"
        )
    return contiguous(array).reshape((*array.shape, 1)).view(real)


class NumpyArrays:
    """NumPy, as Collectives needs it."""

    def source(self, tensor: Any, copied: bool) -> Any:
        source = contiguous(tensor)
        return source.copy() if copied and source is tensor else source

    def address(self, source: Any) -> int:
        return int(source.ctypes.data)

    def shape(self, tensor: Any) -> tuple[int, ...]:
        contiguous(tensor[:0] if isinstance(tensor, np.ndarray) and tensor.ndim else tensor)
        shape: tuple[int, ...] = tensor.shape
        return shape

    def dtype(self, tensor: Any) -> str:
        return self.dtype_named(tensor.dtype)

    def dtype_named(self, dtype: Any) -> str:
        if isinstance(dtype, DType):
            return dtype.name.lower()
        try:
            name = _NAMES.get(np.dtype(dtype))
        except TypeError:
            name = None
        return name if name is not None else numpy_dtype(dtype).name.lower()

    def wire_dtype(self, tensor: Any) -> DType:
        return numpy_dtype(tensor.dtype)

    def item_bytes(self, tensor: Any) -> int:
        return int(tensor.dtype.itemsize)

    def empty(self, dtype: str, shape: tuple[int, ...]) -> Any:
        known = _DTYPES.get(dtype)
        if known is None and dtype == "bf16" and "ml_dtypes" in sys.modules:
            known = np.dtype(sys.modules["ml_dtypes"].bfloat16)  # A rank that gives it has it.
        if known is None:
            raise InvalidArgument(f"NumPy has no dtype {dtype}, which another rank gives")
        return np.empty(shape, known)

    def reducible(self, tensor: Any, op: Op) -> Any:
        return real_pairs(tensor, op)

    def as_given(self, result: Any, like: Any) -> Any:
        if result is None or result.dtype == like.dtype:
            return result
        return result.view(like.dtype).reshape(result.shape[:-1])

    def given_back(self, result: Any, like: Any) -> Any:
        return result

    def require_target(self, tensor: Any) -> None:
        if not isinstance(tensor, np.ndarray):
            raise InvalidArgument(
                f"the result goes into a numpy.ndarray, which {type(tensor).__name__} is not"
            )
        if not tensor.flags.c_contiguous:
            raise InvalidArgument(
                "the result goes into a C-contiguous array, which this one is not: pass "
                "numpy.empty(array.shape, array.dtype), and copy from that"
            )
        if not tensor.flags.writeable:
            raise InvalidArgument("the result needs a writable array; this one is read-only")

    def target(self, tensor: Any) -> Any:
        return tensor

    def written(self, tensor: Any, target: Any) -> None: ...


COLLECTIVES = GroupedCalls(NumpyArrays())
