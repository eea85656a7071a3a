# SPDX-License-Identifier: Apache-2.0
"""push_pull and the collectives, for arrays and for trees of arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from talweg import _client
from talweg._arguments import chosen_op
from talweg._collectives import collectives
from talweg._collectives.collectives import Kind
from talweg._collectives.kinds import ROOT
from talweg._collectives.process_sets import Group, ProcessSet
from talweg._collectives.scaling import NO_FACTORS, Factors
from talweg._declaration import Op
from talweg._library.native_arguments import checked_priority
from talweg.errors import InvalidArgument
from talweg.jax import _library, _unnamed
from talweg.jax._errors import talweg_errors
from talweg.jax._float0 import without_float0
from talweg.jax._primitive import Comparison, Round
from talweg.jax._random_keys import holds_keys, with_keys, words_of
from talweg.jax._rounds import (
    Plan,
    Started,
    claim,
    collect,
    in_view,
    is_traced,
    plan_round,
    run,
    start,
)


def _as_array(leaf: Any, operation: str) -> Any:
    if isinstance(leaf, jax.core.Tracer):
        return leaf
    try:
        return jnp.asarray(leaf)
    except TypeError as error:
        raise InvalidArgument(
            f"{operation}: {type(leaf).__name__} is not an array: {error}; pass arrays, or a tree of them"
        ) from None


def _name_in(tree_name: str, path: Any, kind: Kind) -> str:
    """Returns the name of one array of a tree. Some operations share a call's name, not its
    tensors.
    """
    name = f"{tree_name}{jax.tree_util.keystr(path)}"
    if kind in (collectives.ALL_REDUCE, collectives.BROADCAST):
        return name
    return f"{name}.{kind.name}"


@dataclasses.dataclass
class _Group:
    """The rounds of one call, as a program performs them."""

    given: list[Any]
    # What is sent: the given arrays, or the words of random keys.
    arrays: list[Any]
    structure: Any
    rounds: list[Round]
    key: str
    # Set if the call has no name.
    comparison: Comparison | None
    size: int


def _plan(
    tree: Any,
    kind: Kind,
    name: str | None,
    process_set: ProcessSet | None,
    op: Op = Op.BROADCAST,
    root_rank: int = 0,
    factors: Factors = NO_FACTORS,
    priority: int = 0,
    round_of: Callable[[Plan, str, Any], Round] | None = None,
    operation: str | None = None,
) -> _Group:
    if name is not None and not isinstance(name, str):
        raise InvalidArgument(
            f"{kind.name}: name is {name!r}; it must be a str, or None for calls in order"
        )
    priority = checked_priority(priority)
    client = _client.current()
    _library.register()
    group = Group(client, process_set, operation or kind.name)
    if ROOT in (kind.gives, kind.gets):
        group.require_root(root_rank, kind.name)
    if kind in (collectives.ALL_REDUCE, collectives.REDUCE):
        tree = without_float0(tree)
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    given = [_as_array(leaf, operation or kind.name) for _, leaf in leaves]
    arrays = []
    for (path, _), array in zip(leaves, given):
        if holds_keys(array):
            place = jax.tree_util.keystr(path)
            array = words_of(array, place, kind, group, operation or kind.name)
        arrays.append(array)
    # Large arrays leave first.
    by_size = sorted(range(len(arrays)), key=lambda at: (arrays[at].size, -at))
    more = {at: extra for extra, at in enumerate(by_size)}
    rounds = []
    for index, ((path, _), array) in enumerate(zip(leaves, arrays)):
        plan = Plan(kind, group, op, root_rank, factors, priority + more[index])
        tensor = _name_in(name or "", path, kind) + group.suffix
        if round_of is not None:
            rounds.append(round_of(plan, tensor, array))
        else:
            rounds.append(plan_round(plan, tensor, array.shape, np.dtype(array.dtype)))
    comparison = None
    if name is None:
        rounds, comparison = _unnamed.named(rounds, kind, op, root_rank, arrays, group)
    view = client.connection.view_suffix
    if comparison is not None:
        comparison = dataclasses.replace(comparison, round=in_view(comparison.round, view))
    key = (_unnamed.KEY if name is None else name) + group.suffix
    rounds = [in_view(each, view) for each in rounds]
    return _Group(given, arrays, structure, rounds, key, comparison, group.size)


def _call(*arguments: Any, **options: Any) -> Any:
    """Plans the call's rounds and performs them."""
    group = _plan(*arguments, **options)
    results = run(group.arrays, group.rounds, group.key, group.comparison, group.size)
    results = [with_keys(*each) for each in zip(group.given, results)]
    return jax.tree_util.tree_unflatten(group.structure, results)


def push_pull(
    tree: Any,
    name: str | None = None,
    op: Op | None = None,
    *,
    average: bool = True,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
) -> Any:
    """Combines the ranks' arrays element by element; returns a tree like the given one.

    `tree` is an array or a tree of arrays, of float32, float16, bfloat16, float64, integers of 8 to
    64 bits or bool. All ranks give the same shapes and dtypes. All arrays of the tree are pushed
    before the first wait. `op` combines the elements. Without `op` they are averaged, or summed if
    `average` is False. The gradient of a sum or an average is the same operation on the cotangents.

    Works eagerly, and inside of jit, grad, scan, while_loop, cond and remat. Under vmap it raises
    InvalidArgument. Calls of one name happen in the program's order, and a name stands for arrays
    of one shape. Calls without a name happen in the program's order among each other. Only the
    ranks of `process_set` take part. Rounds with a larger `priority` overtake others; within the
    tree large arrays overtake small ones. An eager call returns when the result is there. It raises
    Mismatch, which names both ranks, if they differ; inside of jit see talweg_errors().
    """
    return _call(
        tree,
        collectives.ALL_REDUCE,
        name,
        process_set,
        chosen_op(op, average),
        factors=Factors(prescale_factor, postscale_factor),
        priority=priority,
        operation="push_pull",
    )


def push_pull_async(
    tree: Any,
    name: str | None = None,
    op: Op | None = None,
    *,
    average: bool = True,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
) -> Started:
    """Starts push_pull() and returns its handle for synchronize(). Does not wait.

    The handle is a tree of small arrays: one program may start it and another collect it. Collect
    a handle once, before the next call of the name: a second time raises InvalidArgument. It has no
    gradient.
    """
    group = _plan(
        tree,
        collectives.ALL_REDUCE,
        name,
        process_set,
        chosen_op(op, average),
        factors=Factors(prescale_factor, postscale_factor),
        priority=priority,
        operation="push_pull",
    )
    claim(group.rounds, group.key)
    started = start(group.arrays, tuple(group.rounds), group.key)
    return dataclasses.replace(started, structure=group.structure)


def synchronize(handles: Any) -> Any:
    """Returns the results of a handle, or of a tree of handles, after one wait for all.

    All rounds are under way before the first wait, so ranks may start them in any order.
    """
    groups, structure = jax.tree_util.tree_flatten(
        handles, is_leaf=lambda each: isinstance(each, Started)
    )
    for group in groups:
        if not isinstance(group, Started):
            raise InvalidArgument(
                f"synchronize: {type(group).__name__} is not a handle of push_pull_async()"
            )
    if is_traced([ticket for group in groups for ticket in group.tickets]):
        collected = collect(groups)
    else:
        with talweg_errors():
            collected = jax.block_until_ready(collect(groups))
    results = [
        jax.tree_util.tree_unflatten(group.structure, each)
        for group, each in zip(groups, collected)
    ]
    return jax.tree_util.tree_unflatten(structure, results)


def broadcast(
    tree: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    *,
    priority: int = 0,
) -> Any:
    """Returns the arrays of rank `root_rank`, byte for byte, at every rank.

    All ranks give arrays of the same shapes and dtypes. The gradient at the root is the sum of the
    ranks' cotangents; at other ranks it is zero.
    """
    kind = collectives.BROADCAST
    return _call(tree, kind, name, process_set, root_rank=root_rank, priority=priority)


def reduce(
    tree: Any,
    root_rank: int = 0,
    name: str | None = None,
    op: Op | None = None,
    *,
    average: bool = True,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
) -> Any:
    """Runs push_pull(), but only the root gets the result. Others get zeros of the same shape."""
    return _call(
        tree,
        collectives.REDUCE,
        name,
        process_set,
        chosen_op(op, average),
        root_rank,
        Factors(prescale_factor, postscale_factor),
        priority,
    )


def reduce_scatter(
    tree: Any,
    name: str | None = None,
    op: Op | None = None,
    *,
    average: bool = True,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
) -> Any:
    """Combines as push_pull() does. Each rank gets its share of the rows (the first dimension).

    Rows are split evenly. If there is a remainder, the lower ranks get one row more.
    """
    return _call(
        tree,
        collectives.REDUCE_SCATTER,
        name,
        process_set,
        chosen_op(op, average),
        0,
        Factors(prescale_factor, postscale_factor),
        priority,
    )


def _rows_of(array: Any) -> int:
    """Returns the length of the first dimension; plan_round() refuses an array without one."""
    return array.shape[0] if array.shape else 0


def _with_rows(rows: Sequence[int] | None) -> Callable[[Plan, str, Any], Round]:
    def round_of(plan: Plan, tensor: str, array: Any) -> Round:
        listed = None
        if rows is not None:
            listed = [int(count) for count in rows]
            group, own = plan.group, _rows_of(array)
            if len(listed) != group.size or min(listed) < 0 or listed[group.place] != own:
                raise InvalidArgument(
                    f"{plan.kind.name}: rows is {listed}; it must be {group.size} numbers of 0 or "
                    f"more, one for each rank, with this rank's {own} at place {group.place}"
                )
        return plan_round(plan, tensor, array.shape, np.dtype(array.dtype), got_rows=listed)

    return round_of


def all_gather(
    tree: Any,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    *,
    rows: Sequence[int] | None = None,
    priority: int = 0,
) -> Any:
    """Returns the arrays of all ranks, joined along the first dimension, in rank order.

    Takes any dtype of whole bytes. All ranks have equally many rows, or `rows` says how many each
    rank has: XLA needs the shapes in advance. The gradient is a reduce_scatter of the cotangents'
    sum.
    """
    return _call(
        tree,
        collectives.ALL_GATHER,
        name,
        process_set,
        priority=priority,
        round_of=_with_rows(rows),
    )


def gather(
    tree: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    *,
    rows: Sequence[int] | None = None,
    priority: int = 0,
) -> Any:
    """Runs all_gather(), but only the root gets the result. Others get zeros of the same shape."""
    return _call(
        tree,
        collectives.GATHER,
        name,
        process_set,
        root_rank=root_rank,
        priority=priority,
        round_of=_with_rows(rows),
    )


def scatter(
    tree: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    *,
    priority: int = 0,
) -> Any:
    """Gives each rank its share of the rows of the root's arrays, as reduce_scatter() splits them.

    All ranks give arrays of the same shapes and dtypes; only the root's values are read.
    """
    kind = collectives.SCATTER
    return _call(tree, kind, name, process_set, root_rank=root_rank, priority=priority)


def all_to_all(
    tensor: Any,
    splits: Sequence[Sequence[int]] | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    *,
    priority: int = 0,
) -> tuple[Any, list[int]]:
    """Sends rows of an array to every rank, and gets rows from every rank.

    `splits[i][j]` rows go from the group's rank i to its rank j. All ranks give the same `splits`,
    because XLA needs the shapes in advance. Without `splits` the rows are split evenly; their
    number must allow that. Returns the rows from all ranks, joined in rank order, and how many rows
    came from each rank.
    """
    received: list[int] = []

    def round_of(plan: Plan, tensor: str, array: Any) -> Round:
        rows, size, place = _rows_of(array), plan.group.size, plan.group.place
        if splits is not None:
            every = [[int(count) for count in each] for each in splits]
        elif rows % size == 0:
            every = [[rows // size] * size] * size
        else:
            raise InvalidArgument(
                f"all_to_all: {rows} rows do not divide among {size} ranks: pass splits=[...]"
            )
        if [len(each) for each in every] != [size] * size or min(map(min, every)) < 0:
            raise InvalidArgument(
                f"all_to_all: splits is {every}; it must be {size} lists of {size} numbers of 0 or "
                "more: how many rows each rank sends to each"
            )
        if sum(every[place]) != rows:
            raise InvalidArgument(
                f"all_to_all: splits[{place}] is {every[place]}, which does not add up to this "
                f"rank's {rows} rows"
            )
        received.extend(each[place] for each in every)
        longest = max(map(max, every))
        shape, dtype = array.shape, np.dtype(array.dtype)
        return plan_round(plan, tensor, shape, dtype, every[place], received, longest)

    result = _call(
        tensor, collectives.ALL_TO_ALL, name, process_set, priority=priority, round_of=round_of
    )
    return result, received


def broadcast_parameters(
    parameters: Any,
    root_rank: int = 0,
    name: str = "parameters",
    process_set: ProcessSet | None = None,
) -> Any:
    """broadcast() of a model's or an optimizer's tree before the first step; returns the tree."""
    return broadcast(parameters, root_rank, name, process_set)
