# SPDX-License-Identifier: Apache-2.0
"""The tutorial's blocks for MXNet, and Zeno-PS's."""

from __future__ import annotations

import os
import unittest

from tutorial import FEWER_MXNET, TCP_MACHINES, Document, Machines, tcp_job

_FULL = os.environ.get("TALWEG_TEST_FULL") == "1"


class TutorialTest(unittest.TestCase):
    def test_one_machine(self) -> None:
        replaced = {"0,1,2,3": "0,1", **FEWER_MXNET}
        with Machines(["host"]) as machines:
            block = Document("step_by_step_tutorial").block("mxnet", replaced)
            said = machines.run({"host": block})["host"]
        self.assertRegex(said, r"\nTotal img/sec on 2 [CG]PU\(s\): \d+\.\d")

    @unittest.skipUnless(_FULL, "SKIPPED: two workers train ResNet-50; ./test --full runs them")
    def test_tcp(self) -> None:
        with Machines(TCP_MACHINES) as machines:
            said = machines.run(tcp_job(machines, "mxnet"))
        self.assertRegex(said["worker 0"], r"\nTotal img/sec on 2 [CG]PU\(s\): \d+\.\d")

    def test_zeno_ps(self) -> None:
        """Everything runs on one host, whose port 1234 is its own."""
        page = Document("zeno_ps")
        with Machines(["host"]) as machines:
            started = [
                machines.start("host", page.block(name, {}))
                for name in ("scheduler", "server", "worker 0", "worker 1")
            ]
            outputs = machines.finish({str(i): each for i, each in enumerate(started)})
        for rank in range(2):
            self.assertIn(f"rank {rank}: 0 of 99 rounds crossed", outputs[str(2 + rank)])


if __name__ == "__main__":
    unittest.main()
