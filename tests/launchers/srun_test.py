# SPDX-License-Identifier: Apache-2.0
"""Tests ranks that the real srun starts on virtual nodes of this host."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import ClassVar

from launcher_site import RANK, SiteTest, backend, in_fork
from permitted import needs
from slurm_cluster import SlurmCluster

_EXAMPLES = Path(os.environ["RUNFILES_DIR"]) / "talweg" / "examples"


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
        for example, said, count in (
            ("ddp.py", r"on 4 ranks, weights alike: True", 1),
            ("fsdp.py", r"on 4 ranks, each keeps 2[45678] % of", 1),
            ("elastic.py --epochs=1", r"weights (\w+) accuracy", 4),
        ):
            with self.subTest(example=example):
                name, *options = example.split()
                program = in_fork([str(_EXAMPLES / name), *options])
                output = self.run_line(["srun", "--nodes=2", "--ntasks-per-node=2", *program])
                found = re.findall(said, output)
                self.assertEqual((len(found), len(set(found))), (count, 1), output)
                self.require_nothing_left()

    def test_a_store_that_the_program_places(self) -> None:
        """MASTER_ADDR and MASTER_PORT count, though srun sets no RANK."""
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = str(probe.getsockname()[1])
        line = ["srun", "--nodes=2", "--ntasks=2", *backend()]
        output = self.run_line(line, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        self.require_ranks_of_torch(output, 2)
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
