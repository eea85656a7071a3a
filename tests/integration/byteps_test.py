# SPDX-License-Identifier: Apache-2.0
"""Tests talweg.byteps.torch, BytePS's surface, with one rank, on one node and on two."""

from __future__ import annotations

import sys
import unittest
from typing import ClassVar

import byteps
import byteps.torch
import job
import talweg.byteps.torch
from byteps.torch.ops import push_pull_async
from torch_forks import TorchForks


class BytepsTest(unittest.TestCase):
    forks: ClassVar[TorchForks]

    @classmethod
    def setUpClass(cls) -> None:
        cls.forks = TorchForks()
        cls.forks.__enter__()
        cls.addClassCleanup(cls.forks.__exit__)

    def test_alone(self) -> None:
        program = str(job.PROGRAMS / "byteps_torch.py")
        output = job.run([sys.executable, "-P", *self.forks.prefix, program])
        self.assertIn("rank 0 of 1, local 0 of 1", output)

    def test_one_node(self) -> None:
        output = job.run(job.command("byteps_torch.py", ranks=2, forks=self.forks))
        self.assertIn("rank 1 of 2, local 1 of 2", output)

    def test_two_nodes(self) -> None:
        line = job.command("byteps_torch.py", nodes=2, ranks=(2, 1), forks=self.forks)
        self.assertIn("rank 2 of 3, local 0 of 1", job.run(line))

    def test_compiled_steps(self) -> None:
        job.run(job.command("compat_compiled.py", ["byteps"], ranks=2, forks=self.forks))

    def test_the_name(self) -> None:
        """Both names are the same module, so there is one state."""
        self.assertIs(byteps.torch, talweg.byteps.torch)
        self.assertIs(push_pull_async, talweg.byteps.torch.push_pull_async)
        self.assertIs(byteps, talweg.byteps)


if __name__ == "__main__":
    unittest.main()
