# SPDX-License-Identifier: Apache-2.0
"""Tests that a command whose output cannot be written fails, and says so."""

import os
import pathlib
import subprocess
import unittest

TOOL = pathlib.Path(os.environ["RUNFILES_DIR"], "talweg/clients/cli/talweg")
TIMEOUT_S = 60

COMMANDS = (
    "--help",
    "help run",
    "run --help",
    "agent --help",
    "version",
    "version --json",
    "topology",
    "completion bash",
)


class PrintTest(unittest.TestCase):
    def test_a_full_disk(self) -> None:
        for command in COMMANDS:
            with self.subTest(command), open("/dev/full", "wb") as full:
                done = subprocess.run(
                    [TOOL, *command.split()],
                    stdout=full,
                    stderr=subprocess.PIPE,
                    text=True,
                    timeout=TIMEOUT_S,
                    check=False,
                )
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(
                    "talweg: stdout cannot be written: No space left on device", done.stderr
                )


if __name__ == "__main__":
    unittest.main()
