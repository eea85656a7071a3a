# SPDX-License-Identifier: Apache-2.0
"""Tests programs that train with mxnet while their agents are killed and come back."""

from __future__ import annotations

import unittest

from outlive_frameworks import live

_WAYS = ["engine", "kvstore"]


class OutliveMxnetTest(unittest.TestCase):
    def test_on_two_nodes(self) -> None:
        live(self, "outlive_mxnet.py", _WAYS)

    def test_on_one_node(self) -> None:
        live(self, "outlive_mxnet.py", _WAYS, on_one_node=True)

    def test_a_rank_that_is_new_to_a_store(self) -> None:
        """A new rank's store gives it no values, because the others got theirs at the beginning."""
        live(self, "outlive_mxnet.py", ["kvstore"])


if __name__ == "__main__":
    unittest.main()
