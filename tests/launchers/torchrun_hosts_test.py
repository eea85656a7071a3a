# SPDX-License-Identifier: Apache-2.0
"""torchrun on several hosts: the nodes find each other through its store."""

from __future__ import annotations

import unittest

from launcher_hosts import HostsTest
from launcher_site import PROGRAMS, RANK, TORCHRUN

_PORT = "29500"  # The hosts are this test's own.


class TorchrunOnHostsTest(HostsTest):
    def torchrun(self, counts: tuple[int, int], *program: str, status: int | None = 0) -> str:
        started = []
        for node, host in enumerate(self.hosts):
            options = [
                f"--nnodes={len(self.hosts)}",
                f"--node-rank={node}",
                f"--nproc-per-node={counts[node]}",
                f"--master-addr={self.network.address(self.hosts[0])}",
                f"--master-port={_PORT}",
                "--max-restarts=0",
            ]
            started.append(self.start([*self.on(host), *TORCHRUN, *options, *program]))
        return self.finish(*started, status=status)

    def test_two_hosts(self) -> None:
        self.require_ranks(self.torchrun((2, 1), "--no-python", *RANK, "sum"), [2, 1])
        self.require_nothing_left()

    def test_the_backend_of_torch(self) -> None:
        output = self.torchrun((1, 1), str(PROGRAMS / "backend.py"))
        self.assertEqual(output.count("of 2: sum is right"), 2, output)
        self.require_nothing_left()

    def test_several_lives(self) -> None:
        self.require_ranks(self.torchrun((1, 1), "--no-python", *RANK, "again"), [1, 1])
        self.require_nothing_left()

    def test_a_rank_dies(self) -> None:
        output = self.torchrun((1, 1), "--no-python", *RANK, "die", "0", status=None)
        self.assertRegex(output, "told: JobFailed")
        self.require_nothing_left()


if __name__ == "__main__":
    unittest.main()
