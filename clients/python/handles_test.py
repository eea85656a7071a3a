# SPDX-License-Identifier: Apache-2.0
"""Handles of open rounds, in a job of one rank."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
import unittest

import numpy as np
import talweg


class HandlesTest(unittest.TestCase):
    def setUp(self) -> None:
        talweg.init()
        self.addCleanup(talweg.shutdown)

    def test_they_are_not_copied(self) -> None:
        ones: np.ndarray = np.ones(3)
        handle = talweg.push_pull_async(ones, "x")
        for call in (copy.copy, copy.deepcopy, pickle.dumps):
            with self.assertRaisesRegex(
                TypeError, "handle of tensor 'x' stands for one open round"
            ):
                call(handle)
        np.testing.assert_array_equal(talweg.synchronize(handle), ones)

    def test_calls_without_a_name_from_several_threads(self) -> None:
        self.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(1e-6)  # Each thread stops between any two steps of a call.
        failures = []
        sums = []

        def push(number: int) -> None:
            try:
                for _ in range(200):
                    given: np.ndarray = np.full(3, float(number))
                    sums.append(bool((talweg.push_pull(given, op=talweg.Op.SUM) == number).all()))
            except talweg.TalwegError as failure:
                failures.append(failure)

        threads = [threading.Thread(target=push, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        self.assertEqual(sums, [True] * 1600)


if __name__ == "__main__":
    unittest.main()
