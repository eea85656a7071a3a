# SPDX-License-Identifier: Apache-2.0
"""Tests that a program without a launcher is a job of one rank that works as any job."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest

import job
from talweg._client import local

# The environment without variables that the launcher of this test may have set.
_CLEAN = {k: v for k, v in os.environ.items() if k not in local._LAUNCHED}

# The program keeps one object until the interpreter's modules end. The other one goes at once.
_KEPT = """
import builtins
from talweg import _client
from talweg._client import process
def make():
    class Kept:
        def method(self, client): print(1, end=" ")
    kept = Kept()
    kept.itself = kept
    _client.call_when_replaced(kept.method)
    return kept
class Gone:
    def method(self, client): print(2)
builtins.kept = make()
_client.call_when_replaced(Gone().method)
process._keepers(None)
print(len(process._keepers) - 1)
"""


def _run(program: str, *arguments: str) -> str:
    environment = dict(_CLEAN)
    path = [environment.get("PYTHONPATH", ""), str(job.PROGRAMS.parent)]
    environment["PYTHONPATH"] = ":".join(path)
    done = subprocess.run(
        [sys.executable, "-P", str(job.PROGRAMS / program), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=job.TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class AloneTest(unittest.TestCase):
    def test_numpy(self) -> None:
        self.assertIn("case refused_arguments", _run("numpy_features.py"))

    def test_torch(self) -> None:
        self.assertIn("case forked_child", _run("torch_features.py"))

    def test_values_of_wrong_types(self) -> None:
        for framework in ("numpy", "torch"):
            self.assertIn("case talweg", _run("wrong_types.py", framework))

    def test_training(self) -> None:
        _run("torch_training.py")

    def test_steps(self) -> None:
        _run("torch_steps.py")

    def test_what_goes_with_the_interpreter(self) -> None:
        """An object whose method a client calls may live as long as the interpreter."""
        done = subprocess.run(
            [sys.executable, "-P", "-c", _KEPT],
            env=_CLEAN,
            capture_output=True,
            text=True,
            timeout=job.TIMEOUT_S,
            check=False,
        )
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "1 0\n", ""))

    def test_who_was_launched_is_not_alone(self) -> None:
        """A launched rank without an agent fails. Otherwise each rank would train alone."""
        for name in local._LAUNCHED:
            self.assertFalse(local.is_alone({name: "0"}), name)
        self.assertTrue(local.is_alone({"SLURM_PROCID": "0"}))  # A batch script has this variable.
        self.assertTrue(local.is_alone({"HOME": "/", "RANK": ""}))
        done = subprocess.run(
            [sys.executable, "-P", "-c", "import talweg; talweg.init()"],
            env=dict(_CLEAN, RANK="1"),
            capture_output=True,
            text=True,
            timeout=job.TIMEOUT_S,
            check=False,
        )
        self.assertEqual(done.returncode, 1)
        self.assertIn("TALWEG_AGENT_SOCKET", done.stderr)

    def test_a_scheduler_that_nothing_joins(self) -> None:
        """A user who names a scheduler hears why this process does not join it."""
        for scheduler in ("127.0.0.1:9", ""):
            done = subprocess.run(
                [sys.executable, "-P", "-c", "import talweg; talweg.init(); print(talweg.size())"],
                env=dict(_CLEAN, TALWEG_SCHEDULER=scheduler),
                capture_output=True,
                text=True,
                timeout=job.TIMEOUT_S,
                check=False,
            )
            self.assertEqual((done.returncode, done.stdout), (0, "1\n"), done.stderr)
            if not scheduler:
                self.assertEqual(done.stderr, "")
                continue
            begin = f"talweg: TALWEG_SCHEDULER={scheduler} has no effect: no launcher has started "
            self.assertEqual(done.stderr.count(begin), 1, done.stderr)
            self.assertIn(f"talweg run --scheduler={scheduler} --nodes=N", done.stderr)


if __name__ == "__main__":
    unittest.main()
