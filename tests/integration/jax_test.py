# SPDX-License-Identifier: Apache-2.0
"""Tests talweg.jax over real daemons: every call, training, orders and errors."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any, ClassVar

import job
from jax_forks import jax_forks
from torch_forks import TorchForks

_FULL = os.environ.get("TALWEG_TEST_FULL") == "1"
_EXAMPLE = Path(os.environ["RUNFILES_DIR"]) / "talweg" / "examples" / "jax_text.py"
_STEPS = 60
# The ranks' gradients are added in another order than in one process.
_TOLERANCE = 1e-5


class JaxTest(unittest.TestCase):
    forks: ClassVar[TorchForks]

    @classmethod
    def setUpClass(cls) -> None:
        cls.forks = jax_forks()

    def test_every_call_on_two_nodes(self) -> None:
        line = job.command("jax_features.py", nodes=2, ranks=2, aggregators=2, forks=self.forks)
        job.run(line)

    def test_every_call_alone(self) -> None:
        job.run([sys.executable, "-P", str(job.PROGRAMS / "jax_features.py")])

    def test_opposite_orders_with_one_thread(self) -> None:
        for elements in ("8", "2000"):
            line = job.command("jax_orders.py", [elements], nodes=2, ranks=2, forks=self.forks)
            job.run(line)

    def test_wrong_calls(self) -> None:
        for nodes, ranks in ((1, 2), (2, 2), (2, 1))[: 3 if _FULL else 2]:
            line = job.command("jax_errors.py", nodes=nodes, ranks=ranks, forks=self.forks)
            job.run(line)


class TrainingTest(unittest.TestCase):
    """Trains on text with 2 nodes x 2 ranks, and in one process with the same global batch."""

    def results(self, line: list[str]) -> list[dict[str, Any]]:
        with tempfile.TemporaryDirectory() as directory:
            job.run([*line, f"--steps={_STEPS}", f"--output={directory}"])
            files = sorted(Path(directory).glob("rank*.json"))
            return [json.loads(file.read_text()) for file in files]

    def test_as_one_process(self) -> None:
        program = [sys.executable, "-P", str(_EXAMPLE)]
        forked = [sys.executable, "-P", *jax_forks().prefix, str(_EXAMPLE)]
        [single] = self.results([*program, "--single"])
        shape = ["--nodes=2", "--ranks-per-node=2", "--aggregators=2", "--force-distributed"]
        ranks = self.results([job.TOOL, "run", *shape, "--", *forked])
        self.assertEqual(len(ranks), 4)
        self.assertEqual(len({rank["weights_sha256"] for rank in ranks}), 1)
        for rank in ranks:
            self.assertEqual(len(rank["losses"]), _STEPS)
            for step, (actual, wanted) in enumerate(zip(rank["losses"], single["losses"])):
                self.assertLessEqual(abs(actual - wanted), _TOLERANCE * wanted, step)
        # The model has learned. For random characters the loss is 4.6.
        self.assertLess(ranks[0]["test_loss"], 3.2)


class VersionTest(unittest.TestCase):
    def test_another_xla_is_named_with_both_versions(self) -> None:
        from talweg import VersionMismatch
        from talweg.jax import _library

        own = [0, 3, 168, 176]
        _library.check_versions(own, [0, 4, 200, 300])
        for theirs, failure in (
            ([1, 0, 168, 300], None),
            ([0, 1, 160, 176], None),
            ([0, 0, 168, 80], None),
            ([0, 3, 168, 300], RuntimeError("refused")),
        ):
            with self.assertRaises(VersionMismatch) as raised:
                _library.check_versions(own, theirs, failure)
            self.assertIn("version 0.3", str(raised.exception))
            self.assertIn(f"version {theirs[0]}.{theirs[1]}", str(raised.exception))


if __name__ == "__main__":
    unittest.main()
