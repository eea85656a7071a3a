# SPDX-License-Identifier: Apache-2.0
"""Tests talweg.tensorflow: its calls against NumPy, its orders, and its kernel."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import unittest
from pathlib import Path
from typing import ClassVar

import job
from tensorflow_forks import tensorflow_forks
from torch_forks import TorchForks

# The files that a build leaves in its directory.
_LEFT = ["lock", "reduce_op.so"]


class TensorflowTest(unittest.TestCase):
    forks: ClassVar[TorchForks]

    @classmethod
    def setUpClass(cls) -> None:
        cls.forks = tensorflow_forks()

    def _alone(self, program: str, *arguments: str) -> str:
        line = [sys.executable, "-P", *self.forks.prefix, str(job.PROGRAMS / program), *arguments]
        return job.run(line)

    def _on_two_nodes(
        self, program: str, *arguments: str, env: dict[str, str] | None = None
    ) -> str:
        line = job.command(program, arguments, nodes=2, ranks=2, forks=self.forks)
        return job.run(line, env)

    def test_calls_alone(self) -> None:
        self._alone("tensorflow_features.py")

    def test_calls(self) -> None:
        self._on_two_nodes("tensorflow_features.py")

    def test_sparse_sums(self) -> None:
        self._alone("tensorflow_sparse.py")
        self._on_two_nodes("tensorflow_sparse.py")

    def test_one_thread_and_opposite_orders(self) -> None:
        output = self._on_two_nodes("tensorflow_orders.py")
        self.assertEqual(output.count("has all 100 sums"), 4)

    def test_kernel(self) -> None:
        """The rank that comes first builds the kernel, and all load it."""
        if shutil.which("g++") is None:
            self.skipTest("SKIPPED: there is no g++ to build the kernel with")
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as cache:
            env = {"TALWEG_TENSORFLOW_OPS": "kernel", "XDG_CACHE_HOME": cache}
            output = self._on_two_nodes("tensorflow_orders.py", env=env)
            self.assertEqual(output.count("has all 100 sums"), 4)
            self.assertEqual(output.count("building the kernel"), 1)
            [library] = Path(cache).glob("talweg/tensorflow-*/reduce_op.so")
            self.assertEqual(sorted(each.name for each in library.parent.iterdir()), _LEFT)
            output = self._on_two_nodes("tensorflow_features.py", env=env)
            self.assertNotIn("building the kernel", output)
            self._on_two_nodes("compat_tensorflow_errors.py", env=env)
            self._mixed(cache)

    def test_a_kernel_that_another_user_may_have_put_there_is_not_run(self) -> None:
        if shutil.which("g++") is None:
            self.skipTest("SKIPPED: there is no g++ to build the kernel with")
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as cache:
            os.chmod(cache, 0o777)
            env = {"TALWEG_TENSORFLOW_OPS": "auto", "XDG_CACHE_HOME": cache}
            line = [*self.forks.prefix, str(job.PROGRAMS / "tensorflow_orders.py")]
            output = job.run([sys.executable, "-P", *line], env)
            self.assertIn(f"operations: another user may write to {cache}, ", output)
            self.assertNotIn("building the kernel", output)

    def _mixed(self, cache: str) -> None:
        """Runs ranks with the kernel and ranks without it in one job."""
        script = (
            'if [ "$RANK" = 0 ]; then export TALWEG_TENSORFLOW_OPS=python; else export '
            'TALWEG_TENSORFLOW_OPS=kernel; fi; exec "$@"'
        )
        line = job.command("tensorflow_orders.py", nodes=2, ranks=2, forks=self.forks)
        program = line.index("--") + 1
        line = [*line[:program], "/bin/sh", "-c", script, "sh", *line[program:]]
        output = job.run(line, {"XDG_CACHE_HOME": cache})
        self.assertEqual(output.count("has all 100 sums"), 4)

    def test_no_compiler(self) -> None:
        """Without a compiler Python functions serve, with a warning. Forcing the kernel fails."""
        here = {"XDG_CACHE_HOME": os.environ.get("TEST_TMPDIR", "/nowhere"), "PATH": "/nowhere"}
        line = [*self.forks.prefix, str(job.PROGRAMS / "tensorflow_orders.py")]
        output = job.run([sys.executable, "-P", *line], here | {"TALWEG_TENSORFLOW_OPS": "auto"})
        self.assertIn("carry TensorFlow's operations: there is no g++", output)
        wanted = here | {"TALWEG_TENSORFLOW_OPS": "kernel"}
        output = job.run([sys.executable, "-P", *line], wanted, check=False)
        self.assertIn("there is no g++", output)
        self.assertNotIn("has all", output)


if __name__ == "__main__":
    unittest.main()
