# SPDX-License-Identifier: Apache-2.0
"""Who honours BYTEPS_ENABLE_ASYNC: docs/asynchronous.md."""

from __future__ import annotations

import logging
import os
from typing import Any

from talweg._compat.names import names
from talweg.byteps._environment import TABLE
from talweg.errors import Unsupported

_has_warned = False


def is_asked_for() -> bool:
    """Whether ranks make steps that wait for no other rank."""
    return TABLE.switch(os.environ, "BYTEPS_ENABLE_ASYNC")


def refuse(what: str) -> None:
    """Raises Unsupported if asynchronous steps are asked for, which `what` does not make."""
    if is_asked_for():
        raise Unsupported(
            f"BYTEPS_ENABLE_ASYNC=1 with {what} is not offered by Talweg: DistributedOptimizer alone "
            "makes asynchronous steps. Use that, or unset the variable"
        )


def refuse_compression(compression: Any, none: Any) -> None:
    """Raises Unsupported if `compression` is not `none`."""
    if compression is not none:
        raise Unsupported(
            "BYTEPS_ENABLE_ASYNC=1 with compression is not offered by Talweg: ranks send how far their "
            "steps have moved parameters. Leave compression out, or set TALWEG_ENCODING=int8"
        )


def next_name() -> str:
    """Returns the name of a new optimizer. Every rank gets the same ones."""
    return names.next("byteps.asynchronous")


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
