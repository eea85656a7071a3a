# SPDX-License-Identifier: Apache-2.0
"""Tests that torch's own suite of torch.distributed passes over the backend "talweg"."""

from __future__ import annotations

import os
import re
import sys
import unittest

import job

# Tests of calls that torch refuses for all backends except Gloo, or that ask for Gloo's name.
_OF_GLOO_ALONE = (
    "test_get_backend",
    "test_monitored_barrier_gloo",
    "test_monitored_barrier_gloo_rank_0_timeout",
    "test_monitored_barrier_gloo_subgroup",
)

# Each test of the suite starts its ranks anew, so they take minutes. c10d_test and ddp_test have
# models for DistributedDataParallel in every run.
_OF_MODELS = ("*ddp*", "*DDP*", "*DistributedDataParallel*")
_FULL = os.environ.get("TALWEG_TEST_FULL") == "1"

_TIMEOUT_S = 840


class TorchSuiteTest(unittest.TestCase):
    def _run(self, backend: str, ranks: int, part: str, *left_out: str) -> int:
        """Runs the tests with `part` in their names. All must pass. Returns how many have run."""
        line = [sys.executable, "-P", str(job.PROGRAMS / "torch_suite.py"), part]
        line += [f"-{name}" for name in left_out]
        environment = {"BACKEND": backend, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
        output = job.run(line, environment, timeout_s=_TIMEOUT_S)
        found = re.search(r"ran (\d+), skipped \d+, failed 0", output)
        assert found is not None, output
        return int(found[1])

    def test_what_gloo_has(self) -> None:
        self.assertGreaterEqual(self._run("gloo", 3, "test_", *_OF_GLOO_ALONE, *_OF_MODELS), 40)

    @unittest.skipUnless(_FULL, "SKIPPED: each starts three ranks; ./test --full runs them")
    def test_models_of_distributed_data_parallel(self) -> None:
        for part in _OF_MODELS:
            self.assertGreaterEqual(self._run("gloo", 3, part.strip("*")), 1)

    # c10d_test has every form of the call in every run.
    @unittest.skipUnless(_FULL, "SKIPPED: each starts four ranks; ./test --full runs them")
    def test_what_only_mpi_has(self) -> None:
        self.assertGreaterEqual(self._run("mpi", 4, "all_to_all"), 10)


if __name__ == "__main__":
    unittest.main()
