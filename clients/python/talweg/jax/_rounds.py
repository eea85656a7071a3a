# SPDX-License-Identifier: Apache-2.0
"""What each rank gives to a call and gets from it, and the call's gradient."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from talweg import _client
from talweg._collectives.collectives import ALL_TO_ALL, Kind, split_evenly
from talweg._collectives.kinds import OWN, ROOT, ROW, WHOLE
from talweg._collectives.process_sets import Group
from talweg._collectives.reduction_calls import check_reduction
from talweg._collectives.scaling import NO_FACTORS, Factors
from talweg._declaration import NUMPY_DTYPES, DType, Op, shape_signature
from talweg.errors import InvalidArgument, Unsupported
from talweg.jax._errors import talweg_errors
from talweg.jax._primitive import Comparison, Round, collect_p, start_p

_BFLOAT16 = np.dtype(jnp.bfloat16)


@dataclasses.dataclass(frozen=True)
class Plan:
    """A call of one array: `parts` are its rows by ranks, where ranks give or get parts."""

    kind: Kind
    group: Group
    op: Op = Op.BROADCAST
    root_rank: int = 0
    factors: Factors = NO_FACTORS
    priority: int = 0


def wire_dtype(dtype: np.dtype, operation: str) -> DType:
    """Returns the wire's name of a dtype. Raises InvalidArgument if Talweg cannot sum the dtype."""
    if dtype == _BFLOAT16:
        return DType.BF16
    known = NUMPY_DTYPES.get(dtype)
    if known is None:
        names = ", ".join([*(str(each) for each in NUMPY_DTYPES), "bfloat16"])
        raise InvalidArgument(
            f"{operation}: arrays of dtype {dtype} cannot be combined; these can: {names}"
        )
    return known


def _copied_dtype(dtype: np.dtype, operation: str) -> tuple[DType, int]:
    """Returns, for a copy, a wire dtype and how many of its elements make one of the array's."""
    if dtype.name in ("int2", "uint2", "int4", "uint4", "float4_e2m1fn"):
        raise InvalidArgument(
            f"{operation}: elements of dtype {dtype} are smaller than a byte: convert them to int8"
        )
    known = DType.BF16 if dtype == _BFLOAT16 else NUMPY_DTYPES.get(dtype)
    return (known, 1) if known is not None else (DType.U8, dtype.itemsize)


def require_rows(shape: Sequence[int], kind: Kind) -> int:
    """Returns the length of the first dimension. Raises InvalidArgument if there is none."""
    if not shape:
        raise InvalidArgument(
            f"{kind.name}: an array of no dimensions has no rows: use array.reshape(1)"
        )
    return shape[0]


def plan_round(
    plan: Plan,
    tensor: str,
    shape: tuple[int, ...],
    dtype: np.dtype,
    given_rows: Sequence[int] | None = None,
    got_rows: Sequence[int] | None = None,
    longest: int | None = None,
) -> Round:
    """Returns the round of an array.

    `given_rows` and `got_rows` are the rows of each part that ranks give and get, if the kind does
    not imply them: for all_gather and gather each rank's rows, for all_to_all the rows to and from
    each rank. `longest` is the rows of the longest part, if these are not all parts.
    """
    kind, group = plan.kind, plan.group
    place = group.place
    root = plan.root_rank if ROOT in (kind.gives, kind.gets) else 0
    is_root = group.ranks[place] == root
    if kind.reduces:
        wire, units = wire_dtype(dtype, kind.name), 1
        check_reduction(wire, plan.op, kind.name)
        plan.factors.require(wire, kind.name)
    else:
        wire, units = _copied_dtype(dtype, kind.name)

    result_rows: int | None = None
    if kind.part_count(group.size) == 1:
        row_count = math.prod(shape)
        parts, row_shape = [1], shape
        given, got = parts, parts
    else:
        rows, row_shape = require_rows(shape, kind), shape[1:]
        if kind is ALL_TO_ALL:
            given = list(given_rows or [])
            got = list(got_rows or [])
            parts = [*given, *got, longest or 0]
            result_rows = sum(got)
        elif kind.gives == OWN:
            parts = list(got_rows) if got_rows is not None else [rows] * group.size
            given, got = [rows], parts
            result_rows = sum(parts)
        else:
            parts = split_evenly(rows, group.size)
            given, got = parts, [parts[place]]
            result_rows = parts[place]
        row_count = math.prod(row_shape)
    if kind.gives == ROOT and not is_root:
        given = []
    gets = kind.gets != ROOT or is_root
    row_bytes = row_count * dtype.itemsize
    return Round(
        tensor=tensor,
        dtype=int(wire),
        op=int(plan.op),
        shares=(kind.gives, kind.gets),
        root_rank=root,
        priority=plan.priority,
        element_count=max(parts, default=0) * row_count * units,
        ranks=group.listed,
        given=tuple(count * row_bytes for count in given),
        got=tuple(count * row_bytes for count in got) if gets else (),
        prescale=float(plan.factors.prescale),
        postscale=float(plan.factors.postscale),
        # If each rank gives its own parts, their numbers of rows may differ.
        signature=shape_signature(row_shape if kind.gives in (OWN, ROW) else shape),
        compares=False,
        shape=shape if result_rows is None else (result_rows, *row_shape),
        result_dtype=dtype,
    )


_numbered = False  # Whether a program may have a round that depends on ranks' numbers.


def in_view(each: Round, suffix: str) -> Round:
    """Returns the round under its name in that view, if it depends on ranks' numbers."""
    global _numbered
    if each.shares == (WHOLE, WHOLE) and not each.ranks:
        return each
    _numbered = True
    return dataclasses.replace(each, tensor=each.tensor + suffix)


def _forget_programs() -> None:
    """Makes JAX compile programs again, with ranks' new numbers."""
    global _numbered
    if _numbered:
        _numbered = False
        jax.clear_caches()


_client.call_when_numbers_change(_forget_programs)


def _transposed(each: Round, shape: tuple[int, ...], size: int) -> Round:
    """Returns the round that turns a result's cotangents into the input's cotangents."""
    gives, gets = each.shares
    tensor = f"{each.tensor}.gradient"
    if (gives, gets) == (WHOLE, WHOLE):
        return dataclasses.replace(each, tensor=tensor)
    factor = each.prescale * each.postscale
    if each.op == Op.AVERAGE:
        factor /= size
    turned = (gives, gets) if gives == ROW else (gets, gives)
    return dataclasses.replace(
        each,
        tensor=tensor,
        shares=turned,
        op=int(Op.SUM if turned[0] == WHOLE else Op.BROADCAST),
        given=each.got,
        got=each.given,
        prescale=1.0,
        postscale=factor,
        shape=shape,
    )


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["tickets"],
    meta_fields=["rounds", "key", "structure"],
)
@dataclasses.dataclass(frozen=True)
class Started:
    """An open group of rounds. It is a tree for JAX, so a program may give or take it."""

    tickets: list[Any]
    rounds: tuple[Round, ...]
    key: str
    # The structure of the tree that was given.
    structure: Any = None


def start(
    operands: Sequence[Any],
    rounds: tuple[Round, ...],
    key: str,
    comparison: Comparison | None = None,
) -> Started:
    """Pushes the rounds. Waits for nothing but a comparison.

    Collect the group before the next group of its key starts.
    """
    tickets = start_p.bind(*operands, rounds=rounds, key=key, comparison=comparison)
    return Started(tickets, rounds, key)


def collect(groups: Sequence[Started]) -> list[list[Any]]:
    """Returns the results of each group, when all are there. A rank that gets nothing has zeros."""
    tickets = [ticket for group in groups for ticket in group.tickets]
    rounds = tuple(each for group in groups for each in group.rounds)
    keys = tuple(dict.fromkeys(group.key for group in groups))
    bound = collect_p.bind(*tickets, rounds=rounds, keys=keys) if rounds else []
    results = iter(
        result if each.got else jnp.zeros(each.shape, each.result_dtype)
        for each, result in zip(rounds, bound)
    )
    return [[next(results) for _ in group.rounds] for group in groups]


def _results(
    operands: Sequence[Any],
    rounds: tuple[Round, ...],
    key: str,
    comparison: Comparison | None = None,
) -> list[Any]:
    return collect([start(operands, rounds, key, comparison)])[0]


@cache
def _differentiable(
    rounds: tuple[Round, ...],
    key: str,
    comparison: Comparison | None,
    shapes: tuple[tuple[int, ...], ...],
    size: int,
) -> Callable[..., Any]:
    """Returns the group as a function whose gradient JAX knows."""
    floats = [
        index for index, each in enumerate(rounds) if jnp.issubdtype(each.result_dtype, jnp.inexact)
    ]

    @jax.custom_vjp
    def call(*operands: Any) -> list[Any]:
        return _results(operands, rounds, key, comparison)

    def forward(*operands: Any) -> tuple[list[Any], None]:
        return call(*operands), None

    def backward(_: None, cotangents: list[Any]) -> tuple[Any, ...]:
        for index in floats:
            if DType(rounds[index].dtype) is DType.U8:
                raise Unsupported(
                    f"'{rounds[index].tensor}': arrays of dtype {rounds[index].result_dtype} have no "
                    "gradient: Talweg cannot sum them; use a float of 16 bits or more"
                )
        turned = tuple(_transposed(rounds[index], shapes[index], size) for index in floats)
        gradients: list[Any] = [None] * len(rounds)
        if turned:
            given_shapes = tuple(rounds[index].shape for index in floats)
            call_back = _differentiable(turned, f"{key}.gradient", None, given_shapes, size)
            for index, gradient in zip(floats, call_back(*(cotangents[at] for at in floats))):
                gradients[index] = gradient
        return tuple(gradients)

    call.defvjp(forward, backward)
    return call


@cache
def _undifferentiable(
    rounds: tuple[Round, ...], key: str, comparison: Comparison | None
) -> Callable[..., Any]:
    """Returns the group as a function that raises if its gradient is asked for: it has none."""

    @jax.custom_vjp
    def call(*operands: Any) -> list[Any]:
        return _results(operands, rounds, key, comparison)

    def forward(*_: Any) -> NoReturn:
        raise Unsupported(
            f"'{rounds[0].tensor}': {Op(rounds[0].op).name.lower()} has no gradient: use a sum or an "
            "average, or jax.lax.stop_gradient on what is given"
        )

    call.defvjp(forward, lambda _, cotangents: (None,))
    return call


_LINEAR = (Op.SUM, Op.AVERAGE, Op.BROADCAST)
# The key that orders a tensor's rounds, by tensor.
_keys: dict[str, str] = {}


def claim(rounds: Sequence[Round], key: str) -> None:
    """Raises InvalidArgument if calls of another key use a tensor: nothing would order the two."""
    for each in rounds:
        if _keys.setdefault(each.tensor, key) != key:
            raise InvalidArgument(
                f"the tensor '{each.tensor}' belongs to calls named '{_keys[each.tensor]}' and is "
                f"now used by calls named '{key}', which nothing orders: give one of them another "
                "name"
            )


def is_traced(arrays: Sequence[Any]) -> bool:
    """Whether the call is traced into a program. Otherwise it is made now."""
    return any(isinstance(array, jax.core.Tracer) for array in arrays)


# Compiles each call that is made outside of programs.
_compiled = cache(jax.jit)


def run(
    operands: Sequence[Any],
    rounds: Sequence[Round],
    key: str,
    comparison: Comparison | None,
    size: int,
) -> list[Any]:
    """Performs the group, or adds it to the program that is being traced."""
    claim(rounds, key)
    group = tuple(rounds)
    if not group:
        return []
    if all(Op(each.op) in _LINEAR for each in group):
        shapes = tuple(operand.shape for operand in operands)
        call = _differentiable(group, key, comparison, shapes, size)
    else:
        call = _undifferentiable(group, key, comparison)
    if is_traced(operands):
        return list(call(*operands))
    with talweg_errors():
        return list(jax.block_until_ready(_compiled(call)(*operands)))
