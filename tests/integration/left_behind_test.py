# SPDX-License-Identifier: Apache-2.0
"""A rank that wants a round of a node that has left is told so, and by which name."""

from __future__ import annotations

import unittest

import job


class LeftBehindTest(unittest.TestCase):
    def test_a_node_that_has_left_is_named(self) -> None:
        output = job.run(job.command("left_behind.py", nodes=2, ranks=1), check=False)
        self.assertRegex(
            output,
            r"rank 0: .*node 1 has left job '.+' \(.*\), but round 4 of tensor 'x' needs it",
        )


if __name__ == "__main__":
    unittest.main()
