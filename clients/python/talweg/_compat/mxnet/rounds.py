# SPDX-License-Identifier: Apache-2.0
"""Rounds of NDArrays by the other systems' rules, each an operation in MXNet's engine.

Calls return at once. A tensor's rounds follow each other in the order of the calls; those of
different tensors may end in any order.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import mxnet as mx
import numpy as np

from talweg import _client
from talweg._client import Client, Declared
from talweg._compat import session
from talweg._compat.mxnet import engine
from talweg._compat.mxnet.engine import Completion
from talweg._declaration import Declaration, DType, Op, numpy_dtype
from talweg._process_sets import Group, ProcessSet
from talweg._scaling import NO_FACTORS, Factors
from talweg.errors import InvalidArgument, Mismatch

# How long closing waits for what the engine has still to do, before it fails.
_FLUSH_S = 10.0
_INTEGERS = (DType.I8, DType.U8, DType.I32, DType.I64)


@dataclass(frozen=True)
class Reduction:
    """What a round does with the ranks' tensors."""

    op: Op
    factors: Factors = NO_FACTORS
    members: ProcessSet | None = None  # None: all ranks.
    root_rank: int = 0


class Rounds:
    """One client's."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.session = session.current()
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


class _Round:
    """One under way."""

    def __init__(
        self, rounds: Rounds, name: str | None, declared: Declared, reduction: Reduction
    ) -> None:
        self._rounds = rounds
        self._name = name  # As the caller says it.
        self._declared = declared
        self._reduction = reduction
        self._priority = 0
        self._array: Any = None

    def start(self, array: mx.nd.NDArray, priority: int) -> None:
        """`array` is in the default layout when its turn comes."""
        self._array = engine.alias(array)
        self._priority = priority
        turn = self._rounds.turn_of(self._declared.name)
        engine.push([self._array, turn], self._begin, priority, f"talweg.{self._declared.name}")

    def _begin(self, completion: Completion) -> None:
        client, declared = self._rounds.client, self._declared
        address, declaration = engine.address_of(self._array), declared.declaration
        pushed_at, keep, factors = address, None, self._reduction.factors
        if factors.prescale != 1.0:
            keep, pushed_at = factors.scaled(client, declaration.dtype, address, declaration.nbytes)
        handle = client.push_declared(
            declared,
            pushed_at,
            address,
            self._priority,
            keep=keep,
            finish=lambda: self._finish(address),
        )

        def take() -> None:
            failure: Exception | None = None
            try:
                client.synchronize(handle)
            except Exception as error:
                failure = error
            if isinstance(failure, Mismatch):
                self._rounds.session.spoil(self._name, declaration.ranks)
            completion.end(failure)

        if engine.IS_NAIVE:
            take()
        elif not client.completions.watch(handle.tensor, handle.round, take):
            client.completions.call(take)  # Taking it tells why.

    def _finish(self, address: int) -> None:
        """What the ranks do with the sum."""
        declaration = self._declared.declaration
        if self._reduction.op is Op.AVERAGE and declaration.op is Op.SUM:
            members = self._reduction.members
            size = self._rounds.client.size if members is None else members.size()
            divide(_elements(address, self._array), size)
        after = self._reduction.factors.after(
            self._rounds.client, declaration.dtype, address, declaration.count
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
    return Declaration(dtype, tensor.size, op, reduction.root_rank, group.listed), group


def declare_all(
    tensors: Iterable[tuple[str, mx.nd.NDArray, int]], reduction: Reduction, operation: str
) -> None:
    """Agrees on (name, tensor, priority) of many at once; one by one, many take seconds."""
    life = session.current()
    declarations = []
    for name, tensor, priority in tensors:
        declaration, group = _declaration(tensor, check(tensor, operation), reduction, operation)
        declarations.append(
            (life.name_for(name, declaration) + group.suffix, declaration, priority)
        )
    _client.current().tensors.declare_all(declarations)


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
    rounds = current()
    declaration, group = _declaration(tensor, dtype, reduction, operation)
    if tensor.size == 0:
        return
    if name is None:
        kind = "broadcast" if reduction.op is Op.BROADCAST else "push_pull"
        wire_name = rounds.client.nameless(f"mxnet.{kind}{group.suffix}", declaration)
    else:
        wire_name = rounds.session.name_for(name, declaration) + group.suffix
    try:
        declared = rounds.client.tensors.declare(wire_name, declaration, priority)
    except Mismatch:
        rounds.session.spoil(name, declaration.ranks)
        raise
    round_ = _Round(rounds, name, declared, reduction)
    if _is_on_host(tensor) and (is_fresh or not _may_be_in_own_layout(tensor)):
        round_.start(tensor, priority)
        return
    with mx.autograd.pause():
        between = tensor.copyto(mx.cpu())
        round_.start(between, priority)
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
