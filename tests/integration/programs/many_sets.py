# SPDX-License-Identifier: Apache-2.0
"""One rank of a job of seven, in which each of the 127 sets of ranks makes calls of its own."""

from __future__ import annotations

import itertools
import random
import sys

import numpy as np
import talweg


def _check_each_alone(sets: list[talweg.ProcessSet]) -> None:
    for each in sets:
        ranks = list(each.ranks)
        own: np.ndarray = np.array([talweg.rank()])
        assert talweg.all_gather(own, process_set=each).tolist() == ranks
        total = talweg.push_pull(own, "sum", talweg.Op.SUM, process_set=each)
        assert total.tolist() == [sum(ranks)], (each, total)


def _check_all_at_once(sets: list[talweg.ProcessSet], count: int) -> None:
    """Each rank starts and ends the calls of its sets in an order of its own."""
    rng = random.Random(talweg.rank())
    started, ended = rng.sample(sets, len(sets)), rng.sample(sets, len(sets))
    own: np.ndarray = np.full(count, talweg.rank(), np.int32)
    handles = {each: talweg.all_gather_async(own, process_set=each) for each in started}
    for each in ended:
        result = talweg.synchronize(handles[each])
        assert result.tolist() == np.repeat(each.ranks, count).tolist(), each


def main() -> int:
    talweg.init()
    everyone = range(talweg.size())
    every = [
        talweg.ProcessSet(ranks)
        for size in range(1, talweg.size() + 1)
        for ranks in itertools.combinations(everyone, size)
    ]
    assert len(set(every)) == 127
    sets = [each for each in every if each.included()]
    assert len(sets) == 64
    _check_each_alone(sets)
    _check_all_at_once(sets, 3)
    _check_all_at_once(sets, 700)
    outside = next(each for each in every if not each.included())
    try:
        talweg.barrier(outside)
    except talweg.InvalidArgument as error:
        assert f"rank {talweg.rank()} is not in {outside}" in str(error), error
    else:
        raise AssertionError(f"{outside} has let rank {talweg.rank()} in")
    assert talweg.all_gather(np.array([talweg.rank()])).tolist() == list(everyone)
    return 0


if __name__ == "__main__":
    sys.exit(main())
