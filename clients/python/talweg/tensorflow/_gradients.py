# SPDX-License-Identifier: Apache-2.0
"""Combines the gradients of one step over the ranks, for optimizers and tapes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from talweg import _client
from talweg._arguments import factor_of, require_compressor
from talweg._collectives.process_sets import Group
from talweg._declaration import Op
from talweg.errors import InvalidArgument
from talweg.tensorflow import _ops
from talweg.tensorflow._compression import NoneCompressor
from talweg.tensorflow._rounds import Reduction


def key_of(variable: Any) -> Any:
    """Returns a key that is the same for a variable of Keras and the tf.Variable within it."""
    value = getattr(variable, "value", None)  # Keras 3 keeps the tf.Variable there.
    inner = value if isinstance(value, tf.Variable) else variable
    return inner.ref() if hasattr(inner, "ref") else id(inner)


# A tensor, its name, and the way it is combined.
_Round = tuple[tf.Tensor, str, Reduction]


@dataclass
class Choices:
    """How gradients are combined."""

    op: Op = Op.AVERAGE
    compression: Any = NoneCompressor
    prescale: float = 1.0
    postscale: float = 1.0
    sparse_as_dense: bool = False
    process_set: Any = None  # A talweg.ProcessSet; None: all ranks.
    # The keys of variables whose gradients are not combined. With scale_local they are divided by
    # the number of ranks.
    local: set[Any] = field(default_factory=set)
    scale_local: bool = True
    # A rank that enters a running job may make steps of its own until it has the job's state.
    own_at_entry: bool = False
    # Says at run time whether this rank takes part.
    takes_part: Callable[[], bool] = lambda: True
    is_adasum: bool = False  # See Reduction.
    # Makes the call that combines gradients. So it may raise other errors in place of Talweg's.
    guard: Callable[[Callable[[], Any]], Any] = lambda call: call()

    def __post_init__(self) -> None:
        require_compressor(self.compression, "gradients")

    def add_local(self, variables: Iterable[Any]) -> None:
        self.local.update(key_of(variable) for variable in variables)

    def reduction(self, priority: int) -> Reduction:
        """Says how a dense gradient is combined."""
        return Reduction(
            self.op,
            self.prescale,
            self.postscale,
            self.process_set,
            priority,
            own_at_entry=self.own_at_entry,
            is_adasum=self.is_adasum,
        )


class Slices:
    """A gradient that is tf.IndexedSlices."""

    def __init__(self, gradient: tf.IndexedSlices, name: str | None, choices: Choices) -> None:
        if choices.is_adasum or choices.op not in (Op.AVERAGE, Op.SUM):
            raise InvalidArgument(
                "the ranks' tf.IndexedSlices can only be summed or averaged: use "
                "sparse_as_dense=True"
            )
        self._dense_shape = gradient.dense_shape
        self._choices = choices
        self._name = name
        self._values, self._context = choices.compression.compress(
            tf.convert_to_tensor(gradient.values)
        )
        self._indices = tf.convert_to_tensor(gradient.indices)

    def gather(self) -> tf.IndexedSlices:
        """Returns all ranks' rows. An index may come several times: its rows count as their sum.

        Averages of integers are floating, as TensorFlow's quotients are.
        """
        choices, name = self._choices, self._name
        names = (None, None) if name is None else (f"{name}.values", f"{name}.indices")
        gathered, indices = _ops.gather_many(
            (self._values, self._indices),
            names,
            choices.process_set,
            of_some=True,
            own_at_entry=choices.own_at_entry,
        )
        gathered = choices.compression.decompress(gathered, self._context)
        if choices.op is Op.AVERAGE:
            gathered = _quotient(gathered, choices.process_set)
        factor = choices.prescale * choices.postscale
        return self._of(_times(gathered, factor), indices)

    def sum(self, variable: Any, priority: int) -> tf.IndexedSlices:
        """Returns the ranks' rows, each of them once, as an optimizer applies them.

        It is what gather() returns, up to rounding. If neither the gradient nor the variable says
        how many rows there are, it is that.
        """
        rows = self._row_count(variable)
        if rows is None:
            return self.gather()
        choices, name = self._choices, self._name
        how = choices.reduction(priority)
        is_whole = self._values.dtype.is_integer
        if is_whole:
            how = replace(how, op=Op.SUM, prescale=1.0, postscale=1.0)
        own = None if name is None else f"{name}.rows"
        of = (self._values, self._indices, rows, own, how)
        summed, indices = _ops.sum_rows(*of, whole=name)
        summed = choices.compression.decompress(summed, self._context)
        if is_whole:
            if choices.op is Op.AVERAGE:
                summed = _quotient(summed, choices.process_set)
            summed = _times(summed, choices.prescale * choices.postscale)
        return self._of(summed, indices)

    def _row_count(self, variable: Any) -> tf.Tensor | None:
        if self._dense_shape is not None:
            return tf.cast(tf.convert_to_tensor(self._dense_shape)[0], tf.int64)
        shape = tf.TensorShape(getattr(variable, "shape", None))
        if not shape.rank or shape[0] is None:
            return None
        return tf.constant(shape[0], tf.int64)

    def _of(self, values: tf.Tensor, indices: tf.Tensor) -> tf.IndexedSlices:
        return tf.IndexedSlices(values, indices, self._dense_shape)


def _quotient(values: tf.Tensor, process_set: Any) -> tf.Tensor:
    """Returns the values divided by the number of ranks; floating, also of integers."""
    if values.dtype.is_integer:
        values = tf.cast(values, tf.float64 if values.dtype.size > 2 else tf.float32)
    return _divided(values, process_set)


def _times(values: tf.Tensor, factor: float) -> tf.Tensor:
    return values if factor == 1.0 else values * tf.cast(factor, values.dtype)


def _reduce(rounds: Sequence[_Round]) -> list[tf.Tensor]:
    tensors, names, hows = zip(*rounds) if rounds else ((), (), ())
    return _ops.reduce_many(tensors, names, hows)


@_ops.plain
def combine(
    gradients: Sequence[Any],
    variables: Sequence[Any] | None,
    choices: Choices,
    base: str = "gradients",
) -> list[Any]:
    """Returns the ranks' gradients combined. Those that are None stay None; all ranks must agree.

    Each gradient leaves as soon as it is computed. The first ones have the highest priority,
    because the next forward pass needs them first. Ranks find each other's gradients by their
    numbers, in which local variables do not count: ranks may have different numbers of these.
    """
    return list(choices.guard(lambda: _combine(gradients, variables, choices, base)))


@_ops.plain
def _combine(
    gradients: Sequence[Any], variables: Sequence[Any] | None, choices: Choices, base: str
) -> list[Any]:
    client = _client.current()
    if not choices.takes_part():
        return list(gradients)
    # Raises for a rank outside the set, before it pushes anything.
    Group(client, choices.process_set, "push_pull")
    base = _ops.unique_name("", None, base) or base
    results = list(gradients)
    dense: list[tuple[int, int]] = []  # The index of each gradient, and its number.
    sliced: list[tuple[int, int, Slices]] = []
    number = -1
    for index, gradient in enumerate(gradients):
        if variables is not None and key_of(variables[index]) in choices.local:
            if choices.scale_local and gradient is not None:
                results[index] = _divided(gradient, choices.process_set)
            continue
        number += 1
        if gradient is None:
            continue
        if isinstance(gradient, tf.IndexedSlices) and not choices.sparse_as_dense:
            sliced.append((index, number, Slices(gradient, f"{base}.{number}", choices)))
        else:
            dense.append((index, number))
    pushed = [choices.compression.compress(tf.convert_to_tensor(gradients[i])) for i, _ in dense]
    rounds = [
        (tensor, f"{base}.{number}", choices.reduction(-number))
        for (_, number), (tensor, _) in zip(dense, pushed)
    ]
    for index, number, slices in sliced:
        variable = None if variables is None else variables[index]
        results[index] = slices.sum(variable, -number)
    combined = _reduce(rounds)
    for (index, _), result, (_, context) in zip(dense, combined, pushed):
        results[index] = choices.compression.decompress(result, context)
    return results


def _divided(gradient: Any, process_set: Any) -> Any:
    """Divides the gradient by the number of ranks."""
    if isinstance(gradient, tf.IndexedSlices):
        values = _divided(gradient.values, process_set)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    size = _ops.size_of(process_set, "push_pull", gradient)
    return gradient / tf.cast(size, gradient.dtype)


def predivided(op: Op, factor: float) -> tuple[Op, float, float]:
    """Returns the operation and the factors before and after it for a gradient_predivide_factor.

    The average divides by the number of ranks at the time of the round.
    """
    factor = factor_of(factor, "gradient_predivide_factor")
    if factor == 1.0:
        return op, 1.0, 1.0
    if op is not Op.AVERAGE:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if factor <= 0:
        raise InvalidArgument(f"gradient_predivide_factor is {factor}; it must be larger than 0")
    return op, 1.0 / factor, factor


def check_groups(num_groups: int, groups: Any) -> None:
    """Raises ValueError for bad groups. Groups have no effect: small tensors travel together."""
    if not isinstance(num_groups, int) or num_groups < 0:
        raise ValueError(f"num_groups is {num_groups!r}; it must be a number of 0 or more")
    if groups is None:
        return
    if isinstance(groups, int) and not isinstance(groups, bool):
        if groups <= 0:
            raise ValueError(f"groups is {groups}; a number of groups must be larger than 0")
        return
    is_lists = isinstance(groups, list) and all(
        isinstance(group, Collection) and not isinstance(group, str) for group in groups
    )
    if not is_lists:
        raise ValueError("groups should be a non-negative integer or a list of lists of variables")
    seen: set[Any] = set()
    for group in groups:
        for variable in group:
            if key_of(variable) in seen:
                raise ValueError("a variable can only be in one of the groups")
            seen.add(key_of(variable))
