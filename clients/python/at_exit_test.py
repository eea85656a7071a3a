# SPDX-License-Identifier: Apache-2.0
"""Tests what a rank says to `talweg run` when its program ends."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

_BEGIN = "import os, sys\nfrom talweg import _at_exit\n_at_exit.register(lambda: None)\n"


class MarkTest(unittest.TestCase):
    def mark_after(self, program: str) -> str | None:
        """Returns what the mark holds after the program; None: there is no mark."""
        with tempfile.TemporaryDirectory() as directory:
            mark = Path(directory, "mark")
            environment = dict(
                os.environ, TALWEG_RUN_FAILS=str(mark), PYTHONPATH=os.pathsep.join(sys.path)
            )
            line = [sys.executable, "-c", _BEGIN + program]
            subprocess.run(line, env=environment, check=False, stderr=subprocess.DEVNULL)
            return mark.read_text() if mark.exists() else None

    def test_it_holds_the_status_after_an_error(self) -> None:
        self.assertEqual(self.mark_after("raise ValueError('x')"), "1\n")

    def test_it_holds_none_if_the_status_is_not_known(self) -> None:
        self.assertEqual(self.mark_after("sys.exit(7)"), "")
        self.assertEqual(self.mark_after("pass"), "")

    def test_a_fork_leaves_none(self) -> None:
        program = "if os.fork() == 0: raise ValueError('x')\nos.wait()\nos._exit(0)"
        self.assertIsNone(self.mark_after(program))

    def test_a_call_is_registered_once_in_a_process(self) -> None:
        program = (
            "import atexit\nbefore = atexit._ncallbacks()\n"
            "def call(): pass\n"
            "for _ in range(3): _at_exit.register(call)\n"
            "assert atexit._ncallbacks() == before + 1\n"
            "if os.fork() == 0:\n"
            "    _at_exit.register(call)\n"
            "    os._exit(atexit._ncallbacks() - before)\n"
            "raise ValueError if os.wait()[1] >> 8 != 2 else SystemExit(0)"
        )
        self.assertEqual(self.mark_after(program), "")


if __name__ == "__main__":
    unittest.main()
