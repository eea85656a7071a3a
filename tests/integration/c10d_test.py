# SPDX-License-Identifier: Apache-2.0
"""torch.distributed over Talweg: its calls and its ways to train do what they do over Gloo."""

from __future__ import annotations

import os
import re
import unittest
from pathlib import Path
from typing import ClassVar

import job
from torch_forks import TorchForks

_EXAMPLE = Path(os.environ["RUNFILES_DIR"]) / "talweg" / "examples" / "ddp.py"


class C10dTest(unittest.TestCase):
    forks: ClassVar[TorchForks]

    @classmethod
    def setUpClass(cls) -> None:
        cls.forks = TorchForks()
        cls.forks.__enter__()
        cls.addClassCleanup(cls.forks.__exit__)

    def test_calls_on_one_node(self) -> None:
        job.run(job.command("c10d_calls.py", ranks=2, forks=self.forks))

    def test_calls_on_two_nodes(self) -> None:
        job.run(job.command("c10d_calls.py", nodes=2, ranks=2, aggregators=1, forks=self.forks))

    def test_training_on_one_node(self) -> None:
        job.run(job.command("c10d_training.py", ranks=4, forks=self.forks))

    def test_training_on_two_nodes(self) -> None:
        job.run(job.command("c10d_training.py", nodes=2, ranks=1, aggregators=1, forks=self.forks))

    def test_errors_and_what_gloo_has_not(self) -> None:
        job.run(job.command("c10d_errors.py", ranks=3, forks=self.forks))

    def test_example(self) -> None:
        output = job.run(
            job.command(str(_EXAMPLE), nodes=2, ranks=2, aggregators=1, forks=self.forks)
        )
        found = re.search(r"loss (\S+) on 4 ranks, weights alike: True", output)
        assert found is not None, output
        self.assertLess(float(found[1]), 0.3, output)


if __name__ == "__main__":
    unittest.main()
