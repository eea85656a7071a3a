# SPDX-License-Identifier: Apache-2.0
"""Tests Horovod's elastic mode for TensorFlow and Keras. Agents and a whole node are killed."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import unittest
from unittest import mock

from outliving import Run
from tensorflow_forks import QUIET, tensorflow_forks


class HvdOutliveTensorflowTest(unittest.TestCase):
    def _live(self, kind: str) -> None:
        program = ["hvd_elastic_tensorflow.py", kind]
        options = ["--nodes=2", "--loss-policy=continue"]
        run = Run(self, program, options, forks=tensorflow_forks())
        run.go_on(2)
        pids = set(run.said())
        for node in (1, 0):
            run.kill_agent(node, count=2)
            run.go_on(2)
        # A killed rank comes back as another process.
        victim = max(pids)
        os.kill(victim, signal.SIGKILL)
        run.wait_for("no new rank", lambda said: len(said) == 3)
        run.go_on(2)
        run.stop()
        said = run.said()
        lost = said.pop(victim)
        self.assertEqual(len({lines[-1] for lines in said.values()}), 1)
        for pid, lines in said.items():
            self.assertTrue(lines[-1].startswith("weights "), lines[-1])
            first = next(int(line.split()[1]) for line in lines if line.startswith("begins"))
            if pid in pids:
                self.assertEqual(first, 0)
                self.assertIn("reset 2", lines)
            else:
                self.assertGreater(first, int(lost[-1].split()[1]) - 1)

    def test_keras(self) -> None:
        self._live("keras")

    def test_tf_keras(self) -> None:
        self._live("tf_keras")

    def test_a_tape(self) -> None:
        self._live("tape")

    def test_a_tape_with_the_kernel(self) -> None:
        if shutil.which("g++") is None:
            self.skipTest("SKIPPED: there is no g++ to build the kernel with")
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as cache:
            variables = {"TALWEG_TENSORFLOW_OPS": "kernel", "XDG_CACHE_HOME": cache}
            with mock.patch.dict(os.environ, variables):
                self._live("tape")


if __name__ == "__main__":
    os.environ.update(QUIET)
    unittest.main()
