# SPDX-License-Identifier: Apache-2.0
"""Tests AsynchronousOptimizer: feature by feature, what is learned beside a slow rank, and BytePS's
variable for it.
"""

from __future__ import annotations

import os
import re
import sys
import unittest
from pathlib import Path
from typing import ClassVar

import job
from torch_forks import TorchForks

_EXAMPLE = Path(os.environ["RUNFILES_DIR"]) / "talweg" / "examples" / "asynchronous.py"
_LINE = re.compile(
    r"accuracy ([\d.]+) loss ([\d.]+), steps of each rank (\[.*\]), largest difference between two "
    r"ranks ([\d.]+)"
)


class AsynchronousTest(unittest.TestCase):
    forks: ClassVar[TorchForks]

    @classmethod
    def setUpClass(cls) -> None:
        cls.forks = TorchForks(("torch", "sklearn.datasets"))
        cls.forks.__enter__()
        cls.addClassCleanup(cls.forks.__exit__)

    def test_features(self) -> None:
        for nodes, ranks in ((1, 1), (1, 3), (2, (2, 1))):
            with self.subTest(nodes=nodes):
                line = job.command("asynchronous.py", nodes=nodes, ranks=ranks, forks=self.forks)
                self.assertEqual(job.run(line).count("done"), 1 if nodes == ranks else 3)

    def test_a_rank_that_fails(self) -> None:
        for how in ("shuts-down", "ends"):
            with self.subTest(how=how):
                line = job.command("asynchronous_fails.py", [how], nodes=2, forks=self.forks)
                output = job.run(line, check=False)
                self.assertIn("this rank has failed", output)
                self.assertIn("rank 3's last lines", output)

    def test_bytepss_variable(self) -> None:
        line = job.command("asynchronous_byteps.py", nodes=2, ranks=(2, 1), forks=self.forks)
        output = job.run(line, {"BYTEPS_ENABLE_ASYNC": "1"})
        self.assertEqual(output.count("done"), 3, output)
        self.assertEqual(output.count("push_pull() waits for all ranks"), 3, output)

    def test_what_is_learned_beside_a_slow_rank(self) -> None:
        line = [job.TOOL, "run", "--nodes=2", "--ranks-per-node=2", "--aggregators=1", "--"]
        line += [sys.executable, "-P", *self.forks.prefix, str(_EXAMPLE)]
        found = _LINE.search(job.run([*line, "--slow=8", "--seconds=8"]))
        assert found is not None
        self.assertGreater(float(found[1]), 0.9)
        self.assertEqual(float(found[4]), 0.0, "ranks differ at the end")
        steps = [int(each) for each in re.findall(r"\d+", found[3])]
        self.assertEqual(len(steps), 4)
        # The last rank sleeps 8 times as long for a step.
        self.assertLess(steps[-1], min(steps[:-1]) / 2, steps)


if __name__ == "__main__":
    unittest.main()
