# SPDX-License-Identifier: Apache-2.0
"""Tests every collective on NumPy arrays and torch tensors, on one node and on two."""

from __future__ import annotations

import json
import sys
import unittest
from collections.abc import Sequence

import job
from torch_forks import torch_forks


def _run(nodes: Sequence[int], aggregators: int | None = None) -> None:
    line = job.command(
        "collectives.py",
        [json.dumps(list(nodes))],
        nodes=len(nodes),
        ranks=nodes,
        aggregators=aggregators,
    )
    job.run(line)


class CollectivesTest(unittest.TestCase):
    def test_one_node(self) -> None:
        _run([2])

    def test_one_node_of_four(self) -> None:
        _run([4])

    def test_two_nodes(self) -> None:
        _run([2, 2], aggregators=1)

    def test_two_nodes_of_other_sizes(self) -> None:
        _run([2, 1], aggregators=2)

    def test_encoded(self) -> None:
        """Every collective, with what travels shorter or longer than the data."""
        for encoding in ("runs", "twice", "gaps"):
            line = job.command(
                "encoded_calls.py",
                [encoding, "collectives.py", "[2, 1]"],
                nodes=2,
                ranks=(2, 1),
                aggregators=2,
            )
            with self.subTest(encoding=encoding):
                job.run(line)

    def test_torch(self) -> None:
        job.run(job.command("torch_collectives.py", ["[2]"], ranks=2, forks=torch_forks()))

    def test_torch_on_two_nodes(self) -> None:
        line = job.command(
            "torch_collectives.py",
            ["[2, 1]"],
            nodes=2,
            ranks=(2, 1),
            aggregators=2,
            forks=torch_forks(),
        )
        job.run(line)

    def test_every_form_of_a_call(self) -> None:
        job.run(job.command("whole_family.py", nodes=1, ranks=2))
        job.run(job.command("whole_family.py", nodes=2, ranks=(1, 2), aggregators=2))

    def test_more_than_a_hundred_process_sets(self) -> None:
        job.run(job.command("many_sets.py", ranks=7))
        job.run(job.command("many_sets.py", nodes=2, ranks=(4, 3), aggregators=2))

    def test_calls_of_a_name_whose_round_is_open(self) -> None:
        job.run(job.command("open_names.py", nodes=1, ranks=3))
        job.run(job.command("open_names.py", nodes=2, ranks=(1, 2), aggregators=2))
        job.run([sys.executable, "-P", str(job.PROGRAMS / "open_names.py")])


if __name__ == "__main__":
    unittest.main()
