# SPDX-License-Identifier: Apache-2.0
"""The example programs for TensorFlow and Keras, started as BytePS's tutorial says."""

from __future__ import annotations

import os
import sys
import unittest

from byteps_commands import KERAS, TENSORFLOW, run
from tensorflow_forks import QUIET

_SMALL = ["--model", "MobileNetV2", "--batch-size", "2", "--image-size", "32", "--num-iters", "2"]
_SMALL += ["--num-warmup-batches", "1", "--num-batches-per-iter", "1", "--num-classes", "10"]
# A process that imports TensorFlow for each is too much for every run.
_FULL = os.environ.get("TALWEG_TEST_FULL") == "1"


class ExamplesTest(unittest.TestCase):
    def _run(self, arguments: list[str], **variables: str) -> str:
        done = run(arguments, **QUIET, **variables)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def _accuracy(self, output: str) -> float:
        [line] = [line for line in output.splitlines() if "ccuracy" in line and "est" in line]
        return float(line.split()[-1].rstrip("%"))

    def test_the_tutorial(self) -> None:
        start = str(TENSORFLOW / "run_tensorflow_byteps.sh")
        ranks = {"NVIDIA_VISIBLE_DEVICES": "0,1"}
        output = self._run([start, *_SMALL], EVAL_TYPE="benchmark", **ranks)
        self.assertRegex(output, r"Iter #1: \d+\.\d img/sec per [CG]PU")
        self.assertRegex(output, r"\nTotal img/sec on 2 [CG]PU\(s\): \d+\.\d \+-\d+\.\d")
        self.assertEqual(output.count("Iter #0"), 1)  # By rank 0 alone.
        output = self._run([start], EVAL_TYPE="mnist", **ranks)
        self.assertGreater(self._accuracy(output), 80.0)
        done = run([start], EVAL_TYPE="other")
        self.assertEqual(done.returncode, 1)
        self.assertIn("EVAL_TYPE is 'other'", done.stderr)

    def test_keras(self) -> None:
        start = str(KERAS / "run_keras.sh")
        output = self._run([start], EVAL_TYPE="mnist", NVIDIA_VISIBLE_DEVICES="0,1")
        self.assertGreater(self._accuracy(output), 0.3)
        done = run([start], EVAL_TYPE="other")
        self.assertEqual(done.returncode, 1)
        self.assertIn("EVAL_TYPE is 'other'", done.stderr)

    @unittest.skipUnless(_FULL, "SKIPPED: each imports TensorFlow; ./test --full runs them")
    def test_the_other_examples(self) -> None:
        for path in (
            TENSORFLOW / "synthetic_benchmark_tf2.py",
            KERAS / "keras_synthetic_benchmark_tf2.py",
        ):
            output = self._run([sys.executable, str(path), *_SMALL, "--fp16-allreduce"])
            self.assertIn("Total img/sec on 1", output)
        for name in (
            "tensorflow2_keras_mnist.py",
            "tensorflow2_mnist.py",
            "tensorflow2_mnist_bps_MirroredStrategy.py",
            "tensorflow_keras_mnist.py",
        ):
            output = self._run([sys.executable, str(TENSORFLOW / name)])
            self.assertGreater(self._accuracy(output), 80.0, name)


if __name__ == "__main__":
    unittest.main()
