# SPDX-License-Identifier: Apache-2.0
"""Arrays of float0, which jax.grad(allow_int=True) gives for integers.

They have no values, so a reduction sends nothing for them, and its result has them where its tree
had them.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


class _InItsPlace:
    """Stands in a tree for an array of float0, and has no leaves. A tree that is built of the
    leaves has the array again.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape


def _array(shape: tuple[int, ...], _: object) -> np.ndarray:
    return np.zeros(shape, jax.dtypes.float0)


jax.tree_util.register_pytree_node(_InItsPlace, lambda node: ((), node.shape), _array)


def without_float0(tree: Any) -> Any:
    """Returns the tree without leaves of float0. What is built of its leaves has them again."""

    def kept(leaf: Any) -> Any:
        is_float0 = getattr(leaf, "dtype", None) == jax.dtypes.float0
        return _InItsPlace(tuple(leaf.shape)) if is_float0 else leaf

    return jax.tree_util.tree_map(kept, tree)
