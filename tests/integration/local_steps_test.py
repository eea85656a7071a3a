# SPDX-License-Identifier: Apache-2.0
"""Tests LocalSGD and DiLoCo: beside a model of their rules, feature by feature, and what is learned."""

from __future__ import annotations

import os
import re
import sys
import unittest
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import job
from torch_forks import TorchForks

_FULL = os.environ.get("TALWEG_TEST_FULL") == "1"
_EXAMPLE = Path(os.environ["RUNFILES_DIR"]) / "talweg" / "examples" / "diloco.py"
_LINE = re.compile(
    r"accuracy ([\d.]+) loss ([\d.]+), (\d+) bytes pushed a step, largest difference between two "
    r"ranks ([\d.]+)"
)
# One of the example's 360 test digits is 0.0028.
_ACCURACY_TOLERANCE = 0.025
_STREAMING = ("--fragments=4", "--delay=5", "--mix=0.5")
_ROUNDED = {"TALWEG_ENCODING": "int8", "TALWEG_ENCODING_BYTES_MIN": "0"}


class LocalStepsTest(unittest.TestCase):
    forks: ClassVar[TorchForks]

    @classmethod
    def setUpClass(cls) -> None:
        cls.forks = TorchForks(("torch", "sklearn.datasets"))
        cls.forks.__enter__()
        cls.addClassCleanup(cls.forks.__exit__)

    def test_rules(self) -> None:
        for nodes, ranks in ((1, 2), (2, 2), (1, 4))[: 3 if _FULL else 2]:
            with self.subTest(nodes=nodes, ranks=ranks):
                line = job.command("local_steps.py", nodes=nodes, ranks=ranks, forks=self.forks)
                job.run(line)

    def test_features(self) -> None:
        for nodes, ranks in ((1, 1), (1, 2), (2, (2, 1))):
            with self.subTest(nodes=nodes):
                line = job.command(
                    "local_steps_features.py", nodes=nodes, ranks=ranks, forks=self.forks
                )
                job.run(line)

    def test_what_stays_alike(self) -> None:
        for nodes, ranks in ((1, 1), (1, 2), (2, (2, 1))):
            with self.subTest(nodes=nodes):
                line = job.command(
                    "local_steps_alike.py", nodes=nodes, ranks=ranks, forks=self.forks
                )
                job.run(line)

    def test_features_where_differences_travel_rounded(self) -> None:
        """What must be equal is equal, and nothing that must not be rounded is."""
        line = job.command(
            "local_steps_features.py", nodes=2, ranks=1, aggregators=1, forks=self.forks
        )
        job.run(line, env=_ROUNDED)

    def _learned(
        self, options: Sequence[str], env: dict[str, str] | None = None
    ) -> tuple[float, float, int]:
        """Returns what the example reaches: accuracy and loss, and the bytes of a step."""
        line = [job.TOOL, "run", "--nodes=2", "--ranks-per-node=2", "--aggregators=2"]
        line += ["--force-distributed", "--", sys.executable, "-P", *self.forks.prefix]
        output = job.run([*line, str(_EXAMPLE), *options], env)
        found = _LINE.search(output)
        assert found is not None, output
        self.assertEqual(float(found[4]), 0.0, "ranks differ at the end")
        return float(found[1]), float(found[2]), int(found[3])

    def test_what_is_learned(self) -> None:
        wanted, _, bytes_of_a_step = self._learned(["--how=synchronous"])
        self.assertGreater(wanted, 0.95)
        ways: list[tuple[Sequence[str], dict[str, str]]] = [
            (("--how=local_sgd",), {}),
            (_STREAMING, _ROUNDED),
        ]
        if _FULL:
            ways += [(("--how=diloco",), {}), (_STREAMING, {})]
        for options, env in ways:
            with self.subTest(options=options, env=env):
                accuracy, loss, nbytes = self._learned(options, env)
                self.assertGreater(accuracy, wanted - _ACCURACY_TOLERANCE)
                self.assertLess(loss, 0.35)
                self.assertLess(nbytes, bytes_of_a_step / 15)


if __name__ == "__main__":
    unittest.main()
