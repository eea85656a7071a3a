# SPDX-License-Identifier: Apache-2.0
"""Translates the tensors of torch.distributed's calls for Talweg's collectives, and back.

If torch wants tensors of one shape from all ranks, ranks compare shapes. Otherwise they compare
numbers of elements (docs/torch.md says which). The program keeps its inputs unchanged until the
call is complete, so an input in one piece is not copied. A result goes straight into an output in
one piece.
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
# The oldest torch that Talweg supports lacks some of them.
_BY_REDUCE_OP = {
    getattr(dist.ReduceOp, name): op for name, op in _OPS.items() if hasattr(dist.ReduceOp, name)
}
# The kinds of devices that the backend takes tensors on.
DEVICES = ("cpu", "cuda")
# As in NCCL, a sum of bools tells whether any is true, and a product whether all are.
_OPS_OF_BOOLS = {Op.SUM: Op.MAX, Op.PRODUCT: Op.MIN}
# torch cannot divide integers of these dtypes. The oldest torch lacks the dtypes.
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
        """Returns the reduction of torch's ReduceOp; raises Unsupported if Talweg has none."""
        op = _BY_REDUCE_OP.get(getattr(reduce_op, "op", reduce_op))
        if op is not None:
            is_scaled = reduce_op == getattr(dist.ReduceOp, "PREMUL_SUM", None)
            return cls(op, reduce_op.__getstate__()[1] if is_scaled else None)
        raise Unsupported(f"{reduce_op} is not supported: use one of {', '.join(_OPS)}")


def name_of(reduce_op: Any) -> Any:
    """Returns torch's ReduceOp as a key for dicts, without its factor."""
    return getattr(reduce_op, "op", reduce_op)


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def said(tensor: torch.Tensor) -> str:
    """Returns a tensor's dtype and shape for an error message."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def require_strided(tensor: torch.Tensor, operation: str) -> None:
    """Raises InvalidArgument unless `tensor` is a strided tensor on a device of DEVICES."""
    _TORCH.shape(tensor)
    if tensor.device.type not in DEVICES:
        raise InvalidArgument(
            f"{operation}: a tensor is on {tensor.device}, and the backend 'talweg' takes tensors "
            "in host memory and on GPUs of CUDA: use tensor.cpu()"
        )


def require_one_dtype(tensors: Sequence[torch.Tensor], operation: str) -> None:
    """Raises InvalidArgument unless all tensors have the first one's dtype."""
    for tensor in tensors:
        if tensor.dtype != tensors[0].dtype:
            raise InvalidArgument(
                f"{operation}: tensors of {tensors[0].dtype} and {tensor.dtype} in one call: give "
                "all of them one dtype"
            )


def only(tensors: Sequence[torch.Tensor], operation: str) -> torch.Tensor:
    """Returns the tensor of a list of one; raises InvalidArgument for other lists."""
    if len(tensors) != 1:
        raise InvalidArgument(f"{operation}: {len(tensors)} tensors; give a list of one")
    return tensors[0]


def whole(
    tensor: torch.Tensor, any_shape: bool = False, shape: Sequence[int] | None = None
) -> Rows:
    """Returns rows in which the whole tensor is one row.

    Ranks get Mismatch if their tensors differ in shape; with `any_shape`, if they differ in length.
    `shape` stands in place of the tensor's own.
    """
    dims = tuple(tensor.shape if shape is None else shape)
    if len(dims) > DIMENSIONS_MAX:
        dims = (*dims[: DIMENSIONS_MAX - 1], math.prod(dims[DIMENSIONS_MAX - 1 :]))
    nbytes = math.prod(dims) * tensor.element_size()
    return Rows(_TORCH.dtype(tensor), dims, nbytes, any_shape)


def elements(tensor: torch.Tensor) -> Rows:
    """Returns rows in which each element is a row, so ranks may give different lengths."""
    return Rows(_TORCH.dtype(tensor), (), tensor.element_size())


def _in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor. For the result of a functional collective, waits and returns its tensor.

    Raises InvalidArgument for another tensor that has no memory of its own.
    """
    if not has_memory(tensor):
        # A program that has such a result has loaded this module.
        from torch.distributed._functional_collectives import AsyncCollectiveTensor

        if isinstance(tensor, AsyncCollectiveTensor):
            tensor.trigger_wait()
            return tensor.elem
        require_memory(tensor)
    return tensor


def _source(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the tensors one after another, in one piece on their device.

    A single tensor that is in one piece is not copied.
    """
    pieces = [
        _in_memory(tensor).detach().resolve_conj().resolve_neg().contiguous() for tensor in tensors
    ]
    return pieces[0] if len(pieces) == 1 else torch.cat([piece.view(-1) for piece in pieces])


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Returns the addresses where the tensor's memory begins and ends."""
    if tensor.numel() == 0:
        return 0, 0
    last = sum((many - 1) * step for many, step in zip(tensor.shape, tensor.stride()))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def apart(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the tensors. Those that share memory with others of them are copied, so a result that
    is written to one of them does not change what another one gives.
    """
    apart_ = list(tensors)
    if len(tensors) == 1:
        return apart_
    spans = sorted((*_span(each), place) for place, each in enumerate(tensors) if has_memory(each))
    last, of_last = 0, -1
    for begin, end, place in spans:
        if begin < last:
            for shared in (of_last, place):
                apart_[shared] = tensors[shared].detach().clone()
        if end > last:
            last, of_last = end, place
    return apart_


def _divide(sums: torch.Tensor, divisor: int) -> None:
    """Divides sums of integers in place, and rounds towards zero."""
    if sums.dtype in _NUMPY_DIVIDES:
        numbers = sums.numpy()
        np.floor_divide(numbers, divisor, out=numbers)
    else:
        sums.div_(divisor, rounding_mode="trunc")


class Order(Protocol):
    """The order of a group's places."""

    are_ascending: bool

    def by_rank(self, by_place: Sequence[Any]) -> list[Any]:
        """Takes one item for each place. Returns them in ascending order of the places' ranks."""

    def put_back(self, result: torch.Tensor, lengths: list[int]) -> list[int]:
        """Puts the result's parts, which are in ascending order of ranks, into the order of the
        places. `lengths` are theirs. Returns the lengths in the new order.
        """


class Outputs:
    """The tensors that get a result.

    Several tensors get a part each, in ascending order of the ranks that the parts come from. A
    single tensor that gets a part from every rank has the parts in the order of `places`.
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
        self._way: Way | None = None  # The way to the GPU that the tensors are on, if any.

    def expects(self, counts: list[int]) -> bool:
        """Whether each rank may send so many elements."""
        return True

    def takes(self, nbytes: int) -> bool:
        """Whether a result of so many bytes goes into a single output without further steps."""
        if not self._direct or self._divisor != 1 or self._places is not None:
            return False
        return self._tensors[0].numel() * self._tensors[0].element_size() == nbytes

    def divide_by(self, divisor: int) -> None:
        """Has the result, a sum of integers, divided and rounded towards zero, as NCCL does."""
        self._divisor = divisor

    def begin(self) -> None:
        """Begins the call. Work that the GPU has for the outputs by now ends before the result."""
        if not self._tensors or self._tensors[0].is_cpu:
            return
        devices = [str(tensor.device) for tensor in self._tensors]
        if len(set(devices)) > 1:
            raise InvalidArgument(
                f"{self._operation}: outputs on {', '.join(devices)}: put them on one device"
            )
        self._way = way_of(self._tensors[0])

    def allocate(self, rows: Rows, counts: list[int]) -> tuple[Any, int]:
        """Returns memory for a result: the output itself if it is one piece of the right length."""
        per_row = math.prod(rows.row_shape)
        count = sum(counts) * per_row
        if not counts:
            return None, 0
        if self._direct and self._tensors[0].numel() == count:
            result = self._tensors[0]
        elif self._way is not None:
            result = self._way.room(count, self._tensors[0].dtype)
        else:
            # Other ranks need this rank in the call, even if finish() finds its outputs wrong.
            result = torch.empty(count, dtype=self._tensors[0].dtype, device="cpu")
        lengths = [each * per_row for each in counts]
        return (result, lengths), int(result.data_ptr())

    def take(self, came: torch.Tensor) -> None:
        """Copies `came`, in host memory, to the single output, which has as many elements."""
        [tensor] = self._tensors
        if self._way is None:
            _cuda.copy(tensor, came.view(tensor.shape))
            return
        room = self._way.room(came.numel(), came.dtype)
        self._way.bring_up(self._tensors, [room.copy_(came.view(-1))])

    def finish(self, got: Any) -> None:
        """Copies a result to the outputs. Raises Mismatch if its lengths are not theirs."""
        if got is not None:
            with _cuda.writing_to(got[0], *self._tensors):
                self._finish(*got)

    def _finish(self, result: torch.Tensor, lengths: list[int]) -> None:
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
    """One tensor that gets a part from every rank. This rank says how long each part is."""

    def __init__(
        self, tensor: torch.Tensor, counts: list[int], operation: str, places: Order
    ) -> None:
        super().__init__([tensor], operation, places)
        self._counts = places.by_rank(counts)

    def expects(self, counts: list[int]) -> bool:
        """Whether this rank expects so many elements from each rank."""
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
    """Returns a call that moves tensors. Without inputs this rank gives nothing."""
    source = _source(inputs) if inputs else None
    address = _TORCH.address(source) if source is not None else 0

    def itself(rows: Rows, counts: list[int]) -> tuple[Any, int]:
        """Returns the address of the sender's own data, where its result goes."""
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
    """Returns a call that combines the tensors of `size` ranks.

    In a reduce_scatter `parts` are the numbers of elements of the ranks' parts. If `part_shape` is
    given, all parts have it. Raises Unsupported if the operation does not exist for the dtype.
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
            raise Unsupported(f"{operation}: premul_sum takes floating point numbers only: use sum")
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
    """Returns the tensors for a reduction, complex ones as pairs of real numbers."""
    return [_real(tensor) for tensor in tensors]


def outputs_of(operation: str) -> Callable[[torch.Tensor], Outputs]:
    """Returns a function that makes the Outputs of a call with one output tensor."""
    return lambda output: Outputs(real([output]), operation)


def options_of(kind: Any, given: Any) -> Any:
    """Returns options of `kind`. Callers in torch give options, only an operation, or None."""
    if isinstance(given, kind):
        return given
    options = kind()
    if given is not None:
        if isinstance(given, int) or not hasattr(options, "reduceOp"):
            raise InvalidArgument(
                f"{given!r} are not {kind.__name__}: call torch.distributed's own"
            )
        options.reduceOp = given
    return options
