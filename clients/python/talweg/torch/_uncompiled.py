# SPDX-License-Identifier: Apache-2.0
"""Methods that torch.compile does not compile.

torch traces each Python frame that runs within a compiled call. That includes methods of Talweg's
which torch calls from C++, as the reducer of DistributedDataParallel does. They would be compiled for
nothing, and torch fails at their super().
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType

from torch._C._dynamo import eval_frame


def _codes_of(kind: type) -> Iterator[CodeType]:
    for each in kind.__mro__:
        if each.__module__.partition(".")[0] == "talweg":
            for member in vars(each).values():
                method = member.fget if isinstance(member, property) else member
                if isinstance(method, FunctionType):
                    yield method.__code__


def leave_uncompiled(*kinds: type) -> None:
    """Has torch run the methods of these classes as they stand, and all that they call."""
    action = getattr(eval_frame, "_FrameAction", None)
    if action is None:
        return  # Older torch has no such thing.
    strategy = eval_frame._FrameExecStrategy(action.SKIP, action.SKIP)
    for kind in kinds:
        for code in _codes_of(kind):
            eval_frame.set_code_exec_strategy(code, strategy)
