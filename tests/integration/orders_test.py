# SPDX-License-Identifier: Apache-2.0
"""Tests that ranks which push in different orders, from several threads, never block each other."""

from __future__ import annotations

import unittest

import job


class OrdersTest(unittest.TestCase):
    def test_thousands_of_tensors_and_few_credits(self) -> None:
        line = job.command(
            "orders.py",
            ["3000", "3", "2"],
            nodes=2,
            ranks=2,
            aggregators=2,
        )
        job.run(line, env={"TALWEG_CREDIT_BYTES": "64K"})

    def test_one_node_without_aggregators(self) -> None:
        job.run(job.command("orders.py", ["2000", "2", "2"], nodes=1, ranks=3))


if __name__ == "__main__":
    unittest.main()
