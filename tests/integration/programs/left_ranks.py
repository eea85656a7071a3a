# SPDX-License-Identifier: Apache-2.0
"""One rank of left_behind_test.py. Rank 0 leaves, and its neighbour rank 1 stays.

Ranks of both nodes then push rounds of process sets that need rank 0.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import talweg
from expected_errors import expect

_TIMEOUT_S = 60.0


def main() -> None:
    talweg.init()
    rank = talweg.rank()
    ones: np.ndarray = np.ones(4, np.float32)
    trio, pair = talweg.ProcessSet([0, 1, 2]), talweg.ProcessSet([0, 2])
    for process_set, name in ((trio, "trio"), (pair, "pair")):
        if rank in process_set.ranks:
            talweg.push_pull(ones, name=name, process_set=process_set)
    if rank == 0:
        talweg.shutdown()
        return

    def ends(name: str, process_set: talweg.ProcessSet, what: str) -> None:
        call = partial(talweg.push_pull, ones, name=name, process_set=process_set)
        expect(talweg.Aborted, what, call, timeout_s=_TIMEOUT_S)

    if rank in (1, 2):
        ends("trio", trio, "has left the job, but")
    if rank == 2:  # No rank of node 0 pushes this.
        ends("pair", pair, "has left the job, but other nodes contributed to round 2")
    others = talweg.ProcessSet([1, 2, 3])
    assert (talweg.push_pull(ones, op=talweg.Op.SUM, name="on", process_set=others) == 3).all()
    print("done", flush=True)


if __name__ == "__main__":
    main()
