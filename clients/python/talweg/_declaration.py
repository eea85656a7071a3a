# SPDX-License-Identifier: Apache-2.0
"""What all ranks must agree on for a tensor."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NoReturn

import numpy as np
from numpy.typing import DTypeLike

from talweg.errors import InvalidArgument, Unsupported


class DType(IntEnum):
    """Element types, with the numbers of talweg.h."""

    F32 = 1
    F64 = 2
    F16 = 3
    BF16 = 4
    I8 = 5
    U8 = 6
    I32 = 7
    I64 = 8
    I16 = 9
    U16 = 10
    U32 = 11
    U64 = 12
    BOOL = 13

    @property
    def nbytes(self) -> int:
        """What one element takes."""
        return _DTYPE_BYTES[self]


class Op(IntEnum):
    """What a round does with the ranks' tensors, with the numbers of talweg.h."""

    SUM = 1
    AVERAGE = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5
    BROADCAST = 6
    BIT_AND = 7
    BIT_OR = 8
    BIT_XOR = 9

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        names = ", ".join(f"Op.{op.name}" for op in cls)
        remedy = f": pass a tensor's name as name={value!r}" if isinstance(value, str) else ""
        raise InvalidArgument(f"op is {value!r}; it must be one of {names}{remedy}")


class Encoding(IntEnum):
    """How a tensor travels between nodes, with the numbers of talweg.h."""

    PLAIN = 0
    RUNS = 1
    GAPS = 5  # For tensors that are mostly zeros.
    FEW = 6  # For tensors that have few different numbers.


def op_of(value: Any) -> Op:
    """The operation that a caller means by `value`; InvalidArgument when there is none."""
    # A bool is a number to Python, and True that of a sum.
    return Op._missing_(value) if isinstance(value, bool) else Op(value)


_DTYPE_BYTES = {
    DType.F32: 4,
    DType.F64: 8,
    DType.F16: 2,
    DType.BF16: 2,
    DType.I8: 1,
    DType.U8: 1,
    DType.I32: 4,
    DType.I64: 8,
    DType.I16: 2,
    DType.U16: 2,
    DType.U32: 4,
    DType.U64: 8,
    DType.BOOL: 1,
}

NUMPY_DTYPES: Mapping[np.dtype, DType] = {
    np.dtype(np.float32): DType.F32,
    np.dtype(np.float64): DType.F64,
    np.dtype(np.float16): DType.F16,
    np.dtype(np.int8): DType.I8,
    np.dtype(np.uint8): DType.U8,
    np.dtype(np.int32): DType.I32,
    np.dtype(np.int64): DType.I64,
    np.dtype(np.int16): DType.I16,
    np.dtype(np.uint16): DType.U16,
    np.dtype(np.uint32): DType.U32,
    np.dtype(np.uint64): DType.U64,
    np.dtype(np.bool_): DType.BOOL,
}


def numpy_dtype(dtype: DTypeLike) -> DType:
    """The wire's name of a NumPy dtype; InvalidArgument for one that Talweg cannot sum."""
    try:
        found = np.dtype(dtype)
        # NumPy has it from ml_dtypes, which TensorFlow and JAX bring.
        known = DType.BF16 if found.name == "bfloat16" else NUMPY_DTYPES.get(found)
    except TypeError:
        known = None
    if known is None:
        names = ", ".join(str(known) for known in NUMPY_DTYPES)
        raise InvalidArgument(
            f"arrays of dtype {getattr(dtype, '__name__', dtype)} cannot be pushed; these can: {names}"
        )
    return known


# How signatures of shapes begin: no dtype's number, which other signatures begin with. Texts know
# both (libs/base/signature_text.cc).
_SHAPE, _SHAPE_DIGEST = 0xFE << 56, 0xFF << 56
_DIMENSIONS_SHIFT, _DIMENSIONS_MAX = 52, 15
_COUNT_MAX = (1 << 40) - 1
_FLOATS = (DType.F32, DType.F64, DType.F16, DType.BF16)
_TENSOR_BYTES_MAX = 16 << 30


def require_defined(dtype: DType, op: Op, what: str) -> None:
    """Unsupported, beginning with `what`, for an operation that the dtype does not have."""
    is_float = dtype in _FLOATS
    undefined = (op is Op.AVERAGE and not is_float) or (
        op in (Op.BIT_AND, Op.BIT_OR, Op.BIT_XOR) and is_float
    )
    if undefined or (dtype is DType.BOOL and op in (Op.SUM, Op.PRODUCT)):
        raise Unsupported(
            f"{what}: {op.name.lower()} is not defined for {dtype.name.lower()}; use another op, "
            "such as sum for integers and max for bools, or a floating-point dtype"
        )


def shape_signature(shape: Sequence[int]) -> int:
    """What a rank signs a round with whose tensor has that shape at all ranks."""
    bits = _DIMENSIONS_SHIFT // max(len(shape), 1)
    if len(shape) > _DIMENSIONS_MAX or any(length >> bits for length in shape):
        words = ",".join(str(length) for length in shape).encode()
        return _SHAPE_DIGEST | int.from_bytes(hashlib.sha256(words).digest()[:7], "little")
    packed = 0
    for length in shape:
        packed = packed << bits | length
    return _SHAPE | len(shape) << _DIMENSIONS_SHIFT | packed


def shapes_signature(shapes: Sequence[Sequence[int]]) -> int:
    """The same of a tensor in which tensors of those shapes lie one after another."""
    words = ";".join(",".join(str(length) for length in shape) for shape in shapes).encode()
    return _SHAPE_DIGEST | int.from_bytes(hashlib.sha256(words).digest()[:7], "little")


def milliseconds_of(patience: float | None) -> int:
    """Returns a patience in whole milliseconds; 0 for None."""
    if patience is None:
        return 0
    # A numpy.float32 is no float. True would be a second.
    if not isinstance(patience, (bool, str)):
        try:
            seconds = float(patience)
        except (TypeError, ValueError):
            seconds = 0.0
        if 0.001 <= seconds <= 65:
            return round(seconds * 1000)
    raise InvalidArgument(
        f"patience is {patience!r}; it must be seconds from 0.001 to 65, or None to wait for all ranks"
    )


@dataclass(frozen=True)
class Declaration:
    """What all ranks must agree on for a tensor's name."""

    dtype: DType
    count: int
    op: Op
    root_rank: int
    ranks: tuple[int, ...] = ()  # A set's; none: all ranks of the job.
    shape: tuple[int, ...] | None = None  # None: only the count must be alike.
    # How long rounds wait for late ranks; then they go on without them. 0: as long as it takes.
    patience_ms: int = 0
    encoding: Encoding = Encoding.PLAIN

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.nbytes

    def require(self, what: str) -> None:
        """Raises, beginning with `what`, where no tensor can be so."""
        if self.nbytes > _TENSOR_BYTES_MAX:
            raise InvalidArgument(
                f"{what}: {self} passes the limit of 16 GiB a tensor; cut it into several"
            )
        can_leave_out = self.op in (Op.SUM, Op.AVERAGE) and self.dtype in (DType.F32, DType.F64)
        if self.patience_ms and not can_leave_out:
            raise InvalidArgument(
                f"{what}: {self.dtype.name.lower()} {self.op.name.lower()} cannot leave late ranks "
                "out; sums and averages of f32 and f64 can: leave out patience="
            )
        if self.op is not Op.BROADCAST:
            require_defined(self.dtype, self.op, what)

    @property
    def signature(self) -> int:
        """What a rank signs each round with, so that another shape of as many elements is found."""
        return 0 if self.shape is None else shape_signature(self.shape)

    def signature_instead_of(self, settled: Declaration) -> int:
        """What a rank signs a round of `settled` with that brings this, which is another one.

        It is neither 0 nor the other's signature.
        """
        of = (self.dtype, self.count, self.op, self.root_rank)
        if of == (settled.dtype, settled.count, settled.op, settled.root_rank):
            if self.shape is not None and settled.shape is not None:
                return self.signature
        gives, gets = self.shares()
        # libs/base/collective.h: SignatureOf().
        return self.dtype << 56 | self.op << 48 | gives << 44 | gets << 40 | self.count & _COUNT_MAX

    def is_for(self, call: Declaration) -> bool:
        """Whether a call that gives `call` is a round of this tensor. Calls do not say patience."""
        return self == replace(call, patience_ms=self.patience_ms)

    @property
    def is_plain(self) -> bool:
        """Whether wire() says all of it."""
        return self.count > 0 and not (self.ranks or self.patience_ms or self.encoding)

    def shares(self) -> tuple[int, int]:
        """What each rank gives and gets, with the numbers of talweg.h: the root's, or the whole."""
        return (2 if self.op is Op.BROADCAST else 1), 1

    def is_of(
        self,
        dtype: DType | None,
        count: int,
        op: Op,
        root_rank: int,
        shape: tuple[int, ...] | None = None,
    ) -> bool:
        return (
            self.dtype is dtype
            and self.count == count
            and self.op is op
            and self.root_rank == root_rank
            and not self.ranks
            and not self.patience_ms
            and not self.encoding
            and self.shape == shape
        )

    def wire(self) -> tuple[int, int, int, int]:
        """As the library's declarations take it."""
        return int(self.dtype), int(self.op), self.root_rank, self.count

    def text(self) -> str:
        """It without the ranks of its set, in few words; no other declaration has the same."""
        length = f" x {self.count}" if self.shape is None else list(self.shape)
        patience = f" within {self.patience_ms} ms" if self.patience_ms else ""
        encoding = f" as {self.encoding.name.lower()}" if self.encoding else ""
        return (
            f"{self.dtype.name.lower()}{length} {self.op.name.lower()} {self.root_rank}{patience}"
            f"{encoding}"
        )

    def __str__(self) -> str:
        lengths = (self.count,) if self.shape is None else self.shape
        text = f"{self.dtype.name.lower()}{list(lengths)} {self.op.name.lower()}"
        if self.op is Op.BROADCAST:
            text += f" from rank {self.root_rank}"
        if self.patience_ms:
            text += f" that waits {self.patience_ms} ms for late ranks"
        if self.encoding:
            text += f" that travels as {self.encoding.name.lower()}"
        if self.ranks:
            text += f" of ranks {', '.join(str(rank) for rank in self.ranks)}"
        return text
