# SPDX-License-Identifier: Apache-2.0
"""The communication hook trains as DistributedDataParallel does."""

from __future__ import annotations

import unittest

import job


class DdpTest(unittest.TestCase):
    def test_hook_on_two_nodes(self) -> None:
        job.run(job.command("ddp.py", nodes=2, ranks=1, aggregators=1))

    def test_hook_on_one_node(self) -> None:
        job.run(job.command("ddp.py", nodes=1, ranks=2))


if __name__ == "__main__":
    unittest.main()
