# SPDX-License-Identifier: Apache-2.0
"""Tests that four ranks on two nodes train with TensorFlow as one process with the same batch, and
steps that wait for nobody.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
import tempfile
import unittest
from typing import ClassVar

import job
from tensorflow_forks import tensorflow_forks
from torch_forks import TorchForks

_PROGRAM = "tensorflow_training.py"
# How much rounding may change a loss in 20 steps. Ranks add gradients in another order.
_TOLERANCE = 1e-4


def _losses(output: str) -> list[float]:
    [line] = [line for line in output.splitlines() if "losses " in line]
    return [float(word) for word in line.partition("losses ")[2].split()]


@functools.cache
def _losses_alone(kind: str) -> list[float]:
    program = str(job.PROGRAMS / _PROGRAM)
    return _losses(job.run([sys.executable, "-P", *tensorflow_forks().prefix, program, kind]))


class TrainingTest(unittest.TestCase):
    forks: ClassVar[TorchForks]

    @classmethod
    def setUpClass(cls) -> None:
        cls.forks = tensorflow_forks()

    def _compare(self, kind: str, env: dict[str, str] | None = None) -> None:
        alone = _losses_alone(kind)
        line = job.command(_PROGRAM, [kind], nodes=2, ranks=2, forks=self.forks)
        together = _losses(job.run(line, env))
        self.assertEqual(len(alone), 20)
        self.assertLess(alone[-1], 0.6 * alone[0])  # The model learns.
        for one, all_ in zip(alone, together):
            self.assertAlmostEqual(one, all_, delta=_TOLERANCE)

    def test_fit(self) -> None:
        self._compare("fit")

    def test_tape(self) -> None:
        self._compare("tape")

    def test_fit_of_tf_keras(self) -> None:
        self._compare("tf_keras")

    def test_fit_by_the_kernel(self) -> None:
        if shutil.which("g++") is None:
            self.skipTest("SKIPPED: there is no g++ to build the kernel with")
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as cache:
            self._compare("fit", {"TALWEG_TENSORFLOW_OPS": "kernel", "XDG_CACHE_HOME": cache})

    def test_asynchronous_steps(self) -> None:
        """Ranks wait for nobody. The sums of what their steps do are exact."""
        program = "asynchronous_tensorflow.py"
        for nodes, ranks in ((1, 1), (2, (2, 1))):
            with self.subTest(nodes=nodes):
                line = job.command(program, nodes=nodes, ranks=ranks, forks=self.forks)
                self.assertEqual(job.run(line).count("done"), 1 if nodes == 1 else 3)

    def test_asynchronous_steps_of_byteps(self) -> None:
        program = "asynchronous_tensorflow.py"
        line = job.command(program, ["byteps"], nodes=2, ranks=1, forks=self.forks)
        output = job.run(line, {"BYTEPS_ENABLE_ASYNC": "1"})
        self.assertEqual(output.count("done"), 2, output)


if __name__ == "__main__":
    unittest.main()
