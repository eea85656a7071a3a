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
            (["-np", "2", "--min-np", "3", "x"], "--min-np is 3, and -np 2"),
            (["-np", "2", "--min-np", "0", "x"], "--min-np is 0; it must be at least 1"),
            (["-np", "2", "--min-np", "1", "--max-np", "1", "x"], "--max-np is 1, and -np 2"),
            (
                ["-np", "2", "--host-discovery-script", "s", "-H", "a:2", "x"],
                "--host-discovery-script and --hosts .*: give one",
            ),
            (
                ["-np", "2", "--min-np", "1", "--blacklist-cooldown-range", "9", "3", "x"],
                "--blacklist-cooldown-range is 9 3; it must be two numbers",
            ),
            (["-np", "0", "x"], "-np is 0"),
            (["x"], "-np is None"),
            (["-np", "2"], "no program"),
            (["-np", "2", "-H", "a:1", "--hostfile", "f", "x"], "both given"),
        ):
            done = _run(*arguments)
            self.assertEqual(done.returncode, 1, arguments)
            self.assertRegex(done.stderr, text)

    def test_what_has_no_effect_is_said(self) -> None:
        options = ["--max-np", "4", "--elastic-timeout", "9", "--reset-limit", "1"]
        options += ["--slots-per-host", "2", "--blacklist-cooldown-range", "1", "2"]
        done = _run("-np", "1", *options, "true")
        self.assertEqual(done.returncode, 0, done.stderr)
        for option in options:
            if option.startswith("--"):
                self.assertIn(f"{option} has no effect without --min-np or", done.stderr)

    def test_options_of_elastic_jobs(self) -> None:
        """Each reaches talweg run, which carries it out."""
        options = ["--min-np", "2", "--max-np", "8", "--slots-per-host", "2", "--reset-limit", "5"]
        options += ["--elastic-timeout", "60", "--blacklist-cooldown-range", "3", "9", "-p", "22"]
        options += ["--host-discovery-script", "./hosts", "--network-interfaces", "a,b"]
        line = runner._elastic_line(runner.parse(["-np", "4", *options, "x"]))
        wanted = ["--ranks=4", "--min-ranks=2", "--max-ranks=8", "--hosts-wait-s=60"]
        wanted += ["--ranks-per-node=2", "--host-changes-max=5", "--host-cooldown-s=3,9"]
        wanted += ["--host-discovery-script=./hosts", "--network-interfaces=a,b", "--ssh-port=22"]
        self.assertEqual(sorted(line), sorted(wanted))
        line = runner._elastic_line(runner.parse(["-np", "4", "--min-np", "1", "x"]))
        self.assertEqual(sorted(line), ["--hosts=localhost:4", "--min-ranks=1", "--ranks=4"])

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
