# SPDX-License-Identifier: Apache-2.0
"""A rank that sums a large tensor, in place if it can. It prints each step, and how it ends."""

from __future__ import annotations

import sys

import numpy as np
import talweg
from talweg import _client
from talweg._declaration import Declaration, DType, Op

_COUNT = 1_500_000  # These are many pieces, so most of a round is summing.


def main() -> int:
    talweg.init()
    client = _client.current()
    client.tensors.declare_all(
        [("t", Declaration(DType.I32, _COUNT, Op.SUM, 0, shape=(_COUNT,)), 0)], in_place=True
    )
    declared = client.tensors.declared_on_host("t")
    assert declared is not None
    buffer = declared.buffer
    values = np.frombuffer(buffer.memory, np.int32) if buffer else np.empty(_COUNT, np.int32)
    size = client.size
    step = 0
    try:
        while True:
            values[:] = client.rank + step
            if buffer:
                client.synchronize(client.push_declared(declared, buffer.address, 0, 0))
            else:
                values = talweg.push_pull(values, name="t", op=talweg.Op.SUM)
            if not (values == size * step + size * (size - 1) // 2).all():
                print("WRONG", flush=True)
                return 1
            step += 1
            print(f"step {step} of rank {client.rank}", flush=True)
    except talweg.TalwegError as error:
        print(f"error {type(error).__name__}: {error}", flush=True)
        return 3


if __name__ == "__main__":
    sys.exit(main())
