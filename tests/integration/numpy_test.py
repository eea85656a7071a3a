# SPDX-License-Identifier: Apache-2.0
"""Tests each feature of talweg on NumPy arrays, with one rank, on one node and on two."""

from __future__ import annotations

import unittest

import job


class NumpyTest(unittest.TestCase):
    def test_one_rank(self) -> None:
        job.run(job.command("numpy_features.py", nodes=1, ranks=1))

    def test_one_node(self) -> None:
        job.run(job.command("numpy_features.py", nodes=1, ranks=2))

    def test_two_nodes(self) -> None:
        job.run(job.command("numpy_features.py", nodes=2, ranks=(2, 1), aggregators=2))

    def test_a_process_without_descriptors(self) -> None:
        job.run(job.command("few_descriptors.py", nodes=1, ranks=1))


if __name__ == "__main__":
    unittest.main()
