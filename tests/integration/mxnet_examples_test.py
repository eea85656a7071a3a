# SPDX-License-Identifier: Apache-2.0
"""Runs MXNet's example programs as BytePS's tutorial and Zeno-PS's page start them."""

from __future__ import annotations

import os
import sys
import unittest

import job
from byteps_commands import MXNET, SPEED, run, shared, start

_SMALL = ["--benchmark", "1", "--batch-size=2", "--num-layers", "18", "--image-shape", "3,32,32"]
_SMALL += [
    "--num-classes",
    "10",
    "--num-epochs",
    "1",
    "--num-examples",
    "16",
    "--disp-batches",
    "2",
]
# How often the test starts a job of crossed_line.py.
_REPETITIONS = 100 if os.environ.get("TALWEG_TEST_FULL") else 3


class MxnetExamplesTest(unittest.TestCase):
    def _distributed(self, arguments: list[str], **variables: str) -> list[str]:
        """Returns the output of both workers. A scheduler and a server run beside them."""
        given = {**shared(), **variables}
        started = []
        for role, worker in (
            ("scheduler", None),
            ("server", None),
            ("worker", "0"),
            ("worker", "1"),
        ):
            own = {} if worker is None else {"DMLC_WORKER_ID": worker}
            own |= {"NVIDIA_VISIBLE_DEVICES": worker} if worker is not None else {}
            line = [] if worker is None else arguments
            started.append(start(self, line, **given, **own, DMLC_ROLE=role))
        outputs = [process.communicate(timeout=job.TIMEOUT_S)[0] for process in started]
        for process, output in zip(started, outputs):
            self.assertEqual(process.returncode, 0, output)
        return outputs[2:]

    def test_the_tutorial_on_one_machine(self) -> None:
        start = str(MXNET / "start_mxnet_byteps.sh")
        done = run([start, *_SMALL], NVIDIA_VISIBLE_DEVICES="0,1", EVAL_TYPE="benchmark")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(
            done.stdout,
            r"Epoch\[0\] Batch \[4\]\tloss=\S+\tSpeed: \d+\.\d img/sec per [CG]PU, \d+\.\d in all",
        )
        self.assertRegex(done.stdout, r"\nTotal img/sec on 2 [CG]PU\(s\): \d+\.\d \+-\d+\.\d")
        self.assertEqual(done.stdout.count("Batch [2]"), 1)  # Only rank 0 prints it.
        done = run([start, "--network", "nothing", "--benchmark", "1"])
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("there is no nothing of 50 layers", done.stderr)
        done = run([start])
        self.assertIn("--data-train", done.stderr)

    def test_the_tutorial_over_tcp(self) -> None:
        first, _ = self._distributed(
            [str(MXNET / "start_mxnet_byteps.sh"), *_SMALL],
            EVAL_TYPE="benchmark",
            MXNET_OMP_MAX_THREADS="4",
        )
        self.assertRegex(first, r"Total img/sec on 2 [CG]PU\(s\)")

    def test_digits(self) -> None:
        program = [sys.executable, str(MXNET / "train_gluon_mnist_byteps.py")]
        done = run([*program, "--epochs", "1"], NVIDIA_VISIBLE_DEVICES="0,1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, rf"Epoch\[0\]\tloss=\S+\taccuracy=0\.[6-9]\d+\t{SPEED}\n")

    def test_lines_never_cross(self) -> None:
        """Runs two workers and their server on one host, again and again."""
        for repetition in range(_REPETITIONS):
            outputs = self._distributed(
                [sys.executable, str(MXNET / "crossed_line.py")],
                BYTEPS_FORCE_DISTRIBUTED="1",
                BYTEPS_SERVER_ENGINE_THREAD=str((os.cpu_count() or 2) // 2),
                PS_VERBOSE="0",
            )
            for rank, output in enumerate(outputs):
                self.assertIn(f"rank {rank}: 0 of 99 rounds crossed", output, repetition)

    def test_lines_need_two(self) -> None:
        done = run([sys.executable, str(MXNET / "crossed_line.py")])
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("start it with 2", done.stderr)


if __name__ == "__main__":
    unittest.main()
