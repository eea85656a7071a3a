# SPDX-License-Identifier: Apache-2.0
"""Tests optimizers that compress gradients: what is summed, what is learned, what is refused."""

from __future__ import annotations

import unittest
from typing import ClassVar

import job
from torch_forks import TorchForks


class CompressionTest(unittest.TestCase):
    forks: ClassVar[TorchForks]

    @classmethod
    def setUpClass(cls) -> None:
        cls.forks = TorchForks(("torch", "sklearn.datasets"))
        cls.forks.__enter__()
        cls.addClassCleanup(cls.forks.__exit__)

    def test_torch(self) -> None:
        for nodes, aggregators in ((1, None), (2, 2)):
            with self.subTest(nodes=nodes):
                line = job.command(
                    "compression.py", nodes=nodes, aggregators=aggregators, forks=self.forks
                )
                job.run(line)

    def test_ranks_that_do_not_compress_alike(self) -> None:
        """Each rank's error names what both have."""
        both = (
            (2, "'weight' of shape [5, 40] at rank 0", "compressed by TopK(k=7"),
            (1, "compressed by RandomK(k=7", "compressed by TopK(k=7"),
            (1, "compressed by OneBit(scaling=False", "compressed by OneBit(scaling=True"),
        )
        for number, (nodes, *texts) in enumerate(both):
            with self.subTest(texts=texts):
                line = job.command(
                    "compression.py", [str(number)], nodes, 3 - nodes, forks=self.forks
                )
                output = job.run(line, check=False)
                for text in ("Mismatch: 'optimizer': ", *texts, "the same compression"):
                    self.assertIn(text, output)


if __name__ == "__main__":
    unittest.main()
