# SPDX-License-Identifier: Apache-2.0
"""`talweg run --scheduler` once for each machine, beside daemons that somebody else has started."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest

from cluster import DEADLINE_S, PROGRAMS, RUNFILES, Cluster


class SeveralMachinesTest(unittest.TestCase):
    def test_two_nodes_of_one_job(self) -> None:
        with Cluster() as cluster:
            address = cluster.scheduler(["--in_memory"]).addresses["listen"]
            cluster.aggregator(address, "a0")
            tool = str(RUNFILES / "clients" / "cli" / "talweg")
            program = [sys.executable, "-P", str(PROGRAMS / "ten_steps.py")]
            runs = [
                subprocess.Popen(
                    [
                        tool,
                        "run",
                        f"--scheduler={address}",
                        "--nodes=2",
                        f"--node-rank={node}",
                        "--ranks-per-node=2,1",
                        "--",
                        *program,
                    ],
                    env=dict(os.environ),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
                for node in range(2)
            ]
            outputs = [run.communicate(timeout=DEADLINE_S)[0] for run in runs]
            for run, output in zip(runs, outputs):
                self.assertEqual(run.returncode, 0, output)
            self.assertIn("[0] rank 0 of 3, local 0 of 2: done", outputs[0])
            self.assertIn("[1] rank 1 of 3, local 1 of 2: done", outputs[0])
            self.assertIn("[2] rank 2 of 3, local 0 of 1: done", outputs[1])


if __name__ == "__main__":
    unittest.main()
