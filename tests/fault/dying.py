# SPDX-License-Identifier: Apache-2.0
"""How ranks of tests die in the middle of calls, and what those that are left compare."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import talweg


def die_soon(randomly: random.Random) -> None:
    """Kills this process at once, or up to 30 ms later."""
    if randomly.random() < 0.3:
        os.kill(os.getpid(), signal.SIGKILL)
    delay_s = randomly.choice((0.0, 0.001, 0.01, 0.03)) * randomly.random()
    threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGKILL)).start()


def require_alike(ranks_of_calls: Sequence[Sequence[int]]) -> None:
    """All ranks that are left have had what the same ranks gave, in each call."""
    mine: Any = np.array([sum(1 << rank for rank in ranks) for ranks in ranks_of_calls])
    for op in (talweg.Op.MIN, talweg.Op.MAX):
        assert (talweg.push_pull(mine, f"masks.{op.name}", op) == mine).all(), (op, mine)
