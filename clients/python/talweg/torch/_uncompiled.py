# SPDX-License-Identifier: Apache-2.0
"""Keeps torch.compile from compiling Talweg's functions.

torch traces each Python frame that runs within a compiled call: what the program calls, and what
torch calls from C++, as the reducer of DistributedDataParallel and autograd do. It would compile
Talweg's functions without any gain, and with a warning for each native call. At the super() of some
it fails. This module does not import torch._dynamo, which would cost a program seconds even if it
compiles nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch._C._dynamo import eval_frame


def _functions_of(member: Any) -> Iterator[FunctionType]:
    """Yields the function that `member` is, or the functions of a class."""
    if isinstance(member, property):
        member = member.fget
    elif isinstance(member, (MethodType, staticmethod, classmethod)):
        member = member.__func__
    # A context manager or a cached function wraps the function that it was made from.
    member = getattr(member, "__wrapped__", member)
    if isinstance(member, FunctionType):
        yield member
    elif isinstance(member, type):
        for kind in member.__mro__:
            if kind.__module__.partition(".")[0] == "talweg":
                for each in vars(kind).values():
                    if not isinstance(each, type):
                        yield from _functions_of(each)


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yields the code itself, and that of each function that is made within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes_in(constant)


def leave_uncompiled(*members: Any) -> None:
    """Has torch run these functions, the functions of these classes, and all that they call,
    without compiling them.
    """
    action = getattr(eval_frame, "_FrameAction", None)
    if action is None:
        return  # Older torch cannot be told so.
    strategy = eval_frame._FrameExecStrategy(action.SKIP, action.SKIP)
    for member in members:
        for function in _functions_of(member):
            for code in _codes_in(function.__code__):
                eval_frame.set_code_exec_strategy(code, strategy)


def leave_package_uncompiled() -> None:
    """Has torch run all modules of Talweg that are imported by now without compiling them."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "talweg" and module is not None:
            own = [each for each in vars(module).values() if _module_of(each) == name]
            leave_uncompiled(*own)


def _module_of(member: Any) -> str:
    return str(getattr(member, "__module__", ""))


def keep_out_of_graphs(*members: Any) -> None:
    """Has torch end a graph before it calls one of these functions, or a function of these classes.
    Otherwise the graph would go on within them.
    """
    for member in members:
        for function in _functions_of(member):
            function._torchdynamo_disable = True  # type: ignore[attr-defined]


def leave_calls_uncompiled(module: dict[str, Any], *questions: str) -> None:
    """Has torch compile neither the calls of a framework's module nor the modules of Talweg that
    are imported by now: it runs them as they are.

    `module` is the namespace of that module. torch may compile the functions named in `questions`.
    """
    leave_package_uncompiled()
    keep_out_of_graphs(*(module[name] for name in module["__all__"] if name not in questions))
