# SPDX-License-Identifier: Apache-2.0
"""One rank of orders_test.py. Several threads push thousands of tensors in the rank's own order."""

from __future__ import annotations

import random
import sys
import threading
from functools import partial

import numpy as np
import talweg
from talweg import _client, _declaration


def count_of(number: int) -> int:
    return 1 + number * 7919 % 3000


def push_all(names: list, seed: int, failures: list) -> None:
    try:
        random.Random(seed).shuffle(names)
        handles = []
        for number, count in names:
            array = np.full(count, number + talweg.rank(), np.int64)
            handles.append(
                (number, talweg.push_pull_async(array, op=talweg.Op.SUM, name=f"t.{number}"))
            )
        for number, handle in handles:
            result = talweg.synchronize(handle, timeout_s=120)
            size = talweg.size()
            wanted = number * size + size * (size - 1) // 2
            if not (result == wanted).all():
                failures.append(f"tensor {number}: {result[:3]} is not {wanted}")
    except Exception as error:
        failures.append(repr(error))


def main() -> int:
    tensor_count, thread_count, rounds = (int(text) for text in sys.argv[1:4])
    talweg.init()
    failures: list = []
    # One call declares half of the tensors in this rank's order. The others come with a push.
    declared = [(f"t.{n}", count_of(n)) for n in range(0, tensor_count, 2)]
    random.Random(talweg.rank()).shuffle(declared)
    sums = partial(_declaration.Declaration, talweg.DType.I64, op=talweg.Op.SUM, root_rank=0)
    _client.current().tensors.declare_all(
        (name, sums(count=count, shape=(count,)), 0) for name, count in declared
    )
    for round_ in range(rounds):
        threads = []
        for thread in range(thread_count):
            mine = [(n, count_of(n)) for n in range(thread, tensor_count, thread_count)]
            seed = hash((talweg.rank(), thread, round_))
            threads.append(threading.Thread(target=push_all, args=(mine, seed, failures)))
        for worker in threads:
            worker.start()
        for worker in threads:
            worker.join()
    for failure in failures[:5]:
        print(f"WRONG at rank {talweg.rank()}: {failure}", flush=True)
    talweg.shutdown()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
