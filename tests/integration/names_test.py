# SPDX-License-Identifier: Apache-2.0
"""Tests names whose tensors change, and ranks that do not agree on them. Nothing hangs."""

from __future__ import annotations

import unittest
from typing import Any

import job
from torch_forks import torch_forks


def _run(**shape: Any) -> None:
    job.run(job.command("names.py", forks=torch_forks(), **shape))


class NamesTest(unittest.TestCase):
    def test_one_rank(self) -> None:
        _run(nodes=1, ranks=1)

    def test_one_node(self) -> None:
        _run(nodes=1, ranks=3)

    def test_two_nodes(self) -> None:
        _run(nodes=2, ranks=(2, 1), aggregators=2)

    def test_two_nodes_whose_membership_may_change(self) -> None:
        _run(nodes=2, ranks=1, options=["--loss-policy=continue"])


if __name__ == "__main__":
    unittest.main()
