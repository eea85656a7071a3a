# SPDX-License-Identifier: Apache-2.0
"""The one place that knows which of Talweg's collectives there are, and under which names.

Whoever calls one that this version lacks is told so, and what to use instead.
"""

from __future__ import annotations

from typing import Any

import talweg
import talweg.torch as tw
from talweg.errors import Unsupported


def has(name: str) -> bool:
    """Whether talweg.torch offers it ("ProcessSet": talweg)."""
    return hasattr(talweg if name == "ProcessSet" else tw, name)


def _function(name: str, instead: str) -> Any:
    function = getattr(talweg if name == "ProcessSet" else tw, name, None)
    if function is None:
        raise Unsupported(f"this version of Talweg has no {name}(): {instead}")
    return function


def all_gather_async(tensor: Any, name: str | None, process_set: Any) -> Any:
    function = _function("all_gather_async", "gather objects with allgather_object()")
    return function(tensor, name=name, process_set=process_set)


def reduce_scatter_async(
    tensor: Any, op: talweg.Op, name: str | None, process_set: Any, pre: float, post: float
) -> Any:
    function = _function("reduce_scatter_async", "use allreduce(), and keep the rank's part")
    return function(
        tensor,
        op=op,
        name=name,
        process_set=process_set,
        prescale_factor=pre,
        postscale_factor=post,
    )


def all_to_all_async(tensor: Any, splits: Any, name: str | None, process_set: Any) -> Any:
    """The handle's result is (tensor, received_splits)."""
    function = _function("all_to_all_async", "gather objects with allgather_object()")
    return function(tensor, splits=splits, name=name, process_set=process_set)


def process_set(ranks: list[int]) -> Any:
    """Talweg's own set of these ranks."""
    return _function("ProcessSet", "run a job of its own for them")(ranks)
