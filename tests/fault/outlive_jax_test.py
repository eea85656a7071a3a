# SPDX-License-Identifier: Apache-2.0
"""Tests programs that train with jax while their agents are killed and come back."""

from __future__ import annotations

import unittest

from jax_forks import jax_forks
from outlive_frameworks import live

_WAYS = ["errors", "bare"]


class OutliveJaxTest(unittest.TestCase):
    def test_on_two_nodes(self) -> None:
        live(self, "outlive_jax.py", _WAYS, lets_go=False, forks=jax_forks())

    def test_on_one_node(self) -> None:
        live(self, "outlive_jax.py", _WAYS, on_one_node=True, lets_go=False, forks=jax_forks())


if __name__ == "__main__":
    unittest.main()
