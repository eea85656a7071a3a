# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer(overlap_forward=model): the next forward pass makes the step."""

from __future__ import annotations

import unittest

import job


class ForwardOverlapTest(unittest.TestCase):
    def test_one_node(self) -> None:
        job.run(job.command("forward_overlap.py", nodes=1, ranks=2))

    def test_two_nodes(self) -> None:
        job.run(job.command("forward_overlap.py", nodes=2, ranks=(2, 1), aggregators=2))


if __name__ == "__main__":
    unittest.main()
