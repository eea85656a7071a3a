# SPDX-License-Identifier: Apache-2.0
"""Tests that Lightning and Accelerate train over Talweg's backend as one process does."""

from __future__ import annotations

import unittest
from typing import ClassVar

import job
from torch_forks import TorchForks


class FrameworksTest(unittest.TestCase):
    forks: ClassVar[TorchForks]

    @classmethod
    def setUpClass(cls) -> None:
        cls.forks = TorchForks(("torch", "lightning", "accelerate", "sklearn.datasets"))
        cls.forks.__enter__()
        cls.addClassCleanup(cls.forks.__exit__)

    def _train(self, program: str) -> None:
        for nodes, ranks in ((1, 2), (2, 1)):
            with self.subTest(nodes=nodes):
                # Libraries then look for no model and no token, and send nothing.
                env = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
                line = job.command(program, nodes=nodes, ranks=ranks, forks=self.forks)
                output = job.run(line, env)
                self.assertEqual(output.count("trained by 2: ["), 2, output)

    def test_lightning(self) -> None:
        self._train("c10d_lightning.py")

    def test_accelerate(self) -> None:
        self._train("c10d_accelerate.py")


if __name__ == "__main__":
    unittest.main()
