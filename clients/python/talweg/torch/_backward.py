# SPDX-License-Identifier: Apache-2.0
"""Asks autograd's engine about the backward pass that runs on this thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def current_node() -> Any:
    """Returns the node that this code runs in; None if there is none, or if torch is too old."""
    current = getattr(torch._C, "_current_autograd_node", None)
    return None if current is None else current()


def when_it_ends(callback: Callable[[], None]) -> None:
    """Has the pass call `callback` when it ends, after the callbacks that are queued already."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)
