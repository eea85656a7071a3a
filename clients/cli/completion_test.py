# SPDX-License-Identifier: Apache-2.0
"""Tests completion scripts: the shells accept them, and bash completes with them."""

import os
import pathlib
import shutil
import subprocess
import unittest

TOOL = pathlib.Path(os.environ["RUNFILES_DIR"], "talweg/clients/cli/talweg")
TIMEOUT_S = 60


def script(shell: str) -> str:
    return subprocess.run(
        [TOOL, "completion", shell], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    ).stdout


def complete(line: str) -> list[str]:
    words = line.split(" ")
    array = " ".join(f"'{word}'" for word in words)
    code = (
        f"compopt() {{ :; }}\n{script('bash')}\n"
        f"COMP_WORDS=({array}); COMP_CWORD={len(words) - 1}; _talweg; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(
        ["bash", "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    return done.stdout.split()


class CompletionTest(unittest.TestCase):
    def test_bash_completes_commands_and_options(self) -> None:
        self.assertEqual(complete("talweg ver"), ["version"])
        self.assertIn("doctor", complete("talweg "))
        self.assertEqual(complete("talweg run --ranks-"), ["--ranks-per-node="])
        self.assertEqual(complete("talweg agent --node_r"), ["--node_rank="])
        self.assertEqual(complete("talweg run -- --ranks"), [])

    def test_every_shell_that_is_here_accepts_its_script(self) -> None:
        for shell in ("bash", "zsh", "fish"):
            self.assertIn("ranks-per-node", script(shell))
            if shutil.which(shell) is not None:
                subprocess.run(
                    [shell, "-n"], input=script(shell), text=True, timeout=TIMEOUT_S, check=True
                )

    def test_another_shell(self) -> None:
        for arguments in (["tcsh"], [], ["bash", "zsh"]):
            done = subprocess.run(
                [TOOL, "completion", *arguments],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            self.assertEqual(done.returncode, 2)
            self.assertIn("bash, zsh", done.stderr)


if __name__ == "__main__":
    unittest.main()
