# SPDX-License-Identifier: Apache-2.0
"""Tests that N ranks train as one process with the same batch, and runs end in equal bytes."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any, ClassVar

import job
from torch_forks import TorchForks


class ParityTest(unittest.TestCase):
    forks: ClassVar[TorchForks]
    single: ClassVar[dict[str, dict[str, Any]]]  # What one process wrote, by optimizer.

    @classmethod
    def setUpClass(cls) -> None:
        cls.forks = TorchForks(("torch", "sklearn.datasets"))
        cls.forks.__enter__()
        cls.addClassCleanup(cls.forks.__exit__)
        cls.single = {}

    def _single(self, optimizer: str) -> dict[str, Any]:
        if optimizer not in self.single:
            with tempfile.TemporaryDirectory() as directory:
                program = [*self.forks.prefix, str(job.PROGRAMS / "parity.py"), "--single"]
                arguments = [f"--optimizer={optimizer}", f"--output={directory}"]
                line = [sys.executable, "-P", *program, *arguments]
                subprocess.run(line, check=True, timeout=job.TIMEOUT_S)
                result = json.loads((Path(directory) / "rank0.json").read_text())
            self.single[optimizer] = result
        return self.single[optimizer]

    def _job(
        self, optimizer: str, passes: int = 1, env: dict[str, str] | None = None, **shape: Any
    ) -> list[dict[str, Any]]:
        with tempfile.TemporaryDirectory() as directory:
            arguments = [f"--optimizer={optimizer}", f"--passes={passes}", f"--output={directory}"]
            job.run(job.command("parity.py", arguments, forks=self.forks, **shape), env)
            files = sorted(Path(directory).glob("rank*.json"))
            return [json.loads(file.read_text()) for file in files]

    def _check(
        self, optimizer: str, ranks: list[dict[str, Any]], count: int, tolerance: float = 1e-5
    ) -> None:
        self.assertEqual(len(ranks), count)
        for rank in ranks[1:]:
            self.assertEqual(rank["digests"], ranks[0]["digests"], "ranks differ after some step")
        single = self._single(optimizer)
        for step, wanted in enumerate(single["losses"]):
            actual = sum(rank["losses"][step] for rank in ranks) / count
            difference = abs(actual - wanted)
            self.assertLessEqual(difference, tolerance * abs(wanted), f"{optimizer} {step}")
        for result in (single, *ranks):
            self.assertGreater(result["accuracy"], 0.85, "the model has not learned the digits")

    def test_sgd_on_two_nodes_with_two_ranks(self) -> None:
        self._check("sgd", self._job("sgd", nodes=2, ranks=2, aggregators=2), 4)

    def test_adam_on_unequal_nodes(self) -> None:
        self._check("adam", self._job("adam", nodes=2, ranks=(2, 1), aggregators=1), 3)

    def test_adam_on_one_node_without_aggregators(self) -> None:
        self._check("adam", self._job("adam", nodes=1, ranks=2), 2)

    def test_accumulation_over_two_backward_passes(self) -> None:
        self._check("sgd", self._job("sgd", passes=2, nodes=2, ranks=1, aggregators=1), 2)

    def test_gradients_that_travel_rounded(self) -> None:
        """The same losses but for what rounding adds; all ranks have the same bits."""
        [exact, *_] = self._job("sgd", nodes=2, ranks=2, aggregators=2)
        for encoding, tolerance in (("bf16", 1e-3), ("int8", 3e-3)):
            env = {"TALWEG_ENCODING": encoding, "TALWEG_ENCODING_BYTES_MIN": "0"}
            with self.subTest(encoding=encoding):
                ranks = self._job("sgd", nodes=2, ranks=2, aggregators=2, env=env)
                self._check("sgd", ranks, 4, tolerance)
                self.assertNotEqual(ranks[0]["digests"], exact["digests"])

    def test_two_runs_end_in_identical_bytes(self) -> None:
        for env in ({}, {"TALWEG_ENCODING": "int8"}):
            runs = [self._job("adam", nodes=2, ranks=2, aggregators=2, env=env) for _ in range(2)]
            self.assertEqual(runs[0], runs[1])


if __name__ == "__main__":
    unittest.main()
