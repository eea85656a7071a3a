# SPDX-License-Identifier: Apache-2.0
"""Tests what users do although no manual tells them to."""

from __future__ import annotations

import unittest
from typing import ClassVar

import job
from torch_forks import TorchForks

_PLACES = ((1, 1), (1, 2), (2, (2, 1)))


class TriedHardTest(unittest.TestCase):
    forks: ClassVar[TorchForks]

    @classmethod
    def setUpClass(cls) -> None:
        cls.forks = TorchForks()
        cls.forks.__enter__()
        cls.addClassCleanup(cls.forks.__exit__)

    def test_with_torch(self) -> None:
        for nodes, ranks in _PLACES:
            with self.subTest(nodes=nodes, ranks=ranks):
                line = job.command("tried_hard.py", nodes=nodes, ranks=ranks, forks=self.forks)
                job.run(line)

    def _mismatches(self, case: str, nodes: int, ranks: tuple[int, ...]) -> list[str]:
        line = job.command("tried_hard.py", [case], nodes, ranks, forks=self.forks)
        output = job.run(line, check=False).splitlines()
        return sorted(line for line in output if "mismatch: " in line)

    def test_parameters_of_other_names_are_named_at_every_rank(self) -> None:
        for nodes, ranks in ((1, (3,)), (2, (2, 1))):
            with self.subTest(nodes=nodes):
                told = self._mismatches("names_that_differ", nodes, ranks)
                text = (
                    "mismatch: 'optimizer': parameter 2 is 'head.weight' of shape [4, 4] at rank "
                    "0, but 'classifier.weight' of shape [4, 4] at rank 2: build the same model, "
                    "with its parameters in one order, at every rank"
                )
                self.assertEqual(told, [f"[{rank}] {text}" for rank in range(3)])

    def test_parameters_in_another_order(self) -> None:
        told = self._mismatches("names_in_another_order", 1, (2,))
        self.assertEqual(len(told), 2, told)
        self.assertIn(
            "parameter 0 is 'weight' of shape [4, 4] at rank 0, but 'bias' of shape [4] at rank 1",
            told[0],
        )


if __name__ == "__main__":
    unittest.main()
