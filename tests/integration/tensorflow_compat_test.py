# SPDX-License-Identifier: Apache-2.0
"""Tests talweg.horovod and talweg.byteps for TensorFlow and Keras, with one rank and two nodes."""

from __future__ import annotations

import os
import sys
import unittest
from typing import ClassVar

import job
from tensorflow_forks import tensorflow_forks
from torch_forks import TorchForks

# With it tf.keras is tf_keras.
_LEGACY = {"TF_USE_LEGACY_KERAS": "1"}
_FULL = os.environ.get("TALWEG_TEST_FULL") == "1"


class CompatTest(unittest.TestCase):
    forks: ClassVar[TorchForks]

    @classmethod
    def setUpClass(cls) -> None:
        cls.forks = tensorflow_forks()

    def _run(self, program: str) -> None:
        job.run([sys.executable, "-P", *self.forks.prefix, str(job.PROGRAMS / program)])
        job.run(job.command(program, nodes=2, ranks=2, forks=self.forks))

    def test_horovod(self) -> None:
        self._run("horovod_tensorflow.py")

    def test_horovod_adasum(self) -> None:
        self._run("horovod_tensorflow_adasum.py")

    # test_horovod has each operation.
    @unittest.skipUnless(_FULL, "SKIPPED: each operation with each dtype; ./test --full runs them")
    def test_horovod_matrix(self) -> None:
        job.run(job.command("horovod_tensorflow_matrix.py", nodes=2, ranks=2, forks=self.forks))

    def test_horovod_gradients(self) -> None:
        program = "horovod_tensorflow_gradients.py"
        # If nodes may come and go, graphs ask for ranks' numbers when they run.
        for options in ([], ["--loss-policy=continue"]):
            line = job.command(program, nodes=2, ranks=(2, 1), options=options, forks=self.forks)
            job.run(line)

    def test_byteps(self) -> None:
        self._run("byteps_tensorflow.py")

    def test_ranks_that_disagree(self) -> None:
        program = "compat_tensorflow_errors.py"
        job.run(job.command(program, nodes=2, ranks=(2, 1), forks=self.forks))

    def test_byteps_trace(self) -> None:
        self._run("byteps_tensorflow_trace.py")

    def test_values_of_wrong_types(self) -> None:
        program = str(job.PROGRAMS / "wrong_types.py")
        job.run([sys.executable, "-P", *self.forks.prefix, program, "tensorflow"])

    def test_loaded_models_of_tf_keras(self) -> None:
        program = str(job.PROGRAMS / "legacy_keras_models.py")
        forks = tensorflow_forks(**_LEGACY)
        job.run([sys.executable, "-P", *forks.prefix, program], _LEGACY)

    def test_graphs_of_tf_keras(self) -> None:
        forks = tensorflow_forks(**_LEGACY)
        line = job.command("legacy_keras_graph.py", nodes=2, ranks=(2, 1), forks=forks)
        job.run(line, _LEGACY)


if __name__ == "__main__":
    unittest.main()
