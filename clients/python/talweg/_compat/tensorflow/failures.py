# SPDX-License-Identifier: Apache-2.0
"""Talweg's errors as those of TensorFlow that the other systems' operations raise."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

from talweg import errors
from talweg.tensorflow._ops import plain

Function = TypeVar("Function", bound=Callable[..., Any])


class BadArgument(tf.errors.InvalidArgumentError, ValueError):
    """The call cannot be carried out as it was made."""


def translate(failure: errors.TalwegError) -> Exception:
    """The same as an error of tf.errors, which a graph raises by itself."""
    kind: Any = tf.errors.UnknownError
    if isinstance(failure, (errors.Mismatch, errors.NotInitialized)):
        kind = tf.errors.FailedPreconditionError
    elif isinstance(failure, errors.InvalidArgument):
        kind = BadArgument
    elif isinstance(failure, errors.Aborted):
        kind = tf.errors.AbortedError
    found: Exception = kind(None, None, str(failure))
    return found


def operation(function: Function) -> Function:
    """Has a function raise errors of tf.errors, and be left as it is within tf.function."""

    @functools.wraps(function)
    def translating(*arguments: Any, **keywords: Any) -> Any:
        try:
            return function(*arguments, **keywords)
        except errors.TalwegError as failure:
            raise translate(failure) from failure

    return cast(Function, plain(translating))
