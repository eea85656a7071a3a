# SPDX-License-Identifier: Apache-2.0
"""What torch.compile leaves as it is.

torch traces each Python frame that runs within a compiled call: what the program calls, and what
torch calls from C++, as the reducer of DistributedDataParallel and autograd do. Talweg's functions
would be compiled for nothing, with a warning for each native call, and torch fails at the super()
of some. Importing torch._dynamo to say so would cost a program seconds that compiles nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch._C._dynamo import eval_frame


def _functions_of(member: Any) -> Iterator[FunctionType]:
    """A function, or those of a class."""
    if isinstance(member, property):
        member = member.fget
    elif isinstance(member, (MethodType, staticmethod, classmethod)):
        member = member.__func__
    member = getattr(member, "__wrapped__", member)  # A context manager's, or a cached one.
    if isinstance(member, FunctionType):
        yield member
    elif isinstance(member, type):
        for kind in member.__mro__:
            if kind.__module__.partition(".")[0] == "talweg":
                for each in vars(kind).values():
                    if not isinstance(each, type):
                        yield from _functions_of(each)


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    """It, and those of the functions that are made within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes_in(constant)


def leave_uncompiled(*members: Any) -> None:
    """Has torch run these functions, and those of these classes, as they stand, and all that they
    call.
    """
    action = getattr(eval_frame, "_FrameAction", None)
    if action is None:
        return  # Older torch has no such thing.
    strategy = eval_frame._FrameExecStrategy(action.SKIP, action.SKIP)
    for member in members:
        for function in _functions_of(member):
            for code in _codes_in(function.__code__):
                eval_frame.set_code_exec_strategy(code, strategy)


def leave_package_uncompiled() -> None:
    """Has torch run all of Talweg as it stands that is imported."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "talweg" and module is not None:
            own = [each for each in vars(module).values() if _module_of(each) == name]
            leave_uncompiled(*own)


def _module_of(member: Any) -> str:
    return str(getattr(member, "__module__", ""))


def keep_out_of_graphs(*members: Any) -> None:
    """Has a graph end before a call of these functions, or of those of these classes. A compiled
    function would go on within them.
    """
    for member in members:
        for function in _functions_of(member):
            function._torchdynamo_disable = True  # type: ignore[attr-defined]


def leave_calls_uncompiled(module: dict[str, Any], *questions: str) -> None:
    """Has torch run as it stands what a module of a framework's calls has, and all of Talweg that is
    imported by now. `module` is its namespace; torch may compile its `questions`.
    """
    leave_package_uncompiled()
    keep_out_of_graphs(*(module[name] for name in module["__all__"] if name not in questions))
