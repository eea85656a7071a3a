# SPDX-License-Identifier: Apache-2.0
"""hvd.elastic: not offered; each call says what to use instead."""

from __future__ import annotations

from typing import Any

from talweg.errors import Unsupported

__all__ = ["ElasticSampler", "TorchState", "run"]

_INSTEAD = (
    "start the job with `talweg run --loss-policy=continue`: the other nodes go on after a loss, and "
    "new ones may join; keep checkpoints for what a lost rank alone has"
)


def _refuse(name: str) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise Unsupported(f"hvd.elastic.{name} is not offered by Talweg: {_INSTEAD}")

    return refuse


run = _refuse("run")
TorchState = _refuse("TorchState")
ElasticSampler = _refuse("ElasticSampler")
