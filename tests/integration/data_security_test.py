# SPDX-License-Identifier: Apache-2.0
"""Tests exact sums of two nodes over Talweg's own TCP, with each --data-security."""

from __future__ import annotations

import sys
import unittest

import job

# Sums of whole numbers are exact. Slices travel in frames and as writes.
_PROGRAM = """
import numpy as np
import talweg

talweg.init()
rank, size = talweg.rank(), talweg.size()
for step in range(4):
    arrays = [np.arange(n, dtype=np.float32) % 1000 + rank + step for n in (7, 5_000, 3_000_001)]
    handles = [
        talweg.push_pull_async(array, op=talweg.Op.SUM, name=f"t{i}")
        for i, array in enumerate(arrays)
    ]
    for array, handle in zip(arrays, handles):
        expected = (np.arange(len(array), dtype=np.float32) % 1000 + step) * size
        expected += size * (size - 1) / 2
        assert np.array_equal(talweg.synchronize(handle), expected)
print(f"exact at rank {rank}", flush=True)
"""


class DataSecurityTest(unittest.TestCase):
    def _run(self, options: list[str], environment: dict[str, str]) -> str:
        line = [job.TOOL, "run", "--nodes=2", "--ranks-per-node=2", "--aggregators=2", *options]
        line += ["--", sys.executable, "-P", "-c", _PROGRAM]
        # Without this all data would go through shared memory.
        output = job.run(line, env={"TALWEG_LOCAL_TRANSPORT": "false", **environment})
        self.assertEqual(output.count("exact at rank"), 4, output)
        self.assertNotRegex(output, "[0-9a-f]{64}")
        return output

    def test_sums_are_exact(self) -> None:
        for security in ("none", "keyed", "tls"):
            with self.subTest(security):
                output = self._run(
                    [f"--data-security={security}"], {"TALWEG_DATA_TRANSPORT": "tcp"}
                )
                self.assertIn("asks for the network", output)
                self.assertIn(" tcp://127.0.0.1:", output)
                self.assertNotIn("libfabric's tcp", output)

    def test_libfabrics_tcp_is_said_to_be_open(self) -> None:
        output = self._run([], {})
        self.assertIn("fi:tcp://127.0.0.1:", output)
        self.assertIn("libfabric's tcp parses what any user who reaches the data ports", output)
        self.assertIn("--data-security=tls", output)

    def test_a_setting_that_there_is_not(self) -> None:
        line = [job.TOOL, "run", "--data-security=open", "--", "true"]
        output = job.run(line, check=False)
        self.assertIn("data_security", output)
        self.assertIn("keyed", output)


if __name__ == "__main__":
    unittest.main()
