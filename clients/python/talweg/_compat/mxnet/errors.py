# SPDX-License-Identifier: Apache-2.0
"""Talweg's failures as MXNet's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mxnet import MXNetError

from talweg import errors

_Result = TypeVar("_Result")


def internal(call: Callable[[], _Result]) -> _Result:
    """What `call` returns; Talweg's failures as MXNetError, the caller's mistakes as ValueError."""
    try:
        return call()
    except errors.InvalidArgument:
        raise
    except errors.TalwegError as failure:
        raise MXNetError(str(failure)) from failure
