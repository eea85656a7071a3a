# SPDX-License-Identifier: Apache-2.0
"""hvd.elastic: run, TorchState and ElasticSampler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from talweg.horovod.common import elastic as _elastic
from talweg.horovod.common.elastic import ObjectState
from talweg.horovod.torch.elastic.sampler import ElasticSampler
from talweg.horovod.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "ObjectState", "TorchState", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function that calls `func(state, ...)` again after each change, until it returns."""
    return _elastic.run_fn(func)
