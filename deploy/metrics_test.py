# SPDX-License-Identifier: Apache-2.0
"""What talweg_metrics.py writes for Prometheus: of real daemons, and where nobody answers."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import talweg_metrics

RUNFILES = Path(os.environ["RUNFILES_DIR"], "talweg")
SCRIPT = RUNFILES / "deploy/talweg_metrics.py"
TOOL = RUNFILES / "clients/cli/talweg"
# It ends a hang.
TIMEOUT_S = 120

_LABEL = r'[a-z]+="(?:[^"\\\n]|\\["\\n])*"'
_SAMPLE = re.compile(rf"([a-z_]+)(?:\{{({_LABEL}(?:,{_LABEL})*)\}})? ([0-9.e+-]+)")

# Each rank has done a round when rank 0 asks. Nobody leaves before it has.
_PROGRAM = """
import subprocess, sys, numpy as np, talweg
talweg.init()
talweg.push_pull(np.ones(1000, np.float32), name="x")
if talweg.rank() == 0:
    subprocess.run([sys.executable, *sys.argv[1:]], check=True)
talweg.push_pull(np.ones(1, np.float32), name="y")
talweg.shutdown()
"""


class MetricsTest(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.environment = dict(os.environ, TALWEG=str(TOOL))

    def _written(self) -> dict[str, float]:
        """The samples; each metric has its kind, and its samples stand together."""
        [file] = self.directory.iterdir()
        self.assertEqual((file.name, file.stat().st_mode & 0o777), ("talweg.prom", 0o644))
        samples: dict[str, float] = {}
        known: list[str] = []
        for line in file.read_text().splitlines():
            if line.startswith("# TYPE "):
                known.append(line.split()[2])
            elif not line.startswith("# HELP "):
                sample = _SAMPLE.fullmatch(line)
                assert sample is not None, line
                self.assertEqual(sample[1], known[-1])
                self.assertNotIn(line.rpartition(" ")[0], samples)
                samples[line.rpartition(" ")[0]] = float(sample[3])
        self.assertEqual(len(known), len({*known}))
        return samples

    def test_a_job(self) -> None:
        ask = [str(SCRIPT), str(self.directory)]
        done = subprocess.run(
            [TOOL, "run", "--nodes=2", "--job=a\\b", "--", sys.executable, "-c", _PROGRAM, *ask],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        found = self._written()
        job = r'job="a\\b"'
        for sample, value in (
            ("talweg_up", 1),
            (f'talweg_job_state{{{job},state="running"}}', 1),
            (f"talweg_job_members{{{job}}}", 2),
            (f"talweg_job_members_needed{{{job}}}", 2),
            (f'talweg_member_attached{{{job},node="1"}}', 1),
            (f'talweg_agent_up{{{job},node="1"}}', 1),
            (f'talweg_agent_bytes_pushed_total{{{job},node="0"}}', 4000),
            (f'talweg_agent_counter{{{job},node="0",counter="pushes"}}', 1),
            ('talweg_aggregator_up{aggregator="0"}', 1),
            ('talweg_aggregator_jobs{aggregator="0"}', 1),
        ):
            self.assertEqual(found.get(sample), value, sample)
        # One slice has been summed, or two: y's may be.
        places = [f'{{aggregator="0",{job},node="{node}"}}' for node in (0, 1)]
        self.assertEqual(sum(found["talweg_member_last_share" + place] for place in places), 1)
        self.assertIn("talweg_member_behind_seconds" + places[1], found)
        self.assertGreater(found["talweg_scheduler_start_time_seconds"], 1e9)

    def test_where_nobody_answers(self) -> None:
        done = subprocess.run(
            [sys.executable, SCRIPT, self.directory, "--scheduler=127.0.0.1:1"],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        self.assertEqual(done.returncode, 1)
        self.assertIn("127.0.0.1:1 does not answer", done.stderr)
        self.assertEqual(self._written(), {"talweg_up": 0})

    def test_where_the_answer_takes_too_long(self) -> None:
        tool = self.directory / "tool"
        tool.write_text("#!/bin/sh\nexec sleep 1000\n")
        tool.chmod(0o755)
        file = self.directory / "talweg.prom"
        file.write_text("as before\n")
        said = io.StringIO()
        with (
            mock.patch.dict(os.environ, TALWEG=str(tool)),
            mock.patch.object(sys, "argv", ["talweg_metrics.py", str(self.directory)]),
            mock.patch.object(talweg_metrics, "_TIMEOUT_S", 0.1),
            contextlib.redirect_stderr(said),
        ):
            self.assertEqual(talweg_metrics.main(), 1)
        self.assertEqual(said.getvalue().count("\n"), 1, said.getvalue())
        self.assertIn(f"{tool} status has not ended within 0.1 s; {file} stays", said.getvalue())
        self.assertEqual(file.read_text(), "as before\n")

    def test_a_daemon_that_does_not_answer(self) -> None:
        metrics = talweg_metrics.Metrics()
        talweg_metrics.of_agent(metrics, {"error": "gone"}, job="j", node="0")
        talweg_metrics.of_aggregator(metrics, "a", {"error": "gone"})
        self.assertIn('talweg_agent_up{job="j",node="0"} 0\n', metrics.text())
        self.assertIn('talweg_aggregator_up{aggregator="a"} 0\n', metrics.text())


if __name__ == "__main__":
    unittest.main()
