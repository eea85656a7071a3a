# SPDX-License-Identifier: Apache-2.0
"""Functions of Horovod's module of this name, for variables of TensorFlow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["refs_to_vars", "vars_to_refs"]


def _executing_eagerly() -> bool:
    """Whether operations run at once instead of being put into a graph."""
    return bool(tf.executing_eagerly())


def vars_to_refs(vars: Any) -> Any:
    """Returns a variable as a key for a dict; for a list a tuple of these."""
    return tuple(vars_to_refs(each) for each in vars) if isinstance(vars, list) else vars.ref()


def refs_to_vars(refs: Any) -> Any:
    """Returns the variable of such a key; for a tuple a list of them."""
    return [refs_to_vars(each) for each in refs] if isinstance(refs, tuple) else refs.deref()
