# SPDX-License-Identifier: Apache-2.0
"""Rounds of NDArrays by the other systems' rules. Each is an operation in MXNet's engine.

Calls return at once. The rounds of one tensor run in the order of the calls. Rounds of different
tensors may end in any order.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import mxnet as mx
import numpy as np

from talweg import _client
from talweg._client import Client, Handle
from talweg._collectives import rounds
from talweg._collectives.process_sets import Group, ProcessSet
from talweg._collectives.scaling import NO_FACTORS, Factors, average_integers
from talweg._compat.mxnet import engine
from talweg._compat.mxnet.engine import Completion
from talweg._declaration import Declaration, DType, Encoding, Op, numpy_dtype
from talweg.errors import InvalidArgument, Mismatch, WrongType

# How long closing waits for the engine's operations before it closes all the same.
_FLUSH_S = 10.0
_INTEGERS = (DType.I8, DType.U8, DType.I32, DType.I64)
# How many rounds without a name may be under way at the same time.
_TURNS = 2


@dataclass(frozen=True)
class Reduction:
    """What a round does with the ranks' tensors."""

    op: Op
    factors: Factors = NO_FACTORS
    members: ProcessSet | None = None  # None: all ranks.
    root_rank: int = 0
    # A sum of fewer ranks, because some are lost, is scaled to so many. 0: it stays as it is.
    counts_as: int = 0

    @property
    def operation(self) -> str:
        return "broadcast" if self.op is Op.BROADCAST else "push_pull"


@dataclass(frozen=True)
class Travel:
    """How an array travels."""

    encoding: Encoding = Encoding.PLAIN
    # Called with the address of the array's elements when they are complete, before they leave. It
    # may change them.
    prepare: Callable[[int], None] | None = None


AS_IT_IS = Travel()


class Rounds:
    """The rounds of one client."""

    def __init__(self, client: Client) -> None:
        self.client = client
        # An array for each tensor, which its rounds change, so the engine runs them one by one.
        self._turns: dict[str, mx.nd.NDArray] = {}
        client.call_before_closing(self._flush)

    def _flush(self) -> None:
        """Waits for the rounds that this rank has been told to take part in."""
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
# How long one wait for the engine takes. Ctrl-C is handled between two waits.
_LOOK_S = 0.2


def _finish_operations() -> None:
    while not engine.wait_for_all(_LOOK_S):
        pass


def _forget_lost(_: Client) -> None:
    """Clears the failures of the earlier client's operations, and of those after them."""
    global _current
    if _current is not None:
        engine.forget_failures()
        _current = None


_client.call_at_end_of_step(_finish_operations)
_client.call_when_replaced(_forget_lost)


def current() -> Rounds:
    """Returns the current client's rounds; raises NotInitialized before init()."""
    global _current
    client = _client.current()
    if _current is None or _current.client is not client:
        _current = Rounds(client)
    return _current


def check(tensor: Any, operation: str) -> DType:
    """Returns the tensor's dtype.

    Raises WrongType if it is no NDArray, InvalidArgument if it is not dense, and MXNetError if its
    dtype has no rounds.
    """
    if not isinstance(tensor, mx.nd.NDArray):
        raise WrongType(f"{operation}: expected an mxnet.nd.NDArray, got {type(tensor).__name__}")
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
    """A round that is under way."""

    rounds: Rounds
    name: str | None
    turn: str  # Rounds with the same turn run one after the other.
    declaration: Declaration
    group: Group
    reduction: Reduction
    priority: int
    travel: Travel = AS_IT_IS
    mismatch: Mismatch | None = None  # Why the round fails, if that is known before it begins.
    array: Any = None

    def start(self, array: mx.nd.NDArray) -> None:
        """Queues the round. `array` must be in MXNet's default layout when the round begins."""
        self.array = engine.alias(array)
        turn = self.rounds.turn_of(self.turn)
        engine.push([self.array, turn], self._begin, self.priority, f"talweg.{self.turn}")

    def _begin(self, completion: Completion) -> None:
        if self.mismatch is not None:
            raise self.mismatch
        client, address = self.rounds.client, engine.address_of(self.array)
        if self.travel.prepare is not None:
            self.travel.prepare(address)
        brought = rounds.Brought(
            self.declaration,
            address,
            address,
            None,
            self.array,
            self.priority,
            replace(self.reduction.factors, postscale=1.0),
            stays=True,
        )
        handle: Handle
        if self.name is not None:
            handle = rounds.start(client, self.name, self.group, brought)
        else:
            handle = rounds.start_nameless(client, self.turn, self.group, brought, "mxnet.")

        def over(failure: Exception | None) -> None:
            if failure is None:
                self._finish(address, handle.ranks_summed or self.group.size)
            completion.end(failure)

        if engine.IS_NAIVE:
            client.synchronize(handle)
            over(None)
        else:
            rounds.call_when_over(handle, over)

    def _finish(self, address: int, ranks: int) -> None:
        """Divides and scales the sum of so many ranks, at this rank."""
        declaration, reduction = self.declaration, self.reduction
        factors = reduction.factors
        if reduction.op is Op.AVERAGE and declaration.op is Op.SUM:
            average_integers(_elements(address, self.array), ranks, factors.postscale)
            return
        if reduction.counts_as not in (0, ranks):
            factors = Factors(postscale=factors.postscale * reduction.counts_as / ranks)
        after = factors.after(self.rounds.client, declaration.dtype, address, declaration.count)
        if after is not None:
            after()


def _elements(address: int, array: mx.nd.NDArray) -> np.ndarray:
    dtype = np.dtype(array.dtype)
    memory = (ctypes.c_char * (array.size * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype)


def _declaration(
    tensor: mx.nd.NDArray, dtype: DType, reduction: Reduction, operation: str, encoding: Encoding
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
    of = (dtype, tensor.size, op, reduction.root_rank, group.listed, shape)
    return Declaration(*of, encoding=encoding), group


def declare_all(
    tensors: Iterable[tuple[str, mx.nd.NDArray, int, Encoding]],
    reduction: Reduction,
    operation: str,
) -> None:
    """Agrees on many (name, tensor, priority, encoding) at once. One by one, many take seconds."""
    declarations = []
    for name, tensor, priority, encoding in tensors:
        dtype = check(tensor, operation)
        declaration, group = _declaration(tensor, dtype, reduction, operation, encoding)
        declarations.append((name + group.suffix, declaration, priority))
    _client.current().tensors.settle(declarations)


def _settle(client: Client, name: str, declaration: Declaration, priority: int) -> Mismatch | None:
    """Agrees on a new name here, as an operation must not wait. Returns the disagreement, if any.

    The rank that declares a name first hears of a disagreement in the round, and the others hear of
    it here. All have started the same rounds if it fails the round everywhere.
    """
    mismatch = client.tensors.disagreed(name)
    if mismatch is None and client.tensors.is_new(name):
        try:
            client.tensors.declare(name, declaration, priority)
        except Mismatch as disagreement:
            return disagreement
    return mismatch


def start(
    tensor: mx.nd.NDArray,
    reduction: Reduction,
    name: str | None,
    priority: int,
    operation: str,
    is_fresh: bool = False,
    travel: Travel = AS_IT_IS,
) -> None:
    """Starts a round of `tensor`, in place. Reading the tensor waits for the result.

    Raises at the call if the round cannot be carried out. If ranks disagree, reading the tensor
    raises MXNetError. `is_fresh` says that it is a new array or a parameter's gradient, which are
    in MXNet's default layout.
    """
    dtype = check(tensor, operation)
    own = current()
    declaration, group = _declaration(tensor, dtype, reduction, operation, travel.encoding)
    declaration.require(operation if name is None else f"tensor '{name}'")
    client = own.client
    mismatch = None
    if name is None:
        turns = 1 if client.nodes_change else _TURNS
        turn = f"talweg.mxnet.{client.count_nameless(f'mxnet{group.suffix}') % turns}"
    else:
        turn = name + group.suffix
        mismatch = _settle(client, turn, declaration, priority)
    round_ = _Round(own, name, turn, declaration, group, reduction, priority, travel, mismatch)
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
    """Whether oneDNN may keep the elements in the layout of a convolution or another layer."""
    return tensor.ndim >= 2 and engine.keeps_own_layouts()


def copy_of(tensor: Any, operation: str) -> mx.nd.NDArray:
    """Returns a copy, for the result of an operation that leaves `tensor` as it is."""
    check(tensor, operation)
    with mx.autograd.pause():
        return tensor.copy()
