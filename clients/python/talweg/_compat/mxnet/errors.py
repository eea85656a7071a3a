# SPDX-License-Identifier: Apache-2.0
"""Turns Talweg's errors into MXNet's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mxnet import MXNetError

from talweg import errors

_Result = TypeVar("_Result")


def internal(call: Callable[[], _Result]) -> _Result:
    """Returns `call`'s result. Raises InvalidArgument as it is, and other errors as MXNetError."""
    try:
        return call()
    except errors.InvalidArgument:
        raise
    except errors.TalwegError as failure:
        raise MXNetError(str(failure)) from failure
