# SPDX-License-Identifier: Apache-2.0
"""push_pull's arguments, which are the same in every framework's module.

push_pull(tensor, name=None, op=None, *, average=True, priority=0, timeout_s=None)
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

from talweg._declaration import Op, op_of
from talweg.errors import InvalidArgument, WrongType

Function = TypeVar("Function", bound=Callable[..., Any])


def chosen_op(op: Op | None, average: bool) -> Op:
    """The operation that a call means; InvalidArgument when there is none. `op` overrules."""
    if isinstance(average, str):
        raise InvalidArgument(
            f"average is {average!r}; it must be True or False: pass a tensor's name as "
            f"name={average!r}"
        )
    if not isinstance(average, bool):
        given = f"Op.{average.name}" if isinstance(average, Op) else repr(average)
        remedy = f": pass an operation as op={given}" if isinstance(average, Op) else ""
        raise InvalidArgument(f"average is {given}; it must be True or False{remedy}")
    if op is not None:
        return op_of(op)
    return Op.AVERAGE if average else Op.SUM


def listed(tensors: Any, operation: str) -> list[Any]:
    """The tensors of a grouped call, also of a generator, which gives them once."""
    try:
        return list(tensors)
    except TypeError:
        raise WrongType(
            f"{operation}: expected a list of tensors, got {type(tensors).__name__}"
        ) from None


def takes_old_order(*old: str) -> Callable[[Function], Function]:
    """Has a function understand calls in the order that it had once, with a DeprecationWarning.

    `old` names the arguments after the tensor as they stood then. No such call had a name, or None,
    in the second place: by that it is known.
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def in_either_order(*arguments: Any, **keywords: Any) -> Any:
            given = arguments[1:]
            if not given or len(given) > len(old) or given[0] is None or isinstance(given[0], str):
                return function(*arguments, **keywords)
            named = dict(zip(old, given))
            chosen_op(named.get("op"), named.get("average", True))  # Raises for what never worked.
            warnings.warn(
                f"{function.__name__}() has the tensor's name as its second argument; the old order "
                f"is deprecated: pass {', '.join(f'{name}=...' for name in named)}",
                DeprecationWarning,
                stacklevel=2,
            )
            return function(arguments[0], **named, **keywords)

        return cast(Function, in_either_order)

    return decorate
