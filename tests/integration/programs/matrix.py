# SPDX-License-Identifier: Apache-2.0
"""One rank of matrix_test.py. It compares each given case with the reference, bit for bit.

A case is a dtype, an operation and a number of elements. It may name calls too. Ranks then come to
each call in an order that a seed determines, and to each repetition in another.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import talweg
from numeric_reference import expected, same, sample
from talweg import _client, _declaration

# A long tensor repeats so many elements. The number is prime, so no two slices begin alike.
_BLOCK = 1_000_003


# A rank waits at most so long before a call. The waits only vary who comes first.
_WAIT_S = 0.004
_REPETITIONS = 4


def _differs(out: np.ndarray, wanted: np.ndarray, dtype: str, what: str) -> bool:
    """Whether the result is wrong. Says where."""
    if out.shape == wanted.shape and same(out, wanted, dtype):
        return False
    print(f"WRONG {what}: {out.shape} of {wanted.shape}", flush=True)
    if out.shape == wanted.shape:
        raw = np.uint8
        first = int(np.flatnonzero(out.view(raw) != wanted.view(raw))[0])
        print(
            f"byte {first}: {out.view(raw)[first : first + 8]} is not "
            f"{wanted.view(raw)[first : first + 8]}",
            flush=True,
        )
    return True


def _wrong_calls(call: str, mine: np.ndarray, wanted: np.ndarray, dtype: str, op: str) -> int:
    """Makes the call several times, by its name and without one. Returns how often it is wrong."""
    rank, size = talweg.rank(), talweg.size()
    how, wrong = talweg.Op[op.upper()], 0
    for repetition in range(_REPETITIONS):
        waits = np.random.default_rng([repetition, mine.size]).random(size) * _WAIT_S
        name = f"{call}.{dtype}.{op}" if repetition % 2 else None
        root = repetition % size
        time.sleep(waits[rank])
        of_rank: np.ndarray | None = wanted
        result: np.ndarray | None
        if call == "reduce_scatter":
            result = talweg.reduce_scatter(mine, name, how)
            of_rank = np.array_split(wanted, size)[rank]
        elif call == "reduce":
            result = talweg.reduce(mine, root, name and f"{name}.{root}", how)
            of_rank = wanted if rank == root else None
        else:
            result = talweg.push_pull(mine, name, how)
        what = f"{call} {dtype} {op} repetition {repetition} rank {rank}"
        if result is None or of_rank is None:
            wrong += result is not of_rank
        else:
            wrong += _differs(result, of_rank, dtype, what)
    return wrong


def main() -> int:
    nodes = json.loads(sys.argv[1])
    cases = json.loads(sys.argv[2])
    talweg.init()
    rank, size = talweg.rank(), talweg.size()
    assert size == sum(nodes), (size, nodes)
    client = _client.current()
    wrong = 0
    for number, (dtype, op, count, *calls) in enumerate(cases):
        arrays = [
            sample(np.random.default_rng([number, other]), min(count, _BLOCK), dtype)
            for other in range(size)
        ]
        wanted = np.resize(expected(arrays, nodes, dtype, op), count)
        mine = np.resize(arrays[rank], count)
        if calls:
            wrong += sum(_wrong_calls(call, mine, wanted, dtype, op) for call in calls)
            continue
        declaration = _declaration.Declaration(
            _declaration.DType[dtype.upper()], count, _declaration.Op[op.upper()], 0
        )
        for repeat in range(2):  # The second round's result goes to the other region.
            out = np.empty_like(mine)
            name = f"case.{number}.{dtype}.{op}.{count}"
            handle = client.push(name, declaration, mine.ctypes.data, out.ctypes.data)
            client.synchronize(handle, timeout_s=120)
            what = f"{dtype} {op} {count} repeat {repeat} rank {rank} nodes {nodes}"
            wrong += _differs(out, wanted, dtype, what)
    talweg.shutdown()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
