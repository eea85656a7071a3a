# SPDX-License-Identifier: Apache-2.0
"""Tests that errors name the rank that has left, or has failed, and left others behind."""

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
        self.assertNotIn("without the result", output)

    def test_a_node_that_has_left_before_a_round_was_over_says_so(self) -> None:
        line = job.command("left_behind.py", ["open"], nodes=2, ranks=1, aggregators=1)
        output = job.run(line, check=False)
        left = "left without the result of round 4 of tensor 'x'"
        self.assertRegex(
            output,
            rf"rank 0: .*node 1 has left job '.+' \(.*: all ranks are done; they {left}\), but "
            "round 4 of tensor 'x' needs it",
        )
        self.assertIn(
            f"the ranks have {left}, which other nodes may need still: wait for every call before "
            "shutdown()",
            output,
        )

    def test_a_rank_that_has_left_ends_its_sets_rounds_on_all_nodes(self) -> None:
        output = job.run(job.command("left_ranks.py", nodes=2, ranks=2))
        self.assertEqual(output.count("done"), 3, output)

    def test_the_rank_that_has_failed_first_is_named(self) -> None:
        output = job.run(job.command("fails_first.py", nodes=1, ranks=2), check=False)
        self.assertRegex(output, r"rank 0 \(pid \d+\) failed first: exit status 1")
        self.assertIn("    ValueError: this is the first", output)

    def test_the_rank_that_has_called_exit_first_is_named(self) -> None:
        output = job.run(job.command("fails_first.py", ["7"], nodes=1, ranks=2), check=False)
        self.assertRegex(output, r"rank 0 \(pid \d+\) failed first: exit status 7")


if __name__ == "__main__":
    unittest.main()
