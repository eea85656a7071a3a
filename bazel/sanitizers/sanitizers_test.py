# SPDX-License-Identifier: Apache-2.0
"""Tests that a sanitizer's report fails a test, whichever of its processes was reported."""

from __future__ import annotations

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

_HERE = Path(os.environ["RUNFILES_DIR"]) / "talweg" / "bazel" / "sanitizers"
_RUN_TEST = str(_HERE / "run_test")
_PLANTED_BUG = str(_HERE / "planted_bug")
_SANITIZER = os.environ.get("TALWEG_SANITIZER", "")
_BUGS = {
    "asan": {"overflow": "heap-buffer-overflow", "leak": "LeakSanitizer"},
    "tsan": {"race": "data race"},
    "ubsan": {"arithmetic": "signed integer overflow"},
}


def run(*command: str) -> tuple[int, str]:
    """Runs a program as a test under a sanitizer runs. Returns its exit status and its output."""
    with tempfile.TemporaryDirectory() as directory:
        environment = dict(os.environ, TEST_TMPDIR=directory)
        # run_test.sh sets this for Python programs that it starts. A C++ test must not see it.
        environment.pop("LD_PRELOAD", None)
        done = subprocess.run(
            [_RUN_TEST, *command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )
        left = os.listdir(directory)
        assert not left, left
        return done.returncode, done.stdout


class SanitizersTest(unittest.TestCase):
    def test_a_clean_test_passes(self) -> None:
        self.assertEqual(run(_PLANTED_BUG, "none")[0], 0)

    def test_a_failing_test_fails(self) -> None:
        self.assertEqual(run("bash", "-c", "exit 7")[0], 7)

    def test_a_report_fails_a_test_that_passed(self) -> None:
        for variable in ("ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"):
            status, output = run(
                "bash", "-c", f"log=${{{variable}##*log_path=}}; echo wrong >${{log%%:*}}.123"
            )
            self.assertEqual(status, 1, output)
            self.assertIn("wrong", output)
            self.assertIn("process 123", output)

    def test_planted_bugs_are_found(self) -> None:
        for bug, words in _BUGS.get(_SANITIZER, {}).items():
            with self.subTest(bug=bug):
                status, output = run(_PLANTED_BUG, bug)
                self.assertNotEqual(status, 0, output)
                self.assertIn(words, output)

    def test_planted_bugs_of_a_process_that_nobody_asks_about_are_found(self) -> None:
        for bug, words in _BUGS.get(_SANITIZER, {}).items():
            with self.subTest(bug=bug):
                status, output = run(
                    "bash", "-c", f"'{_PLANTED_BUG}' {bug} >/dev/null 2>&1 || true"
                )
                self.assertEqual(status, 1, output)
                self.assertIn(words, output)


if __name__ == "__main__":
    unittest.main()
