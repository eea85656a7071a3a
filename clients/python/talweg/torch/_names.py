# SPDX-License-Identifier: Apache-2.0
"""Keeps the name and the description that torch gives a process group."""

from __future__ import annotations

import torch.distributed as dist


class NamedGroup(dist.ProcessGroup):
    """A group in Python that keeps its own name and description.

    torch keeps them in a group's C++ backends. A group in Python has no such backend.
    """

    _name = ""
    _desc = "undefined"

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:  # torch's C++ code calls it.
        return self._name

    @property
    def group_name(self) -> str:
        return self._name

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    @property
    def group_desc(self) -> str:
        return self._desc
