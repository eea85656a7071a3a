# SPDX-License-Identifier: Apache-2.0
"""horovodrun's options, on one host."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import job
from talweg.horovod import runner
from talweg.horovod._environment import TABLE

_PRINT = (
    "import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'],"
    " os.environ['HOROVOD_FUSION_THRESHOLD'])"
)


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "talweg.horovod.runner", *arguments],
        capture_output=True,
        text=True,
        timeout=job.TIMEOUT_S,
        check=False,
    )


class HorovodrunTest(unittest.TestCase):
    def test_ranks_of_this_host(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            hosts = Path(directory) / "hosts"
            hosts.write_text("localhost slots=2\n\n")
            output = Path(directory) / "output"
            program = [sys.executable, "-P", "-c", _PRINT]
            options = ["-np", "2", "--hostfile", str(hosts), "--fusion-threshold-mb", "32"]
            done = _run(*options, "--output-filename", str(output), "--gloo", *program)
            self.assertEqual(done.returncode, 0, done.stderr)
            for rank in range(2):
                text = (output / f"rank.{rank}" / "stdout").read_text()
                self.assertEqual(text, f"{rank} 2 {32 << 20}\n")
        done = _run("-np", "2", sys.executable, "-c", "import sys; sys.exit(5)")
        self.assertEqual(done.returncode, 5)

    def test_what_is_not_offered_says_what_to_use(self) -> None:
        for arguments, text in (
            (
                ["-np", "2", "-H", "elsewhere.invalid:2", "x"],
                "elsewhere.invalid .* ssh to it failed",
            ),
            (["-np", "2", "-H", "a b:2", "x"], "'a b:2' is no host: write host:slots"),
            (["-np", "2", "--min-np", "1", "x"], "--min-np .*talweg run --loss-policy=continue"),
            (["-np", "0", "x"], "-np is 0"),
            (["x"], "-np is None"),
            (["-np", "2"], "no program"),
            (["-np", "2", "-H", "a:1", "--hostfile", "f", "x"], "both given"),
        ):
            done = _run(*arguments)
            self.assertEqual(done.returncode, 1, arguments)
            self.assertRegex(done.stderr, text)

    def test_options_set_variables_that_the_table_has(self) -> None:
        switches = [option for option in runner._SWITCHES if not option.startswith("--no-")]
        numbers = [word for option in runner._NUMBERS for word in (option, "7")]
        texts = [word for option in runner._TEXTS for word in (option, "info")]
        options = runner._parser().parse_args([*switches, *numbers, *texts, "x"])
        variables = runner.variables_of(options)
        self.assertGreater(len(variables), 20)
        TABLE.check(variables)
        self.assertEqual(TABLE.misspelt(variables), [])


if __name__ == "__main__":
    unittest.main()
