# SPDX-License-Identifier: Apache-2.0
"""What is not offered for any framework, and what to use instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from talweg.errors import Unsupported

_INSTEAD = (
    "start the job with `talweg run --loss-policy=continue`: the other nodes go on after a loss, and "
    "new ones may join; keep checkpoints for what a lost rank alone has"
)


def refuse_elastic(name: str) -> Callable[..., Any]:
    """A stand-in for hvd.elastic's `name`, which raises at the call."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise Unsupported(f"hvd.elastic.{name} is not offered by Talweg: {_INSTEAD}")

    return refuse
