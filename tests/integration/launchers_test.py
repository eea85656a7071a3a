# SPDX-License-Identifier: Apache-2.0
"""Tests that a program finds its rank in the variables of the launcher that has started it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import job
from talweg import errors
from talweg._client import agents

_PROGRAM = (
    "import talweg; talweg.init(); print(talweg.rank(), talweg.local_rank()); talweg.barrier()"
)
_LAUNCHERS = {
    "talweg run": ("RANK", "LOCAL_RANK"),
    "torchrun": ("RANK", "LOCAL_RANK"),
    "mpirun of Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "mpirun of Intel MPI and MPICH": ("PMI_RANK", "MPI_LOCALRANKID"),
    "srun": ("SLURM_PROCID", "SLURM_LOCALID"),
}
_KNOWN = {name for names in _LAUNCHERS.values() for name in names} | {"TALWEG_LOCAL_RANK"}


class LaunchersTest(unittest.TestCase):
    def test_ranks_that_were_started_in_any_order(self) -> None:
        for launcher, (rank_variable, local_variable) in _LAUNCHERS.items():
            with self.subTest(launcher), tempfile.TemporaryDirectory(dir="/tmp") as directory:
                self._run(Path(directory), rank_variable, local_variable)

    def _run(self, directory: Path, rank_variable: str, local_variable: str) -> None:
        agent = subprocess.Popen(
            [
                str(Path(job.TOOL).parents[2] / "services" / "agent" / "talweg-agent"),
                "--standalone",
                "--rank_count=3",
                f"--socket_path={directory}/agent.sock",
                "--ready_fd=1",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.addCleanup(agent.communicate)
        self.addCleanup(agent.kill)
        assert agent.stdout is not None
        self.assertIn("socket", json.loads(agent.stdout.readline())["addresses"])
        ranks = []
        for number in (2, 0, 1):  # The process that comes first is not rank 0.
            environment = {k: v for k, v in os.environ.items() if k not in _KNOWN}
            environment["TALWEG_AGENT_SOCKET"] = f"{directory}/agent.sock"
            environment[rank_variable] = str(number)
            environment[local_variable] = str(number)
            ranks.append(
                subprocess.Popen(
                    [sys.executable, "-P", "-c", _PROGRAM],
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        for number, rank in zip((2, 0, 1), ranks):
            output, _ = rank.communicate(timeout=job.TIMEOUT_S)
            self.assertEqual(output, f"{number} {number}\n")

    def test_what_is_no_rank(self) -> None:
        for variable in ("LOCAL_RANK", "SLURM_LOCALID"):
            for text in ("x", "-1", "\N{SUPERSCRIPT TWO}", "4294967295"):
                with self.assertRaisesRegex(errors.InvalidArgument, f"{variable} is '{text}'"):
                    agents.local_rank_from_environment({variable: text})

    def test_nobody_has_said(self) -> None:
        self.assertIsNone(agents.local_rank_from_environment({"RANK": "3"}))
        self.assertIsNone(agents.local_rank_from_environment({"LOCAL_RANK": ""}))

    def test_ours_goes_before_others(self) -> None:
        environment = {"SLURM_LOCALID": "1", "LOCAL_RANK": "2", "TALWEG_LOCAL_RANK": "3"}
        self.assertEqual(agents.local_rank_from_environment(environment), 3)


if __name__ == "__main__":
    unittest.main()
