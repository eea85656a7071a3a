# SPDX-License-Identifier: Apache-2.0
"""Who honours BYTEPS_ENABLE_ASYNC: docs/asynchronous.md."""

from __future__ import annotations

import logging
import os

from talweg.byteps._environment import TABLE
from talweg.errors import Unsupported

# The imported modules that do not.
_others: set[str] = set()
_has_warned = False


def is_asked_for() -> bool:
    """Whether ranks make steps that wait for no other rank."""
    return TABLE.switch(os.environ, "BYTEPS_ENABLE_ASYNC")


def refuse(what: str) -> None:
    """Raises Unsupported if asynchronous steps are asked for, which `what` does not make."""
    if is_asked_for():
        raise Unsupported(
            f"BYTEPS_ENABLE_ASYNC=1 with {what} is not offered by Talweg: "
            "byteps.torch.DistributedOptimizer alone makes asynchronous steps. Unset the variable, and "
            "hide the waiting with CrossBarrier, or synchronise less often with "
            "backward_passes_per_step"
        )


def not_offered_by(module: str) -> None:
    """Has init() raise Unsupported in a process that has imported this module."""
    _others.add(module.removeprefix("talweg."))


def require_offered() -> None:
    """Raises Unsupported if a module that is imported makes no asynchronous steps."""
    for module in sorted(_others):
        refuse(module)


def warn_of_rounds() -> None:
    """Warns once, if asynchronous steps are asked for, that push_pull() makes none."""
    global _has_warned
    if _has_warned or not is_asked_for():
        return
    _has_warned = True
    logging.getLogger("byteps").warning(
        "push_pull() waits for all ranks, also with BYTEPS_ENABLE_ASYNC=1: DistributedOptimizer alone "
        "makes asynchronous steps"
    )
