# SPDX-License-Identifier: Apache-2.0
"""Tests TensorFlow and Keras in Horovod's elastic mode, on hosts that come, go and die."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import unittest
from unittest import mock

from tensorflow_forks import QUIET, tensorflow_forks
from virtual_hosts import HostsJob


class _Job(HostsJob):
    launcher = (sys.executable, "-P", "-m", "talweg.horovod.runner")

    def __init__(self, test: unittest.TestCase, *kind: str) -> None:
        options = ["-np", "1", "--min-np", "1", "--host-discovery-script", "{script}"]
        program = ["hvd_elastic_tensorflow.py", *kind]
        super().__init__(test, "a:1", options, program, tensorflow_forks())


class HorovodrunHostsTensorflowTest(unittest.TestCase):
    def _live(self, *kind: str) -> None:
        job = _Job(self, *kind)
        job.go_on(1)
        job.name_hosts("a:1 b:1")
        job.go_on(2)
        job.kill_host("a")  # Host a is the source of all state.
        job.says("host a (node 0) is lost")
        job.go_on(1)
        job.name_hosts("b:1 c:1")
        job.go_on(2)
        job.name_hosts("c:1")
        job.wait_for("nothing is left on b", lambda: not job.processes("b"))
        job.go_on(1)
        job.stop()
        output = job.end()
        self.assertEqual(len(job.weights()), 1, output)
        self._check_steps(job)

    def _check_steps(self, job: _Job) -> None:
        """No rank repeats a step or leaves one out, and only one rank has begun without state."""
        lives = []
        for lines in job.said().values():
            words = [line.split() for line in lines if line.startswith(("begins ", "step "))]
            first = last = int(words[0][1])
            for what, number in words[1:]:
                # A "begins" follows a step that ends with a change, and one that was given up.
                may_be = [last + 1, last] if what == "begins" else [last + 1]
                self.assertIn(int(number), may_be, (what, lines[-20:]))
                last = int(number)
            lives.append((first, last))
        lives.sort()
        self.assertEqual([first for first, _ in lives].count(0), 1, lives)
        for (_, last), (first, _) in zip(lives, lives[1:]):
            self.assertLessEqual(first, last + 1, lives)

    def test_keras(self) -> None:
        self._live("keras")

    def test_tf_keras_that_fits_before_the_run_and_in_each_reset(self) -> None:
        self._live("tf_keras", "first")

    def test_a_tape(self) -> None:
        self._live("tape")

    def test_a_tape_with_a_step_before_the_run(self) -> None:
        if shutil.which("g++") is None:
            self.skipTest("SKIPPED: there is no g++ to build the kernel with")
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as cache:
            variables = {"TALWEG_TENSORFLOW_OPS": "kernel", "XDG_CACHE_HOME": cache}
            with mock.patch.dict(os.environ, variables):
                self._live("tape", "first")


if __name__ == "__main__":
    os.environ.update(QUIET)
    unittest.main()
