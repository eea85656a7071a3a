# SPDX-License-Identifier: Apache-2.0
"""One rank of matrix_test.py. It compares each given case with the reference, bit for bit."""

from __future__ import annotations

import json
import sys

import numpy as np
import talweg
from numeric_reference import expected, same, sample
from talweg import _client, _declaration

# A long tensor repeats so many elements. The number is prime, so no two slices begin alike.
_BLOCK = 1_000_003


def main() -> int:
    nodes = json.loads(sys.argv[1])
    cases = json.loads(sys.argv[2])
    talweg.init()
    rank, size = talweg.rank(), talweg.size()
    assert size == sum(nodes), (size, nodes)
    client = _client.current()
    wrong = 0
    for number, (dtype, op, count) in enumerate(cases):
        arrays = [
            sample(np.random.default_rng([number, other]), min(count, _BLOCK), dtype)
            for other in range(size)
        ]
        wanted = np.resize(expected(arrays, nodes, dtype, op), count)
        mine = np.resize(arrays[rank], count)
        declaration = _declaration.Declaration(
            _declaration.DType[dtype.upper()], count, _declaration.Op[op.upper()], 0
        )
        for repeat in range(2):  # The second round's result goes to the other region.
            out = np.empty_like(mine)
            name = f"case.{number}.{dtype}.{op}.{count}"
            handle = client.push(name, declaration, mine.ctypes.data, out.ctypes.data)
            client.synchronize(handle, timeout_s=120)
            if not same(out, wanted, dtype):
                raw = np.uint8
                first = int(np.flatnonzero(out.view(raw) != wanted.view(raw))[0])
                print(
                    f"WRONG {dtype} {op} {count} repeat {repeat} rank {rank} nodes {nodes}: byte "
                    f"{first}: {out.view(raw)[first : first + 8]} is not "
                    f"{wanted.view(raw)[first : first + 8]}",
                    flush=True,
                )
                wrong += 1
    talweg.shutdown()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
