# SPDX-License-Identifier: Apache-2.0
"""Turns Talweg's errors into those of tf.errors that the other systems raise."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

from talweg import errors
from talweg.tensorflow._ops import plain

Function = TypeVar("Function", bound=Callable[..., Any])


class BadArgument(tf.errors.InvalidArgumentError, ValueError):
    """The call's arguments are wrong. It is a ValueError too."""


class BadType(BadArgument, TypeError):
    """An argument is of a type that the call does not take. It is a TypeError too."""


def translate(failure: errors.TalwegError) -> Exception:
    """Returns the error of tf.errors for it, with the same text. Graphs raise the same one."""
    kind: Any = tf.errors.UnknownError
    if isinstance(failure, (errors.Mismatch, errors.NotInitialized)):
        kind = tf.errors.FailedPreconditionError
    elif isinstance(failure, errors.WrongType):
        kind = BadType
    elif isinstance(failure, errors.InvalidArgument):
        kind = BadArgument
    elif isinstance(failure, errors.Aborted):
        kind = tf.errors.AbortedError
    found: Exception = kind(None, None, str(failure))
    return found


def operation(function: Function) -> Function:
    """Makes a function raise errors of tf.errors, and keeps AutoGraph from converting it."""

    @functools.wraps(function)
    def translating(*arguments: Any, **keywords: Any) -> Any:
        try:
            return function(*arguments, **keywords)
        except errors.TalwegError as failure:
            raise translate(failure) from failure

    return cast(Function, plain(translating))


@operation
def guard(call: Callable[[], Any]) -> Any:
    """Returns the result of `call`; raises errors of tf.errors."""
    return call()
