# SPDX-License-Identifier: Apache-2.0
"""Tests whether two workers on one host get each other's bytes. Their gradients cancel.

In each of 99 rounds rank r pushes a tensor of the round's number times (-1)^r, so the sum is zero.
A server that took one worker's bytes for the other's would return twice a worker's own gradient.
"""

from __future__ import annotations

import sys

import byteps.mxnet as bps
import mxnet as mx

ROUNDS = range(1, 100)
ELEMENTS = 1000


def main() -> int:
    bps.init()
    if bps.size() % 2 != 0:
        print(
            f"crossed_line.py: the gradients of {bps.size()} ranks do not cancel: start it with 2",
            file=sys.stderr,
        )
        return 2
    sign = (-1) ** bps.rank()
    crossed = 0
    for number in ROUNDS:
        tensor = mx.nd.ones((ELEMENTS,)) * number * sign
        bps.byteps_push_pull(tensor, name=f"tensor_{number}", is_average=False)
        largest = float(tensor.abs().max().asscalar())
        if largest != 0:
            crossed += 1
            print(f"round {number}: crossed at rank {bps.rank()}: {largest} is not 0", flush=True)
    print(f"rank {bps.rank()}: {crossed} of {len(ROUNDS)} rounds crossed", flush=True)
    bps.shutdown()
    return 1 if crossed else 0


if __name__ == "__main__":
    sys.exit(main())
