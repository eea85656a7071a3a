# SPDX-License-Identifier: Apache-2.0
"""Tensors of torch.distributed as Talweg's collectives give and get them.

Where torch has ranks give tensors of one shape, shapes are compared, else numbers of elements
(docs/torch.md says which). What is given must stay unchanged until the call is complete, so nothing
is copied that lies in one piece; results go straight into outputs that do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist

from talweg._collectives.collectives import REDUCE_SCATTER, Given, Kind, Rows
from talweg._collectives.reduction_calls import check_reduction
from talweg._collectives.words import DIMENSIONS_MAX
from talweg._declaration import Op
from talweg.errors import InvalidArgument, Mismatch, Unsupported
from talweg.torch import _cuda
from talweg.torch._checks import has_memory, require_memory
from talweg.torch._collectives import TorchTensors
from talweg.torch._staging import Way, way_of
from talweg.torch._tensors import wire_dtype

_TORCH = TorchTensors()

_OPS = {
    "SUM": Op.SUM,
    "AVG": Op.AVERAGE,
    "PRODUCT": Op.PRODUCT,
    "MIN": Op.MIN,
    "MAX": Op.MAX,
    "BAND": Op.BIT_AND,
    "BOR": Op.BIT_OR,
    "BXOR": Op.BIT_XOR,
    "PREMUL_SUM": Op.SUM,
}
# Some are newer than the oldest torch.
_BY_REDUCE_OP = {
    getattr(dist.ReduceOp, name): op for name, op in _OPS.items() if hasattr(dist.ReduceOp, name)
}
# The kinds of devices that the backend takes tensors on.
DEVICES = ("cpu", "cuda")
# A sum or a product of bools is whether any or all are true, as in NCCL.
_OPS_OF_BOOLS = {Op.SUM: Op.MAX, Op.PRODUCT: Op.MIN}
# torch divides none of these, which are newer than the oldest torch.
_NUMPY_DIVIDES = {
    getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)
}


@dataclass(frozen=True)
class Reduction:
    """What a call does with the ranks' tensors."""

    op: Op
    factor: Any = None  # For premul_sum: a number, or a tensor of one element.

    @classmethod
    def of(cls, reduce_op: Any) -> Reduction:
        """What torch's ReduceOp stands for."""
        op = _BY_REDUCE_OP.get(getattr(reduce_op, "op", reduce_op))
        if op is not None:
            is_scaled = reduce_op == getattr(dist.ReduceOp, "PREMUL_SUM", None)
            return cls(op, reduce_op.__getstate__()[1] if is_scaled else None)
        raise Unsupported(f"{reduce_op} is not there: use one of {', '.join(_OPS)}")


def name_of(reduce_op: Any) -> Any:
    """torch's ReduceOp as a key, without what it is scaled by."""
    return getattr(reduce_op, "op", reduce_op)


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def said(tensor: torch.Tensor) -> str:
    """A tensor in an error message."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def require_strided(tensor: torch.Tensor, operation: str) -> None:
    """InvalidArgument for what is no ordinary tensor, or on a device of another kind."""
    _TORCH.shape(tensor)
    if tensor.device.type not in DEVICES:
        raise InvalidArgument(
            f"{operation}: a tensor is on {tensor.device}, and the backend 'talweg' takes tensors "
            "in host memory and on GPUs of CUDA: use tensor.cpu()"
        )


def require_one_dtype(tensors: Sequence[torch.Tensor], operation: str) -> None:
    """InvalidArgument unless all have the first one's dtype."""
    for tensor in tensors:
        if tensor.dtype != tensors[0].dtype:
            raise InvalidArgument(
                f"{operation}: tensors of {tensors[0].dtype} and {tensor.dtype} in one call: give "
                "all of them one dtype"
            )


def only(tensors: Sequence[torch.Tensor], operation: str) -> torch.Tensor:
    """The tensor of a list of one."""
    if len(tensors) != 1:
        raise InvalidArgument(f"{operation}: {len(tensors)} tensors; give a list of one")
    return tensors[0]


def whole(
    tensor: torch.Tensor, any_shape: bool = False, shape: Sequence[int] | None = None
) -> Rows:
    """A tensor as one row: ranks whose tensors have other shapes are told, with `any_shape` only
    those whose tensors have other lengths. `shape`: instead of the tensor's own.
    """
    dims = tuple(tensor.shape if shape is None else shape)
    if len(dims) > DIMENSIONS_MAX:
        dims = (*dims[: DIMENSIONS_MAX - 1], math.prod(dims[DIMENSIONS_MAX - 1 :]))
    nbytes = math.prod(dims) * tensor.element_size()
    return Rows(_TORCH.dtype(tensor), dims, nbytes, any_shape)


def elements(tensor: torch.Tensor) -> Rows:
    """A tensor as its elements: ranks may give several lengths."""
    return Rows(_TORCH.dtype(tensor), (), tensor.element_size())


def _in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor; what the result of a functional collective stands for, when that is there.

    InvalidArgument for another one that has no memory of its own.
    """
    if not has_memory(tensor):
        # It is loaded where there is such a result.
        from torch.distributed._functional_collectives import AsyncCollectiveTensor

        if isinstance(tensor, AsyncCollectiveTensor):
            tensor.trigger_wait()
            return tensor.elem
        require_memory(tensor)
    return tensor


def _source(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The tensors one after another, in one piece; the tensor itself if it is one, and is so.

    Where they are, on a GPU too.
    """
    pieces = [
        _in_memory(tensor).detach().resolve_conj().resolve_neg().contiguous() for tensor in tensors
    ]
    return pieces[0] if len(pieces) == 1 else torch.cat([piece.view(-1) for piece in pieces])


def _divide(sums: torch.Tensor, divisor: int) -> None:
    """Sums of integers, in place, cut off towards zero."""
    if sums.dtype in _NUMPY_DIVIDES:
        numbers = sums.numpy()
        np.floor_divide(numbers, divisor, out=numbers)
    else:
        sums.div_(divisor, rounding_mode="trunc")


class Order(Protocol):
    """The order of a group's places."""

    are_ascending: bool

    def by_rank(self, by_place: Sequence[Any]) -> list[Any]:
        """What there is for each place, in ascending order of the ranks there."""

    def put_back(self, result: torch.Tensor, lengths: list[int]) -> list[int]:
        """Puts parts of these lengths, which are by rank, into the order of the places."""


class Outputs:
    """Tensors that get parts of a result, in the order of the ranks that they come from. One tensor
    that gets a part of every rank has them in the order of `places`.
    """

    def __init__(
        self, tensors: Sequence[torch.Tensor], operation: str, places: Order | None = None
    ) -> None:
        self._tensors = [_in_memory(tensor).detach() for tensor in tensors]
        self._operation = operation
        self._places = places if places is not None and not places.are_ascending else None
        self._divisor = 1
        self._direct = (
            len(tensors) == 1
            and self._tensors[0].is_cpu
            and _cuda.is_plain(self._tensors[0])
            and not self._tensors[0].is_conj()
        )
        self._way: Way | None = None  # To a GPU, if they are on one.

    def expects(self, counts: list[int]) -> bool:
        """Whether so many elements may come from each rank."""
        return True

    def takes(self, nbytes: int) -> bool:
        """Whether a result of so many bytes is written into the one output, and that is all."""
        if not self._direct or self._divisor != 1 or self._places is not None:
            return False
        return self._tensors[0].numel() * self._tensors[0].element_size() == nbytes

    def divide_by(self, divisor: int) -> None:
        """The result is a sum of integers; their average is cut off towards zero, as NCCL does."""
        self._divisor = divisor

    def begin(self) -> None:
        """The call begins: what the GPU has to do with them so far comes before the result."""
        if not self._tensors or self._tensors[0].is_cpu:
            return
        devices = [str(tensor.device) for tensor in self._tensors]
        if len(set(devices)) > 1:
            raise InvalidArgument(
                f"{self._operation}: outputs on {', '.join(devices)}: put them on one device"
            )
        self._way = way_of(self._tensors[0])

    def allocate(self, rows: Rows, counts: list[int]) -> tuple[Any, int]:
        """Where a result goes: into the output, if it is one piece that has place for it."""
        per_row = math.prod(rows.row_shape)
        count = sum(counts) * per_row
        if not counts:
            return None, 0
        if self._direct and self._tensors[0].numel() == count:
            result = self._tensors[0]
        elif self._way is not None:
            result = self._way.room(count, self._tensors[0].dtype)
        else:
            # Other ranks count on this one, also where its outputs turn out to be wrong.
            result = torch.empty(count, dtype=self._tensors[0].dtype)
        lengths = [each * per_row for each in counts]
        return (result, lengths), int(result.data_ptr())

    def take(self, came: torch.Tensor) -> None:
        """Copies what has come in host memory, of as many elements, to the one output."""
        [tensor] = self._tensors
        if self._way is None:
            _cuda.copy(tensor, came.view(tensor.shape))
            return
        room = self._way.room(came.numel(), came.dtype)
        self._way.bring_up(self._tensors, [room.copy_(came.view(-1))])

    def finish(self, got: Any) -> None:
        """Brings a result to the outputs. Mismatch if they are made for another one."""
        if got is None:
            return
        result, lengths = got
        if self._places is not None:
            lengths = self._places.put_back(result, lengths)
        wanted = [tensor.numel() for tensor in self._tensors]
        if len(wanted) == 1:
            lengths = [sum(lengths)]
        if lengths != wanted:
            raise Mismatch(
                f"{self._operation}: the ranks send {lengths} elements, but the outputs of this "
                f"rank have {wanted}: make them as long as what is sent"
            )
        if self._divisor > 1:
            _divide(result, self._divisor)
        if self._direct:
            return
        parts = result.split(lengths)
        if self._way is not None:
            self._way.bring_up(self._tensors, parts)
            return
        for tensor, part in zip(self._tensors, parts):
            _cuda.copy(tensor, part.view(tensor.shape))


class SplitOutput(Outputs):
    """One tensor that gets a part of every rank, each of the length that this rank expects."""

    def __init__(
        self, tensor: torch.Tensor, counts: list[int], operation: str, places: Order
    ) -> None:
        super().__init__([tensor], operation, places)
        self._counts = places.by_rank(counts)

    def expects(self, counts: list[int]) -> bool:
        """Whether so many elements are to come from each rank."""
        return self._counts == counts

    def finish(self, got: Any) -> None:
        if got is not None and got[1] != self._counts:
            raise Mismatch(
                f"{self._operation}: the ranks send {got[1]} elements, but this rank expects "
                f"{self._counts}: output_split_sizes are what the others' input_split_sizes say"
            )
        super().finish(got)


def given(
    kind: Kind,
    inputs: Sequence[torch.Tensor],
    rows: Rows,
    part_rows: list[int],
    root_rank: int,
    outputs: Outputs | None,
) -> Given:
    """A call that moves tensors. Without inputs this rank gives nothing."""
    source = _source(inputs) if inputs else None
    address = _TORCH.address(source) if source is not None else 0

    def itself(rows: Rows, counts: list[int]) -> tuple[Any, int]:
        """Where what a sender gets goes: its own data."""
        return None, call.address

    call = Given(
        kind,
        root_rank,
        rows,
        part_rows,
        address,
        source,
        outputs.allocate if outputs is not None else itself,
    )
    if source is not None and not source.is_cpu:
        call.address, call.keep, call.is_ready = way_of(source).bring_down(source)
    return call


def reduced(
    kind: Kind,
    inputs: Sequence[torch.Tensor],
    parts: Sequence[int],
    reduction: Reduction,
    root_rank: int,
    outputs: Outputs,
    size: int,
    part_shape: Sequence[int] | None = None,
) -> Given:
    """A call that combines `size` ranks' tensors; of a reduce_scatter in `parts` of so many elements,
    all of them of `part_shape` if one is given.
    """
    operation = kind.name
    source = _source(inputs)
    op = reduction.op
    source_is_complex = source.is_complex()
    if source_is_complex:
        if op not in (Op.SUM, Op.AVERAGE):
            raise Unsupported(f"{operation}: {op.name.lower()} is not defined for complex numbers")
        source = torch.view_as_real(source)
    if source.dtype == torch.bool:
        op = _OPS_OF_BOOLS.get(op, op)
    dtype = wire_dtype(source)
    if op is Op.AVERAGE and not source.is_floating_point() and source.dtype != torch.bool:
        op = Op.SUM
        outputs.divide_by(size)
    check_reduction(dtype, op, operation)
    if reduction.factor is not None:
        if not source.is_floating_point():
            raise Unsupported(f"{operation}: premul_sum is of floating point numbers: use sum")
        source = (source * reduction.factor).to(source.dtype)
    rows, part_rows = whole(source), [1]
    if kind is REDUCE_SCATTER:
        pair = (2,) if source_is_complex else ()
        if part_shape is None:
            rows, part_rows = elements(source), [part * math.prod(pair) for part in parts]
        else:
            rows, part_rows = whole(source, shape=(*part_shape, *pair)), [1] * size
    call = given(kind, [source], rows, part_rows, root_rank, outputs)
    call.op, call.dtype = op, dtype
    return call


def real(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Complex tensors as pairs of real numbers, for reductions."""
    return [_real(tensor) for tensor in tensors]


def outputs_of(operation: str) -> Callable[[torch.Tensor], Outputs]:
    """What makes the outputs of calls of that operation with one output tensor."""
    return lambda output: Outputs(real([output]), operation)


def options_of(kind: Any, given: Any) -> Any:
    """The options of a call, of which torch's callers give all, an operation, or none."""
    if isinstance(given, kind):
        return given
    options = kind()
    if given is not None:
        if isinstance(given, int) or not hasattr(options, "reduceOp"):
            raise InvalidArgument(f"{given!r} are no {kind.__name__}: call torch.distributed's own")
        options.reduceOp = given
    return options
