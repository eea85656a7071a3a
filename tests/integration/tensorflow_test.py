# SPDX-License-Identifier: Apache-2.0
"""talweg.tensorflow: its calls against NumPy, its orders, and training against one process."""

from __future__ import annotations

import sys
import unittest
from typing import ClassVar

import job
from tensorflow_forks import tensorflow_forks
from torch_forks import TorchForks

# What rounding may change in a loss in 20 steps: the ranks' gradients are added in another order.
_TOLERANCE = 2e-3


def _losses(output: str) -> list[float]:
    [line] = [line for line in output.splitlines() if "losses " in line]
    return [float(word) for word in line.partition("losses ")[2].split()]


class TensorflowTest(unittest.TestCase):
    forks: ClassVar[TorchForks]

    @classmethod
    def setUpClass(cls) -> None:
        cls.forks = tensorflow_forks()
        cls.forks.__enter__()
        cls.addClassCleanup(cls.forks.__exit__)

    def _alone(self, program: str, *arguments: str) -> str:
        line = [sys.executable, "-P", *self.forks.prefix, str(job.PROGRAMS / program), *arguments]
        return job.run(line)

    def _on_two_nodes(self, program: str, *arguments: str) -> str:
        line = job.command(program, arguments, nodes=2, ranks=2, forks=self.forks)
        return job.run(line)

    def test_calls_alone(self) -> None:
        self._alone("tensorflow_features.py")

    def test_calls(self) -> None:
        self._on_two_nodes("tensorflow_features.py")

    def test_one_thread_and_opposite_orders(self) -> None:
        output = self._on_two_nodes("tensorflow_orders.py")
        self.assertEqual(output.count("has all 100 sums"), 4)

    def test_training(self) -> None:
        for kind in ("fit", "tape", "tf_keras"):
            alone = _losses(self._alone("tensorflow_training.py", kind))
            together = _losses(self._on_two_nodes("tensorflow_training.py", kind))
            self.assertEqual(len(alone), 20)
            self.assertLess(alone[-1], 0.6 * alone[0])  # It learns.
            for one, all_ in zip(alone, together):
                self.assertAlmostEqual(one, all_, delta=_TOLERANCE * max(one, 1.0))


if __name__ == "__main__":
    unittest.main()
