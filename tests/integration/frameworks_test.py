# SPDX-License-Identifier: Apache-2.0
"""Lightning and Accelerate train over the backend of torch.distributed as one process does."""

from __future__ import annotations

import unittest

import job


class FrameworksTest(unittest.TestCase):
    def _train(self, program: str) -> None:
        for nodes, ranks in ((1, 2), (2, 1)):
            with self.subTest(nodes=nodes):
                # Where nothing looks for a model or a token, and nothing is sent.
                env = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
                output = job.run(job.command(program, nodes=nodes, ranks=ranks), env)
                self.assertEqual(output.count("trained by 2: ["), 2, output)

    def test_lightning(self) -> None:
        self._train("c10d_lightning.py")

    def test_accelerate(self) -> None:
        self._train("c10d_accelerate.py")


if __name__ == "__main__":
    unittest.main()
