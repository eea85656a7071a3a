# SPDX-License-Identifier: Apache-2.0
"""Tests each feature of talweg.torch, with one rank, on one node and on two."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import ClassVar

import job
from torch_forks import TorchForks


class TorchTest(unittest.TestCase):
    forks: ClassVar[TorchForks]

    @classmethod
    def setUpClass(cls) -> None:
        cls.forks = TorchForks()
        cls.forks.__enter__()
        cls.addClassCleanup(cls.forks.__exit__)

    def test_one_rank(self) -> None:
        job.run(job.command("torch_features.py", nodes=1, ranks=1, forks=self.forks))

    def test_one_node(self) -> None:
        job.run(job.command("torch_features.py", nodes=1, ranks=2, forks=self.forks))

    def test_two_nodes(self) -> None:
        line = job.command(
            "torch_features.py", nodes=2, ranks=(2, 1), aggregators=2, forks=self.forks
        )
        job.run(line)

    def test_training_on_one_rank(self) -> None:
        job.run(job.command("torch_training.py", nodes=1, ranks=1, forks=self.forks))

    def test_training_on_one_node(self) -> None:
        job.run(job.command("torch_training.py", nodes=1, ranks=2, forks=self.forks))

    def test_training_with_the_smallest_gradients_in_place(self) -> None:
        for ranks in (1, 2):
            line = job.command("torch_training.py", ["in_place"], ranks=ranks, forks=self.forks)
            job.run(line)

    def test_training_on_two_nodes(self) -> None:
        line = job.command("torch_training.py", nodes=2, ranks=(2, 1), forks=self.forks)
        job.run(line)

    def test_steps(self) -> None:
        for nodes, ranks in ((1, 1), (1, 2), (2, (2, 1))):
            with self.subTest(nodes=nodes):
                line = job.command("torch_steps.py", nodes=nodes, ranks=ranks, forks=self.forks)
                job.run(line)

    def test_another_default_device(self) -> None:
        for nodes, ranks in ((1, 2), (2, (2, 1))):
            with self.subTest(nodes=nodes):
                line = job.command("default_device.py", nodes=nodes, ranks=ranks, forks=self.forks)
                job.run(line)

    def test_compiled_steps(self) -> None:
        job.run(job.command("torch_compiled.py", ranks=2, forks=self.forks))

    def test_a_parameter_that_is_thawed_at_one_rank_is_named(self) -> None:
        line = job.command("torch_training.py", ["thawed_at_one_rank"], ranks=2, forks=self.forks)
        output = job.run(line, check=False)
        self.assertIn("another rank has a gradient of '0.weight', which is frozen here", output)

    def test_forked_ranks_end_as_others_do(self) -> None:
        """If forks did not report failures, no test here could fail."""
        with tempfile.TemporaryDirectory() as directory:
            program = Path(directory) / "program.py"
            line = [sys.executable, "-P", *self.forks.prefix, str(program)]
            for text, wanted in (
                ("import sys; print(sys.argv[1:]); sys.exit(7)", (7, "['a', 'b']\n")),
                ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", (137, "")),
            ):
                program.write_text(text)
                done = subprocess.run(
                    [*line, "a", "b"], capture_output=True, text=True, check=False
                )
                self.assertEqual((done.returncode, done.stdout), wanted)
            program.write_text("import time; print('up', flush=True); time.sleep(3600)")
            with subprocess.Popen(line, stdout=subprocess.PIPE) as starter:
                assert starter.stdout is not None
                self.assertEqual(starter.stdout.readline(), b"up\n")
                starter.kill()
                self.assertEqual(starter.stdout.read(), b"")  # The rank has died, too.
            program.write_text("assert False, 'wrong'")
            with self.assertRaisesRegex(AssertionError, "exit 1(.|\n)*AssertionError: wrong"):
                job.run([job.TOOL, "run", "--ranks-per-node=2", "--", *line])


if __name__ == "__main__":
    unittest.main()
