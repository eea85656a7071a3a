# SPDX-License-Identifier: Apache-2.0
"""Tests that the communication hook trains as DistributedDataParallel does."""

from __future__ import annotations

import unittest
from typing import ClassVar

import job
from torch_forks import TorchForks


class DdpTest(unittest.TestCase):
    forks: ClassVar[TorchForks]

    @classmethod
    def setUpClass(cls) -> None:
        cls.forks = TorchForks()
        cls.forks.__enter__()
        cls.addClassCleanup(cls.forks.__exit__)

    def test_hook_on_two_nodes(self) -> None:
        job.run(job.command("ddp.py", nodes=2, ranks=1, aggregators=1, forks=self.forks))

    def test_hook_on_one_node(self) -> None:
        job.run(job.command("ddp.py", ["one_node"], ranks=2, forks=self.forks))


if __name__ == "__main__":
    unittest.main()
