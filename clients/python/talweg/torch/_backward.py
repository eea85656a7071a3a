# SPDX-License-Identifier: Apache-2.0
"""What autograd's engine tells of the backward pass that runs on this thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def current_node() -> Any:
    """The node that this code runs in, if any."""
    # Older versions of torch lack it.
    current = getattr(torch._C, "_current_autograd_node", None)
    return None if current is None else current()


def when_it_ends(callback: Callable[[], None]) -> None:
    """Has the pass call it when it ends, after those that are queued already."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)
