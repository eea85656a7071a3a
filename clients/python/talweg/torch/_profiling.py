# SPDX-License-Identifier: Apache-2.0
"""Shows the backend's calls in torch's profiler, as ranges such as `talweg:all_reduce`.

Without a profiler this costs a call one check.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.autograd.profiler import record_function

_is_profiled = torch._C._autograd._profiler_enabled
# It takes the inputs too, whose shapes the profiler may record. The oldest torch lacks it.
_of_tensors: Any = getattr(torch._C._profiler, "_RecordFunctionFast", None)


class Range:
    """The range of one call, from begin() to end(). Both must be called on one thread."""

    def __init__(self, operation: str, tensors: Sequence[torch.Tensor]) -> None:
        name = f"talweg:{operation}"
        try:
            self._range = _of_tensors(name, list(tensors))
        except TypeError:
            self._range = record_function(name)

    def begin(self) -> None:
        self._range.__enter__()

    def end(self) -> None:
        self._range.__exit__(None, None, None)


def range_of(operation: str, tensors: Sequence[torch.Tensor]) -> Range | None:
    """Returns the range of a call; None if no profiler runs."""
    return Range(operation, tensors) if _is_profiled() else None


@contextlib.contextmanager
def shown(operation: str, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """A context that is the range of a call which goes on after it.

    The range ends here, because the call may end on another thread, when the profiler is over.
    """
    range_ = range_of(operation, tensors)
    if range_ is None:
        yield
        return
    range_.begin()
    try:
        yield
    finally:
        range_.end()
