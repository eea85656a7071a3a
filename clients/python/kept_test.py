# SPDX-License-Identifier: Apache-2.0
"""Works whose objects in Python a group keeps, as torch's C++ code does not."""

from __future__ import annotations

import gc
import unittest
import weakref
from unittest import mock

import torch
import torch.distributed as dist
from talweg.torch import _kept
from talweg.torch._kept import KeptWorks


class _Work(dist.Work):
    """One that can be referred to weakly."""


class KeptTest(unittest.TestCase):
    def setUp(self) -> None:
        self.kept = KeptWorks()

    def _add(self) -> weakref.ref[_Work]:
        work = _Work()
        self.kept.add(work)
        return weakref.ref(work)

    def test_a_work_lives_until_it_is_let_go(self) -> None:
        works = [self._add() for _ in range(3)]
        gc.collect()
        middle = works[1]()
        assert middle is not None
        self.kept.let_go(middle)
        self.kept.let_go(middle)
        del middle
        self.assertEqual([each() is None for each in works], [False, True, False])

    def test_works_that_nobody_waits_for_are_few(self) -> None:
        works = [self._add() for _ in range(3 * _kept._WORKS_MAX)]
        alive = [at for at, each in enumerate(works) if each() is not None]
        self.assertEqual(alive, list(range(2 * _kept._WORKS_MAX, 3 * _kept._WORKS_MAX)))

    def test_which_torch_keeps_them_itself(self) -> None:
        for version, wanted in (("2.1.2", True), ("2.6.0+cpu", True), ("2.7.0a0", False)):
            with mock.patch.object(torch, "__version__", version):
                self.assertEqual(KeptWorks().all_are_wanted, wanted, version)


if __name__ == "__main__":
    unittest.main()
