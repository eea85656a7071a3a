# SPDX-License-Identifier: Apache-2.0
"""talweg on NumPy arrays, feature by feature, on one rank, one node and two nodes."""

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


if __name__ == "__main__":
    unittest.main()
