# SPDX-License-Identifier: Apache-2.0
"""A rank that makes asynchronous steps until it reads a line.

Each step adds 1 to the number of its rank. So after flush() the parameters say how many steps of
each rank are in them.
"""

from __future__ import annotations

import sys
import threading
import time

import talweg
import talweg.torch as tw
import torch

_STEP_S = 0.005


def main() -> int:
    is_told = threading.Event()

    def read() -> None:
        sys.stdin.readline()
        is_told.set()

    threading.Thread(target=read, daemon=True).start()
    tw.init()
    torch.set_num_threads(1)
    counts = torch.nn.Parameter(torch.zeros(tw.size()))
    optimizer = tw.AsynchronousOptimizer(torch.optim.SGD([counts], lr=1.0))
    own = torch.zeros(tw.size())
    own[tw.rank()] = -1.0
    steps = 0
    try:
        while not is_told.is_set():
            time.sleep(_STEP_S)
            counts.grad = own
            optimizer.step()
            steps += 1
            print(f"step {steps}", flush=True)
        optimizer.flush()
    except talweg.TalwegError as error:
        print(f"error {type(error).__name__}: {error}", flush=True)
        return 3
    numbers = counts.detach().int().tolist()
    print(f"rank {tw.rank()} made {steps} of {numbers}", flush=True)
    tw.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
