# SPDX-License-Identifier: Apache-2.0
"""Arguments that are the same in every framework's module, such as push_pull's:

push_pull(tensor, name=None, op=None, *, average=True, priority=0, timeout_s=None)
"""

from __future__ import annotations

import functools
import operator
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


def factor_of(value: Any, argument: str) -> float:
    """The factor that a caller means by `value`: a number, or an array of one."""
    if not isinstance(value, bool) and hasattr(value, "__float__"):
        try:
            return float(value)
        except OverflowError:
            raise InvalidArgument(
                f"{argument} is an integer that is too large for a float64: give a smaller one"
            ) from None
        except (TypeError, ValueError, RuntimeError):  # As for an array of several.
            pass
    raise WrongType(f"{argument} is {value!r}; it must be a number, such as 2.0")


def factors_of(prescale: Any, postscale: Any, operation: str) -> tuple[float, float]:
    """The factors that a caller means by prescale_factor= and postscale_factor=."""
    before = factor_of(prescale, f"{operation}: prescale_factor")
    return before, factor_of(postscale, f"{operation}: postscale_factor")


def passes_of(value: Any) -> int:
    """The number of backward passes of a step that a caller means by `value`."""
    text = f"backward_passes_per_step is {value!r}; it must be a whole number, at least 1"
    try:
        passes = operator.index(value)
    except TypeError:
        raise WrongType(text) from None
    if passes < 1:
        raise InvalidArgument(text)
    return passes


def require_compressor(compression: Any, call: str) -> None:
    """Raises WrongType unless `compression` is a compressor of BytePS and Horovod."""
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        raise WrongType(
            f"{call}: compression is {compression!r}; it must be Compression.none, "
            "Compression.fp16, or a class with compress() and decompress()"
        )


def compressed(tensor: Any, compression: Any, call: str) -> tuple[Any, Any]:
    """What the compressor makes of the tensor, and what decompress() needs besides."""
    require_compressor(compression, call)
    pushed, context = compression.compress(tensor)
    return pushed, context


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
