# SPDX-License-Identifier: Apache-2.0
"""Tests programs that train with torch while their agents are killed and come back."""

from __future__ import annotations

import unittest

from outlive_frameworks import live
from torch_forks import torch_forks

_WAYS = ["c10d", "overlap", "hook", "diloco"]


class OutliveTorchTest(unittest.TestCase):
    def test_on_two_nodes(self) -> None:
        live(self, "outlive_torch.py", _WAYS, forks=torch_forks())

    def test_a_rank_is_killed(self) -> None:
        """The process that takes its place has other buckets of DDP at first, and no local steps."""
        live(self, "outlive_torch.py", ["hook", "diloco"], forks=torch_forks())

    def test_on_one_node(self) -> None:
        live(self, "outlive_torch.py", _WAYS, on_one_node=True, forks=torch_forks())


if __name__ == "__main__":
    unittest.main()
