# SPDX-License-Identifier: Apache-2.0
"""Tests hvd.join() in a job whose nodes may come and go."""

from __future__ import annotations

import unittest

from outliving import Run
from torch_forks import torch_forks


class HvdJoinElasticTest(unittest.TestCase):
    def test_others_go_on_with_new_names(self) -> None:
        options = ["--nodes=3", "--loss-policy=continue"]
        run = Run(self, ["hvd_join_elastic.py"], options, forks=torch_forks())
        run.go_on(3)
        for node in (2, 0):
            # The kill comes at any moment. Some ranks are in join(), or tell names.
            run.kill_agent(node)
            run.go_on(3)
        run.wait_for(
            "nobody was refused a commit",
            lambda said: all("refused" in lines for lines in said.values()),
        )
        run.stop()
        said = run.said()
        self.assertEqual(len(said), 3)
        self.assertEqual(len({lines[-1] for lines in said.values()}), 1)
        # When all ranks are there, the rank that joined first is not the last one.
        for lines in said.values():
            self.assertTrue(lines[-1].startswith("weights "), lines[-1])
            [number] = [i for i, line in enumerate(lines) if line.startswith("begins")][-1:]
            for line in lines[number:]:
                if line.startswith("last"):
                    _, last, _, size, _, first = line.split()
                    self.assertEqual(size, "3", line)
                    self.assertNotEqual(last, first, line)


if __name__ == "__main__":
    unittest.main()
