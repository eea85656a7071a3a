# SPDX-License-Identifier: Apache-2.0
"""How a rank ends that comes when its job has finished."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest

_PROGRAM = """
import talweg
from talweg._client import late
late.explain()
late.explain()
try:
    raise talweg.JobFailed({text!r})
except talweg.JobFailed as failure:
    raise RuntimeError("init() has failed") from failure
"""
_FINISHED = "job 'run' has finished: all members have left before node 1 could enter"


def _errors_of(text: str, **variables: str) -> str:
    program = [sys.executable, "-P", "-c", _PROGRAM.format(text=text)]
    known = {name: value for name, value in os.environ.items() if name != "TALWEG_HOST"}
    done = subprocess.run(
        program, env={**known, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done
    return done.stderr


class LateTest(unittest.TestCase):
    def test_a_line_says_why(self) -> None:
        said = f"talweg: this rank comes too late: {_FINISHED}\n"
        self.assertEqual(_errors_of(_FINISHED, TALWEG_HOST="b"), said)

    def test_other_ends_are_told_as_ever(self) -> None:
        for text, variables in (("node 0 was killed", {"TALWEG_HOST": "b"}), (_FINISHED, {})):
            errors = _errors_of(text, **variables)
            self.assertIn("Traceback", errors)
            self.assertIn("RuntimeError: init() has failed", errors)


if __name__ == "__main__":
    unittest.main()
