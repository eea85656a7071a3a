# SPDX-License-Identifier: Apache-2.0
"""The tutorial's blocks for TensorFlow."""

from __future__ import annotations

import os
import unittest

from tensorflow_forks import QUIET
from tutorial import FEWER_ITERATIONS, TCP_MACHINES, Document, Machines, tcp_job

_FULL = os.environ.get("TALWEG_TEST_FULL") == "1"


@unittest.skipUnless(_FULL, "SKIPPED: TensorFlow trains ResNet-50 twice; ./test --full runs it")
class TutorialTest(unittest.TestCase):
    def test_one_machine(self) -> None:
        with Machines(["host"], **QUIET) as machines:
            replaced = {"0,1,2,3": "0,1", **FEWER_ITERATIONS}
            block = Document("step_by_step_tutorial").block("tensorflow", replaced)
            said = machines.run({"host": block})["host"]
            self.assertRegex(said, r"\nTotal img/sec on 2 [CG]PU\(s\): \d+\.\d")
            # "can also try: export EVAL_TYPE=mnist"
            digits = block.replace("EVAL_TYPE=benchmark", "EVAL_TYPE=mnist")
            said = machines.run({"host": digits})["host"]
            self.assertRegex(said, r"[Tt]est.*ccuracy")

    def test_tcp(self) -> None:
        with Machines(TCP_MACHINES, **QUIET) as machines:
            said = machines.run(tcp_job(machines, "tensorflow"))
        self.assertRegex(said["worker 0"], r"\nTotal img/sec on 2 [CG]PU\(s\): \d+\.\d")


if __name__ == "__main__":
    unittest.main()
