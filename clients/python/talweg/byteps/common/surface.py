# SPDX-License-Identifier: Apache-2.0
"""The names of talweg.byteps.common that the module of each framework has.

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
