# SPDX-License-Identifier: Apache-2.0
"""The ranges of the backend's calls that torch's profiler shows, as `talweg:all_reduce`.

Without a profiler a call asks once whether there is one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.autograd.profiler import record_function

_is_profiled = torch._C._autograd._profiler_enabled
# Newer than the oldest torch: it takes the inputs, whose shapes the profiler may record.
_of_tensors: Any = getattr(torch._C._profiler, "_RecordFunctionFast", None)


class Range:
    """One call's, from begin() to end(), both on one thread."""

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
    """That of a call; None: nobody profiles."""
    return Range(operation, tensors) if _is_profiled() else None


@contextlib.contextmanager
def shown(operation: str, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """The range of a call that goes on after it was begun: it ends here. On another thread torch
    might have ended its profiler meanwhile.
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
