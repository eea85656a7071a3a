# SPDX-License-Identifier: Apache-2.0
"""Tests ranks that the real srun starts on virtual nodes of this host."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import ClassVar

from launcher_site import RANK, SiteTest
from permitted import needs
from slurm_cluster import SlurmCluster

_EXAMPLES = Path(os.environ["RUNFILES_DIR"]) / "talweg" / "examples"
# The variables that torch's env:// needs.
_TORCHS = (
    "RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE=2 "
    "GROUP_RANK=$SLURM_NODEID GROUP_WORLD_SIZE=$SLURM_NNODES"
)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class SrunTest(SiteTest):
    cluster: ClassVar[dict[str, str]]

    @classmethod
    def setUpClass(cls) -> None:
        for program in ("munged", "slurmctld", "slurmd", "srun"):
            needs(program)
        if os.getuid() != 0:
            print("SKIPPED: slurmd is root's")
            raise unittest.SkipTest("slurmd is root's")
        directory = tempfile.TemporaryDirectory(prefix="talweg.", dir="/tmp")
        cls.addClassCleanup(directory.cleanup)
        cluster = SlurmCluster(Path(directory.name), nodes=2, cpus=4)
        cls.cluster = cluster.__enter__()
        cls.addClassCleanup(cluster.__exit__)

    def setUp(self) -> None:
        super().setUp()
        self.environment.update(self.cluster)

    def test_one_node(self) -> None:
        output = self.run_line(["srun", "--nodes=1", "--ntasks=2", *RANK, "sum"])
        self.require_ranks(output, [2])
        self.require_nothing_left()

    def test_two_nodes(self) -> None:
        output = self.run_line(["srun", "--nodes=2", "--ntasks=3", *RANK, "sum"])
        self.require_ranks(output, [2, 1])
        self.require_nothing_left()

    def test_several_lives(self) -> None:
        output = self.run_line(["srun", "--nodes=2", "--ntasks=2", *RANK, "again"])
        self.require_ranks(output, [1, 1])
        self.require_nothing_left()

    def test_the_examples(self) -> None:
        for example, variables, said in (
            ("ddp.py", _TORCHS, r"on 4 ranks, weights alike: True"),
            ("fsdp.py", _TORCHS, r"on 4 ranks, each keeps 2[45678] % of"),
            ("elastic.py --epochs=1", "", r"weights (\w+) accuracy"),
        ):
            with self.subTest(example=example):
                line = f"{variables} exec {sys.executable} -P {_EXAMPLES}/{example}"
                output = self.run_line(
                    ["srun", "--nodes=2", "--ntasks-per-node=2", "sh", "-c", line],
                    MASTER_ADDR="127.0.0.1" if variables else "",
                    MASTER_PORT=str(_free_port()) if variables else "",
                )
                found = re.findall(said, output)
                if variables:
                    self.assertEqual(len(found), 1, output)
                else:
                    self.assertEqual((len(found), len(set(found))), (4, 1), output)
                self.require_nothing_left()

    def test_two_steps_of_one_allocation(self) -> None:
        step = ["srun", "--nodes=2", "--ntasks=2", "--exact", "--overlap", *RANK, "sum"]
        line = f"{' '.join(step)} & {' '.join(step)} & wait"
        output = self.run_line(["salloc", "--nodes=2", "--ntasks=4", "sh", "-c", line])
        self.require_ranks(output, [1, 1], times=2)
        self.require_nothing_left()

    def test_a_rank_dies(self) -> None:
        line = ["srun", "--nodes=2", "--ntasks=2", "--kill-on-bad-exit=1", *RANK, "die", "1"]
        self.run_line(line, status=None)
        self.require_nothing_left()

    def test_a_shell_in_an_allocation_is_no_rank(self) -> None:
        """Neither a shell nor the batch script, which has a SLURM_PROCID, is a rank."""
        line = ["salloc", "--nodes=2", "--ntasks=4", *RANK, "sum"]
        self.require_ranks(self.run_line(line), [1])
        script = self.directory / "script"
        script.write_text("#!/bin/sh\nenv | grep SLURM_PROCID\nexec " + " ".join(RANK) + " sum\n")
        output = self.directory / "output"
        line = ["sbatch", "--wait", "--nodes=2", "--ntasks=4", f"--output={output}", str(script)]
        subprocess.run(line, env=self.environment, check=True, timeout=120, capture_output=True)
        self.assertIn("SLURM_PROCID=0", output.read_text())
        self.require_ranks(output.read_text(), [1])


if __name__ == "__main__":
    unittest.main()
