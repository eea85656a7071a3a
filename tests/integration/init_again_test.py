# SPDX-License-Identifier: Apache-2.0
"""Tests shutdown() and then init() again in the same processes."""

from __future__ import annotations

import tempfile
import unittest

import job


class InitAgainTest(unittest.TestCase):
    def test_it(self) -> None:
        for nodes, ranks, options in (
            (1, 3, ()),
            (2, (2, 1), ()),
            (2, (1, 2), ("--loss-policy=continue",)),
        ):
            with self.subTest(nodes=nodes), tempfile.TemporaryDirectory() as directory:
                line = job.command("init_again.py", [directory], nodes, ranks, options=options)
                self.assertEqual(job.run(line).count("] done"), 3)


if __name__ == "__main__":
    unittest.main()
