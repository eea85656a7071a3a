# SPDX-License-Identifier: Apache-2.0
"""Keeps the Python objects of Works that C++ code waits for.

torch's C++ code calls a group in Python, and takes the Work that it returns. Once the Python object
is gone, its methods are gone, too, and C++ would wait for a Work that nobody ends. Since version
2.7 torch keeps the object itself, but not that of a Work that a program has boxed.
"""

from __future__ import annotations

import re

import torch
import torch.distributed as dist

# How many works a group keeps: more than DistributedDataParallel makes in a step before it waits.
_WORKS_MAX = 64
_FIRST_THAT_KEEPS = (2, 7)


def _torch_version() -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", str(torch.__version__))[:2])


class KeptWorks:
    """The kept works of one group. A work is kept until it is waited for, or has given its future,
    or _WORKS_MAX others have come after it.
    """

    def __init__(self) -> None:
        self.all_are_wanted = _torch_version() < _FIRST_THAT_KEEPS
        self._works: dict[int, dist.Work] = {}

    def add(self, work: dist.Work) -> None:
        self._works[id(work)] = work
        if len(self._works) > _WORKS_MAX:
            self._works.pop(next(iter(self._works)), None)

    def let_go(self, work: dist.Work) -> None:
        """Keeps `work` no longer. Does nothing if it is not kept."""
        self._works.pop(id(work), None)
