# SPDX-License-Identifier: Apache-2.0
"""Tests rounds whose end a descriptor tells, through the Python package, on one node and on two."""

from __future__ import annotations

import unittest

import job


class CompletionsTest(unittest.TestCase):
    def test_an_event_loop(self) -> None:
        job.run(job.command("completions.py", ["loop"], ranks=3))
        job.run(job.command("completions.py", ["loop"], nodes=2, ranks=1, aggregators=1))

    def test_completion_threads_on_one_node(self) -> None:
        job.run(job.command("completions.py", ["threads"], ranks=3))

    def test_completion_threads_on_two_nodes(self) -> None:
        job.run(job.command("completions.py", ["threads"], nodes=2, ranks=2, aggregators=1))


if __name__ == "__main__":
    unittest.main()
