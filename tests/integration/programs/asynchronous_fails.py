# SPDX-License-Identifier: Apache-2.0
"""A job whose last rank raises between asynchronous steps. Nobody waits for it then.

asynchronous_fails.py shuts-down|ends
"""

from __future__ import annotations

import sys

import talweg.torch as tw
import torch


def main() -> None:
    tw.init()
    counter = torch.nn.Parameter(torch.zeros(2))
    optimizer = tw.AsynchronousOptimizer(torch.optim.SGD([counter], lr=1.0))
    steps = 0
    try:
        while True:
            counter.grad = torch.ones(2)
            optimizer.step()
            steps += 1
            if steps == 5 and tw.rank() == tw.size() - 1:
                raise ValueError("this rank has failed")
    finally:
        if sys.argv[1] == "shuts-down":
            tw.shutdown()


if __name__ == "__main__":
    main()
