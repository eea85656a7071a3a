# SPDX-License-Identifier: Apache-2.0
"""Rounds of NDArrays by the other systems' rules, each an operation in MXNet's engine.

Calls return at once. A tensor's rounds follow each other in the order of the calls; those of
different tensors may end in any order.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import mxnet as mx
import numpy as np

from talweg import _client
from talweg._client import Client, Handle
from talweg._collectives import rounds
from talweg._collectives.process_sets import Group, ProcessSet
from talweg._collectives.scaling import NO_FACTORS, Factors
from talweg._compat.mxnet import engine
from talweg._compat.mxnet.engine import Completion
from talweg._declaration import Declaration, DType, Op, numpy_dtype
from talweg.errors import InvalidArgument

# How long closing waits for what the engine has still to do, before it fails.
_FLUSH_S = 10.0
_INTEGERS = (DType.I8, DType.U8, DType.I32, DType.I64)
# How many rounds without a name may be under way at once.
_TURNS = 2


@dataclass(frozen=True)
class Reduction:
    """What a round does with the ranks' tensors."""

    op: Op
    factors: Factors = NO_FACTORS
    members: ProcessSet | None = None  # None: all ranks.
    root_rank: int = 0

    @property
    def operation(self) -> str:
        return "broadcast" if self.op is Op.BROADCAST else "push_pull"


class Rounds:
    """One client's."""

    def __init__(self, client: Client) -> None:
        self.client = client
        # Each tensor's, so that the engine has its rounds follow each other.
        self._turns: dict[str, mx.nd.NDArray] = {}
        client.call_before_closing(self._flush)

    def _flush(self) -> None:
        """A rank that leaves has given what it was told to give."""
        if not engine.wait_for_all(_FLUSH_S):
            print(
                f"talweg: rank {self.client.rank} leaves while rounds of MXNet's arrays are under "
                "way; they fail",
                file=sys.stderr,
            )

    def turn_of(self, name: str) -> mx.nd.NDArray:
        turn = self._turns.get(name)
        if turn is None:
            turn = self._turns[name] = mx.nd.zeros((1,))
        return engine.alias(turn)


_current: Rounds | None = None
# How long one look takes at whether operations are over, in which Ctrl-C is not heard.
_LOOK_S = 0.2


def _finish_operations() -> None:
    while not engine.wait_for_all(_LOOK_S):
        pass


def _forget_lost(_: Client) -> None:
    """What the client before had under way has failed, and whatever the engine had after it."""
    global _current
    if _current is not None:
        engine.forget_failures()
        _current = None


_client.call_at_end_of_step(_finish_operations)
_client.call_when_replaced(_forget_lost)


def current() -> Rounds:
    """The present client's; NotInitialized before init()."""
    global _current
    client = _client.current()
    if _current is None or _current.client is not client:
        _current = Rounds(client)
    return _current


def check(tensor: Any, operation: str) -> DType:
    """The tensor's dtype. InvalidArgument for what no round can be of, MXNetError for its dtype."""
    if not isinstance(tensor, mx.nd.NDArray):
        raise InvalidArgument(
            f"{operation}: expected an mxnet.nd.NDArray, got {type(tensor).__name__}"
        )
    if tensor.stype != "default":
        raise InvalidArgument(
            f"{operation}: a {tensor.stype} array cannot be pushed: use tensor.tostype('default')"
        )
    try:
        return numpy_dtype(tensor.dtype)
    except InvalidArgument as failure:
        raise mx.MXNetError(f"{operation}: {failure}") from None


@dataclass
class _Round:
    """One under way."""

    rounds: Rounds
    name: str | None
    turn: str  # Which rounds follow each other.
    declaration: Declaration
    group: Group
    reduction: Reduction
    priority: int
    array: Any = None

    def start(self, array: mx.nd.NDArray) -> None:
        """`array` is in the default layout when its turn comes."""
        self.array = engine.alias(array)
        turn = self.rounds.turn_of(self.turn)
        engine.push([self.array, turn], self._begin, self.priority, f"talweg.{self.turn}")

    def _begin(self, completion: Completion) -> None:
        client, address = self.rounds.client, engine.address_of(self.array)
        brought = rounds.Brought(
            self.declaration,
            address,
            address,
            None,
            self.array,
            self.priority,
            replace(self.reduction.factors, postscale=1.0),
            lambda: self._finish(address),
            stays=True,
        )
        handle: Handle
        if self.name is not None:
            handle = rounds.start(client, self.name, self.group, brought)
        else:
            handle = rounds.start_nameless(client, self.turn, self.group, brought, "mxnet.")
        if engine.IS_NAIVE:
            client.synchronize(handle)
            completion.end()
        else:
            rounds.call_when_over(handle, completion.end)

    def _finish(self, address: int) -> None:
        """What the ranks do with the sum."""
        declaration, reduction = self.declaration, self.reduction
        if reduction.op is Op.AVERAGE and declaration.op is Op.SUM:
            divide(_elements(address, self.array), self.group.size)
        after = reduction.factors.after(
            self.rounds.client, declaration.dtype, address, declaration.count
        )
        if after is not None:
            after()


def _elements(address: int, array: mx.nd.NDArray) -> np.ndarray:
    dtype = np.dtype(array.dtype)
    memory = (ctypes.c_char * (array.size * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype)


def divide(sums: np.ndarray, size: int) -> None:
    """Averages of integers, in place; towards zero."""
    wide: np.ndarray = sums.astype(np.int64)
    sums[...] = wide // size + ((wide < 0) & (wide % size != 0))


def _declaration(
    tensor: mx.nd.NDArray, dtype: DType, reduction: Reduction, operation: str
) -> tuple[Declaration, Group]:
    client = _client.current()
    group = Group(client, reduction.members, operation)
    op = reduction.op
    if op is Op.BROADCAST:
        group.require_root(reduction.root_rank, operation)
    elif op is Op.AVERAGE and dtype in _INTEGERS:
        op = Op.SUM
    reduction.factors.require(dtype, operation)
    shape = tuple(tensor.shape)
    return Declaration(dtype, tensor.size, op, reduction.root_rank, group.listed, shape), group


def declare_all(
    tensors: Iterable[tuple[str, mx.nd.NDArray, int]], reduction: Reduction, operation: str
) -> None:
    """Agrees on (name, tensor, priority) of many at once; one by one, many take seconds."""
    declarations = []
    for name, tensor, priority in tensors:
        declaration, group = _declaration(tensor, check(tensor, operation), reduction, operation)
        declarations.append((name + group.suffix, declaration, priority))
    _client.current().tensors.settle(declarations)


def _settle(client: Client, name: str, declaration: Declaration, priority: int) -> None:
    """Agrees on a new name here, where the engine does not wait. Mismatch if ranks disagree."""
    mismatch = client.tensors.disagreed(name)
    if mismatch is not None:
        raise mismatch
    if client.tensors.is_new(name):
        client.tensors.declare(name, declaration, priority)


def start(
    tensor: mx.nd.NDArray,
    reduction: Reduction,
    name: str | None,
    priority: int,
    operation: str,
    is_fresh: bool = False,
) -> None:
    """Starts a round of `tensor`, in place; who reads it afterwards waits for the result.

    What cannot be carried out raises here. Where ranks disagree the reader gets MXNetError.
    `is_fresh`: it is a new array or a parameter's gradient, which are in the default layout.
    """
    dtype = check(tensor, operation)
    own = current()
    declaration, group = _declaration(tensor, dtype, reduction, operation)
    if tensor.size == 0:
        return
    declaration.require(operation if name is None else f"tensor '{name}'")
    client = own.client
    if name is None:
        turns = 1 if client.nodes_change else _TURNS
        turn = f"talweg.mxnet.{client.count_nameless(f'mxnet{group.suffix}') % turns}"
    else:
        turn = name + group.suffix
        _settle(client, turn, declaration, priority)
    round_ = _Round(own, name, turn, declaration, group, reduction, priority)
    if _is_on_host(tensor) and (is_fresh or not _may_be_in_own_layout(tensor)):
        round_.start(tensor)
        return
    with mx.autograd.pause():
        between = tensor.copyto(mx.cpu())
        round_.start(between)
        between.copyto(tensor)


def _is_on_host(tensor: mx.nd.NDArray) -> bool:
    return bool(tensor.context.device_type.startswith("cpu"))


def _may_be_in_own_layout(tensor: mx.nd.NDArray) -> bool:
    """Whether oneDNN may have arranged its elements as a convolution or a layer wants them."""
    return tensor.ndim >= 2 and engine.keeps_own_layouts()


def copy_of(tensor: Any, operation: str) -> mx.nd.NDArray:
    """A new array for the result of an operation that leaves `tensor` as it is."""
    check(tensor, operation)
    with mx.autograd.pause():
        return tensor.copy()
