# SPDX-License-Identifier: Apache-2.0
"""Tests DistributedOptimizer(overlap_forward=model), with which the next forward pass steps."""

from __future__ import annotations

import unittest
from typing import ClassVar

import job
from torch_forks import TorchForks


class ForwardOverlapTest(unittest.TestCase):
    forks: ClassVar[TorchForks]

    @classmethod
    def setUpClass(cls) -> None:
        cls.forks = TorchForks()
        cls.forks.__enter__()
        cls.addClassCleanup(cls.forks.__exit__)

    def test_one_node(self) -> None:
        job.run(job.command("forward_overlap.py", nodes=1, ranks=2, forks=self.forks))

    def test_two_nodes(self) -> None:
        line = job.command(
            "forward_overlap.py", nodes=2, ranks=(2, 1), aggregators=2, forks=self.forks
        )
        job.run(line)


if __name__ == "__main__":
    unittest.main()
