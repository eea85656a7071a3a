# SPDX-License-Identifier: Apache-2.0
"""Tests sparse sums and sparse gradients with one rank, on one node and on several."""

from __future__ import annotations

import unittest
from typing import ClassVar

import job
from torch_forks import TorchForks


class SparseTest(unittest.TestCase):
    forks: ClassVar[TorchForks]

    @classmethod
    def setUpClass(cls) -> None:
        cls.forks = TorchForks()
        cls.forks.__enter__()
        cls.addClassCleanup(cls.forks.__exit__)

    def test_one_rank(self) -> None:
        job.run(job.command("sparse.py", nodes=1, ranks=1, forks=self.forks))

    def test_one_node(self) -> None:
        job.run(job.command("sparse.py", nodes=1, ranks=3, forks=self.forks))

    def test_nodes(self) -> None:
        job.run(job.command("sparse.py", nodes=3, ranks=(2, 1, 1), aggregators=1, forks=self.forks))


if __name__ == "__main__":
    unittest.main()
