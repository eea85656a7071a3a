# SPDX-License-Identifier: Apache-2.0
"""What is not offered for any framework, and what to use instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from talweg.errors import Unsupported

_INSTEAD = (
    "keep what all ranks have alike in a talweg.State, call its end_step() after each step, and start "
    "the job with `talweg run --loss-policy=continue`: the other nodes go on after a loss, and one that "
    "comes starts with their state (docs/elastic.md)"
)


def refuse_elastic(name: str) -> Callable[..., Any]:
    """A stand-in for hvd.elastic's `name`, which raises at the call."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise Unsupported(f"hvd.elastic.{name} is not offered by Talweg: {_INSTEAD}")

    return refuse
