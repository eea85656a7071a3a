# SPDX-License-Identifier: Apache-2.0
"""What the module of each framework has of talweg.byteps.common: the one list of it.

from talweg.byteps.common import surface
from talweg.byteps.common.surface import *
__all__ += surface.__all__
"""

from __future__ import annotations

from talweg.byteps.common import (
    get_pushpull_speed,
    init,
    local_rank,
    local_size,
    rank,
    resume,
    shutdown,
    size,
    suspend,
)

__all__ = [
    "get_pushpull_speed",
    "init",
    "local_rank",
    "local_size",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
]
