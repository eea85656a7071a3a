# SPDX-License-Identifier: Apache-2.0
"""Arrays of random keys (jax.random.key), such as dropout has in a model's state.

A copy sends the words of the keys, which are a last dimension of the array.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from talweg._collectives.kinds import Kind
from talweg._collectives.process_sets import Group
from talweg.errors import InvalidArgument
from talweg.jax._rounds import require_rows


def holds_keys(array: Any) -> bool:
    return bool(jnp.issubdtype(array.dtype, jax.dtypes.prng_key))


def words_of(array: Any, place: str, kind: Kind, group: Group, operation: str) -> Any:
    """Returns the words to send for an array of keys. `place` says where in the tree it is."""
    if kind.reduces:
        raise InvalidArgument(
            f"{operation}: {f'the array at {place}' if place else 'the array'} has random keys "
            f"({array.dtype}), which cannot be combined: leave them out of the tree, as "
            "nnx.state(model, nnx.Param) does; broadcast() copies them"
        )
    if kind.part_count(group.size) != 1:
        require_rows(array.shape, kind)
    return jax.random.key_data(array)


def with_keys(given: Any, result: Any) -> Any:
    """Returns the result of a copy as keys, if `given` has keys."""
    if not holds_keys(given):
        return result
    return jax.random.wrap_key_data(result, impl=jax.random.key_impl(given))
