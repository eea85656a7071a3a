# SPDX-License-Identifier: Apache-2.0
"""Every dtype, op, size and shape of job against NumPy: pairwise, or all with --full."""

from __future__ import annotations

import itertools
import json
import os
import random
import unittest

import job
from numeric_reference import DTYPES, INTEGERS, OPS

# Elements. One byte is one i8 or u8; the smallest tensor of a wider dtype is one element.
_SMALL_COUNTS = (1, 3, 1023, 1024, 4099, 262144 + 1)
_LARGE_COUNT = 16 * 1024 * 1024 + 3
_NODES = ((1,), (2,), (3,), (4,), (1, 1), (2, 2), (3, 1), (1, 4))
_AGGREGATORS = (1, 2, 3)

Case = tuple[str, str, int]


def _defined(dtype: str, op: str) -> bool:
    return not (op == "average" and dtype in INTEGERS)


def all_cases() -> list[Case]:
    pairs = [(d, o) for d, o in itertools.product(DTYPES, OPS) if _defined(d, o)]
    return [(d, o, count) for d, o in pairs for count in (*_SMALL_COUNTS, _LARGE_COUNT)]


def pairwise_plan() -> dict[tuple[tuple[int, ...], int], list[Case]]:
    """Every (dtype, op), and every (dtype, size), (op, size) and (case, shape) pair, once at least.

    Large tensors are few: one a dtype.
    """
    rng = random.Random(1)
    shapes = list(itertools.product(_NODES, _AGGREGATORS))
    chosen = [shapes[i] for i in (0, 4, 8, 9, 13, 17, 18, 22)]
    plan: dict[tuple[tuple[int, ...], int], list[Case]] = {shape: [] for shape in chosen}
    for number, (dtype, op) in enumerate(itertools.product(DTYPES, OPS)):
        if not _defined(dtype, op):
            continue
        for place, count in enumerate(_SMALL_COUNTS):
            plan[chosen[(number + place) % len(chosen)]].append((dtype, op, count))
    for number, dtype in enumerate(DTYPES):
        ops = [op for op in OPS if _defined(dtype, op)]
        plan[chosen[(number * 3) % len(chosen)]].append(
            (dtype, rng.choice(ops), 3 * 1024 * 1024 + 3)
        )
    plan[chosen[6]].append(("f32", "sum", _LARGE_COUNT))
    return plan


class MatrixTest(unittest.TestCase):
    def _run(self, nodes: tuple[int, ...], aggregators: int, cases: list[Case]) -> None:
        with self.subTest(nodes=nodes, aggregators=aggregators):
            line = job.command(
                "matrix.py",
                [json.dumps(nodes), json.dumps(cases)],
                nodes=len(nodes),
                ranks=nodes,
                aggregators=aggregators,
            )
            job.run(line)

    def test_pairwise(self) -> None:
        for (nodes, aggregators), cases in pairwise_plan().items():
            self._run(nodes, aggregators, cases)

    def test_standalone(self) -> None:
        """An agent alone gives the same bits as one with an aggregator."""
        cases = [(d, o, 4099) for d, o in itertools.product(DTYPES, OPS) if _defined(d, o)]
        line = job.command("matrix.py", [json.dumps([3]), json.dumps(cases)], nodes=1, ranks=3)
        job.run(line)

    @unittest.skipUnless(os.environ.get("TALWEG_TEST_FULL"), "the whole matrix: ./test --full")
    def test_full(self) -> None:
        for nodes, aggregators in itertools.product(_NODES, _AGGREGATORS):
            self._run(nodes, aggregators, all_cases())


if __name__ == "__main__":
    unittest.main()
