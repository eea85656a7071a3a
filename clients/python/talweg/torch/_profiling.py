# SPDX-License-Identifier: Apache-2.0
"""The ranges of the backend's calls that torch's profiler shows, as `talweg:all_reduce`.

Without a profiler a call asks once whether there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.profiler import record_function

from talweg.torch._c10d_tensors import said

_is_profiled = torch._C._autograd._profiler_enabled
# Newer than the oldest torch: it takes the inputs, whose shapes the profiler may record.
_of_tensors: Any = getattr(torch._C._profiler, "_RecordFunctionFast", None)


class Range:
    """One call's, from begin() to end()."""

    def __init__(self, operation: str, tensors: Sequence[torch.Tensor], is_async: bool) -> None:
        """One that `is_async` may end on any thread, and has no ranges of the first one within it."""
        name = f"talweg:{operation}"
        self._over: torch.futures.Future[None] | None = None
        if is_async:
            self._over = torch.futures.Future()
            self._range = record_function(name, ", ".join(said(tensor) for tensor in tensors))
            return
        try:
            self._range = _of_tensors(name, list(tensors))
        except TypeError:
            self._range = record_function(name)

    def begin(self) -> None:
        self._range.__enter__()
        if self._over is not None:
            self._range._call_end_callbacks_on_future(self._over)

    def end(self) -> None:
        if self._over is not None:
            self._over.set_result(None)
        else:
            self._range.__exit__(None, None, None)


def range_of(
    operation: str, tensors: Sequence[torch.Tensor], is_async: bool = False
) -> Range | None:
    """That of a call; None: nobody profiles."""
    return Range(operation, tensors, is_async) if _is_profiled() else None


def begun_range(
    operation: str, tensors: Sequence[torch.Tensor], is_async: bool = True
) -> Range | None:
    """The same, which has begun."""
    range_ = range_of(operation, tensors, is_async)
    if range_ is not None:
        range_.begin()
    return range_
