# SPDX-License-Identifier: Apache-2.0
"""Works that C++ code waits for, whose objects in Python nobody else keeps.

torch's C++ code calls a group in Python, and takes the Work that it returns. If the object in
Python is gone by then its methods are gone, too: the wait would be for a Work in C++ that nobody
ends. Since 2.7 torch keeps the object.
"""

from __future__ import annotations

import re

import torch
import torch.distributed as dist

# More than one step of DistributedDataParallel makes before it waits.
_WORKS_MAX = 64
_FIRST_THAT_KEEPS = (2, 7)


def _torch_version() -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", str(torch.__version__))[:2])


class KeptWorks:
    """Those of one group. Each is kept until it is waited for, or has given its future, or so many
    others have come after it.
    """

    def __init__(self) -> None:
        self.all_are_wanted = _torch_version() < _FIRST_THAT_KEEPS
        self._works: dict[int, dist.Work] = {}

    def add(self, work: dist.Work) -> None:
        self._works[id(work)] = work
        if len(self._works) > _WORKS_MAX:
            self._works.pop(next(iter(self._works)), None)

    def let_go(self, work: dist.Work) -> None:
        """Does nothing if it is not kept."""
        self._works.pop(id(work), None)
