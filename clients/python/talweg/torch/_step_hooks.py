# SPDX-License-Identifier: Apache-2.0
"""Tells a step that a program makes from the steps within it."""

from __future__ import annotations

import sys
from types import FrameType

import torch

# torch gives each optimizer class's step() one wrapper, which calls the hooks. All have this code.
_HOOKED_STEP = torch.optim.Optimizer.profile_hook_step(lambda: None).__code__


def is_inner_step(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the step whose hook calls this runs within another step of the same optimizer.

    torch calls an optimizer's hooks once for each class whose step() it has wrapped. So they are
    called several times where a class's step() calls that of its base class. A count of steps would
    be wrong after a step() that has raised, because torch then calls no hook. So this looks at the
    frames.
    """
    found = 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and found < 2:
        if frame.f_code is _HOOKED_STEP:
            found += frame.f_locals.get("args", (None,))[0] is optimizer
        frame = frame.f_back
    return found == 2
