# SPDX-License-Identifier: Apache-2.0
"""The tutorial's blocks for PyTorch, and P4ML's."""

from __future__ import annotations

import os
import unittest

from tutorial import FEWER_ITERATIONS, TCP_MACHINES, Document, Machines, tcp_job

_FULL = os.environ.get("TALWEG_TEST_FULL") == "1"


class TutorialTest(unittest.TestCase):
    def test_one_machine(self) -> None:
        replaced = {"0,1,2,3": "0,1", **FEWER_ITERATIONS}
        with Machines(["host"]) as machines:
            block = Document("step_by_step_tutorial").block("pytorch", replaced)
            said = machines.run({"host": block})["host"]
        self.assertRegex(said, r"\nTotal img/sec on 2 [CG]PU\(s\): \d+\.\d")

    @unittest.skipUnless(_FULL, "SKIPPED: two workers train ResNet-50; ./test --full runs them")
    def test_tcp(self) -> None:
        with Machines(TCP_MACHINES) as machines:
            said = machines.run(tcp_job(machines, "pytorch"))
        self.assertRegex(said["worker 0"], r"\nTotal img/sec on 2 [CG]PU\(s\): \d+\.\d")

    @unittest.skipUnless(_FULL, "SKIPPED: two workers train VGG-16; ./test --full runs them")
    def test_p4ml(self) -> None:
        """Its page has the worker's command alone; scheduler and server are the tutorial's."""
        with Machines(TCP_MACHINES) as machines:
            blocks = tcp_job(machines, "pytorch")
            for role in ("scheduler", "server"):
                blocks[role] = blocks[role].replace("ROOT_PORT=1234", "ROOT_PORT=6767")
            replaced = {
                "192.168.0.3": machines.address("scheduler"),
                "enp178s0f0": "eth0",
                "--num-iters 10": FEWER_ITERATIONS["--num-iters 1000000"],
            }
            for worker in ("0", "1"):
                blocks[f"worker {worker}"] = Document("readme").block(
                    "launch workers",
                    {**replaced, "DMLC_WORKER_ID=0": f"DMLC_WORKER_ID={worker}"},
                )
            said = machines.run(blocks)
        self.assertRegex(said["worker 0"], r"\nTotal img/sec on 2 [CG]PU\(s\): \d+\.\d")
        self.assertIn("P4ML_APP", said["worker 0"])


if __name__ == "__main__":
    unittest.main()
