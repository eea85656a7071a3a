# SPDX-License-Identifier: Apache-2.0
"""Tests every dtype, op, size and shape of job against NumPy: pairs, or all with --full.

Bazel runs it in parts, each of which takes some of the shapes of jobs (shard_count).
"""

from __future__ import annotations

import itertools
import json
import os
import random
import unittest
from pathlib import Path
from typing import TypeVar

import job
from numeric_reference import DTYPES, OPS

_PAIRS = [(dtype, op) for dtype in DTYPES for op, dtypes in OPS.items() if dtype in dtypes]
# Numbers of elements. For i8, u8 and bool the smallest tensor has one byte.
_SMALL_COUNTS = (1, 3, 1023, 1024, 4099, 262144 + 1)
_LARGE_COUNT = 16 * 1024 * 1024 + 3
# What a rank gives has several slices of 64 KiB for each of two aggregators.
_STRIPED_COUNT = 300_007
_NODES = ((1,), (2,), (3,), (4,), (1, 1), (2, 2), (3, 1), (1, 4))
_AGGREGATORS = (1, 2, 3)
# The bytes of all tensors of a job. Each rank has a tensor twice, and results and slots have it as
# often again, so with five ranks it exists about twenty times.
_JOB_BYTES_MAX = 160 * 1024 * 1024

Case = tuple[str, str, int]
Shape = tuple[tuple[int, ...], int]
_Item = TypeVar("_Item")


def _of_this_part(items: list[_Item]) -> list[_Item]:
    """Returns the items of this part of the test; all if the test has only one part."""
    status_file = os.environ.get("TEST_SHARD_STATUS_FILE")
    if status_file:
        Path(status_file).touch()
    parts = int(os.environ.get("TEST_TOTAL_SHARDS") or 1)
    return items[int(os.environ.get("TEST_SHARD_INDEX") or 0) :: parts]


def all_cases() -> list[Case]:
    return [(d, o, count) for d, o in _PAIRS for count in (*_SMALL_COUNTS, _LARGE_COUNT)]


def jobs_of(cases: list[Case]) -> list[list[Case]]:
    """Divides the cases into as few jobs as memory allows."""
    jobs: list[list[Case]] = []
    left = 0
    for case in sorted(cases, key=lambda case: case[2]):
        tensor_bytes = case[2] * DTYPES[case[0]].itemsize
        if not jobs or tensor_bytes > left:
            jobs.append([])
            left = _JOB_BYTES_MAX
        jobs[-1].append(case)
        left -= tensor_bytes
    return jobs


def pairwise_plan() -> dict[Shape, list[Case]]:
    """Returns cases with each (dtype, op), (dtype, size), (op, size) and (case, shape) at least
    once.

    There are few large tensors: one for each dtype.
    """
    rng = random.Random(1)
    shapes = list(itertools.product(_NODES, _AGGREGATORS))
    chosen = [shapes[i] for i in (0, 4, 8, 9, 13, 17, 18, 22)]
    plan: dict[Shape, list[Case]] = {shape: [] for shape in chosen}
    for number, (dtype, op) in enumerate(_PAIRS):
        for place, count in enumerate(_SMALL_COUNTS):
            plan[chosen[(number + place) % len(chosen)]].append((dtype, op, count))
    for number, dtype in enumerate(DTYPES):
        ops = [op for op, dtypes in OPS.items() if dtype in dtypes]
        plan[chosen[(number * 3) % len(chosen)]].append(
            (dtype, rng.choice(ops), 3 * 1024 * 1024 + 3)
        )
    plan[chosen[6]].append(("f32", "sum", _LARGE_COUNT))
    return plan


class MatrixTest(unittest.TestCase):
    def _run(self, shape: Shape, cases: list[Case]) -> None:
        nodes, aggregators = shape
        for cases_of_job in jobs_of(cases):
            with self.subTest(nodes=nodes, aggregators=aggregators, first=cases_of_job[0]):
                line = job.command(
                    "matrix.py",
                    [json.dumps(nodes), json.dumps(cases_of_job)],
                    nodes=len(nodes),
                    ranks=nodes,
                    aggregators=aggregators,
                )
                job.run(line)

    def test_pairwise(self) -> None:
        for shape, cases in _of_this_part(list(pairwise_plan().items())):
            self._run(shape, cases)

    def test_standalone(self) -> None:
        """A standalone agent gives the same bits as an agent with an aggregator."""
        cases = [(d, o, 4099) for d, o in _PAIRS]
        # The pairwise plan has eight shapes. With more parts this falls to a part without a shape.
        for part in _of_this_part([None] * 8 + [cases]):
            if part is not None:
                line = job.command(
                    "matrix.py", [json.dumps([3]), json.dumps(part)], nodes=1, ranks=3
                )
                job.run(line)

    def test_collectives_that_are_striped(self) -> None:
        """Each aggregator of two sums more than 64 KiB of a call, whatever rank comes first.

        Two summands give the same bits in either order. So a node has three ranks, or there are
        three nodes.
        """
        calls = ("push_pull", "reduce_scatter", "reduce")
        cases = [
            (dtype, op, _STRIPED_COUNT, *calls)
            for dtype in ("f32", "f16")
            for op in ("sum", "average")
        ]
        for nodes in _of_this_part([None] * 9 + [(3, 1), (1, 1, 1)]):
            if nodes is not None:
                arguments = [json.dumps(nodes), json.dumps(cases)]
                with self.subTest(nodes=nodes):
                    job.run(job.command("matrix.py", arguments, len(nodes), nodes, aggregators=2))

    @unittest.skipUnless(os.environ.get("TALWEG_TEST_FULL"), "the whole matrix: ./test --full")
    def test_full(self) -> None:
        for shape in _of_this_part(list(itertools.product(_NODES, _AGGREGATORS))):
            self._run(shape, all_cases())


if __name__ == "__main__":
    unittest.main()
