# SPDX-License-Identifier: Apache-2.0
"""Programs that train with torch, whose agents are killed and come back."""

from __future__ import annotations

import unittest

from outlive_frameworks import live

_WAYS = ["c10d", "overlap", "hook"]


class OutliveTorchTest(unittest.TestCase):
    def test_on_two_nodes(self) -> None:
        live(self, "outlive_torch.py", _WAYS)

    def test_on_one_node(self) -> None:
        live(self, "outlive_torch.py", _WAYS, on_one_node=True)


if __name__ == "__main__":
    unittest.main()
