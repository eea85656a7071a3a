# SPDX-License-Identifier: Apache-2.0
"""The ranks of Meetings: those of a job, or of a process set."""

from __future__ import annotations

import numpy as np

from talweg._client import Client
from talweg._collectives import rounds
from talweg._collectives.process_sets import Group, ProcessSet
from talweg._declaration import Declaration, Op, numpy_dtype


class JobRanks:
    """Adds up numbers by rounds whose names begin with `name`. `title` begins an error's text."""

    def __init__(
        self, client: Client, name: str, process_set: ProcessSet | None, title: str
    ) -> None:
        self._name, self._title = name, title
        self._process_set = process_set
        self.use(client)

    def use(self, client: Client) -> None:
        """Goes on with the process's new client."""
        self._client = client
        self._group = Group(client, self._process_set, self._title)

    @property
    def size(self) -> int:
        return self._group.size

    @property
    def place(self) -> int:
        return self._group.place

    def add_up(self, numbers: np.ndarray) -> None:
        client, group = self._client, self._group
        full = f"{self._name}.{numbers.dtype}.{numbers.size}"
        declaration = Declaration(numpy_dtype(numbers.dtype), numbers.size, Op.SUM, 0, group.listed)
        rounds.before_call(client, full, self._process_set)
        declared = client.tensors.declare(f"{full}{group.suffix}", declaration, 0)
        client.finish(rounds.repeat(client, declared, numbers.ctypes.data, 0, numbers))
