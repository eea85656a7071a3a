# SPDX-License-Identifier: Apache-2.0
"""A rank of lost_members_test.py: calls of groups that lose a member, and what then helps.

The argument is the rank that dies. The job has four nodes with one rank each.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import talweg
import talweg.torch as tw
import torch
from talweg import _client

_VICTIM = int(sys.argv[1])
_ONES: np.ndarray = np.ones(4, np.float32)


def _aborted(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    try:
        call(*arguments, **options)
    except talweg.Aborted as aborted:
        return str(aborted)
    raise AssertionError(f"{call} has a result")


def calls_that_need_the_lost_rank() -> None:
    """Each error names the call as the program knows it, and says what helps."""
    rows: Any = np.ones((talweg.size(), 2))
    big: Any = np.ones((talweg.size(), 20_000))
    model = torch.nn.Linear(2, 2)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    for title, text in (
        ("all_gather 'rows'", _aborted(talweg.all_gather, _ONES, "rows")),
        ("all_gather 'rows'", _aborted(talweg.all_gather, _ONES, "rows")),
        ("all_gather without a name", _aborted(talweg.all_gather, _ONES)),
        ("all_gather without a name", _aborted(talweg.all_gather, big)),
        ("reduce_scatter without a name", _aborted(talweg.reduce_scatter, rows)),
        ("reduce_scatter 'big'", _aborted(talweg.reduce_scatter, big, "big")),
        ("all_to_all without a name", _aborted(talweg.all_to_all, rows)),
        ("broadcast without a name", _aborted(talweg.broadcast, rows, _VICTIM)),
        ("tensor 'named'", _aborted(talweg.broadcast, rows, _VICTIM, "named")),
        ("all_gather_object without a name: rank", _aborted(talweg.all_gather_object, 1)),
        ("all_gather_object 'objects': rank", _aborted(talweg.all_gather_object, 1, "objects")),
        ("broadcast_object without a name:", _aborted(talweg.broadcast_object, 1, _VICTIM)),
        ("broadcast_object 'thing':", _aborted(talweg.broadcast_object, 1, _VICTIM, "thing")),
        ("broadcast_parameters:", _aborted(tw.broadcast_parameters, model.state_dict(), _VICTIM)),
        ("broadcast_optimizer_state:", _aborted(tw.broadcast_optimizer_state, sgd, _VICTIM)),
        ("recv without a name", _aborted(talweg.recv, None, _VICTIM)),
        ("recv 'one'", _aborted(talweg.recv, None, _VICTIM, name="one")),
        ("send 'one'", _aborted(talweg.send, _ONES, _VICTIM, "one")),
    ):
        assert text.startswith(f"{title}") and "end_step()" in text, text
        assert "talweg." not in text and "process set" in text, text


def gathers_that_go_on() -> None:
    """The second one knows that a rank is lost. Each counts what this rank gives."""
    left = tuple(rank for rank in range(talweg.size()) if rank != _VICTIM)
    for _ in range(2):
        before = talweg.pushed_bytes()
        rows, ranks = talweg.all_gather_survivors(_ONES, "goes on")
        assert ranks == left and rows.shape == (4 * len(left),), (rows, ranks)
        pushed = talweg.pushed_bytes() - before
    assert pushed == _ONES.nbytes, pushed


def a_gather_beside_ranks_that_may_join() -> None:
    """With Horovod's module a gather does not go on: a rank that has joined would be missing."""
    with mock.patch.object(_client.current(), "names_watcher", mock.Mock()):
        text = _aborted(talweg.all_gather_survivors, _ONES, "beside joined ranks")
    assert text.startswith("all_gather_survivors 'beside joined ranks'"), text


def a_set_with_the_lost_rank(name: str) -> None:
    """Its sums go on without the rank; its gathers do not."""
    process_set = talweg.ProcessSet(sorted({_VICTIM, 1, 2}))
    if process_set.included():
        total = talweg.push_pull(_ONES, name, talweg.Op.SUM, process_set=process_set)
        assert (total == 2).all(), total
        text = _aborted(talweg.all_gather, _ONES, process_set=process_set)
        assert text.startswith("all_gather without a name: one of its ranks is gone"), text


def a_set_of_survivors(ranks: list[int]) -> None:
    process_set = talweg.ProcessSet(ranks)
    mine: Any = np.array([talweg.rank()])
    assert talweg.all_gather(mine, process_set=process_set).tolist() == ranks
    total = talweg.push_pull(_ONES, "of survivors", talweg.Op.SUM, process_set=process_set)
    assert (total == len(ranks)).all(), total


def main() -> int:
    talweg.init()
    size = talweg.size()
    survivors = [rank for rank in range(size) if rank != _VICTIM]
    for process_set in (talweg.ProcessSet(sorted({_VICTIM, 1, 2})), None):
        if process_set is None or process_set.included():
            talweg.all_gather(_ONES, process_set=process_set)
    talweg.barrier()
    if talweg.rank() == _VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    calls_that_need_the_lost_rank()
    gathers_that_go_on()
    a_gather_beside_ranks_that_may_join()
    a_set_with_the_lost_rank("of some")
    a_set_of_survivors(survivors)
    change = talweg.end_step()
    assert change is not None and talweg.size() == size - 1, change
    # Ranks have new numbers. The old set means those that have its numbers now.
    everyone = list(range(size - 1))
    assert talweg.all_gather(np.array([talweg.rank()])).tolist() == everyone
    assert talweg.all_gather(np.array([talweg.rank()]), "rows").tolist() == everyone
    assert talweg.all_gather_object(talweg.rank()) == everyone
    a_set_of_survivors(everyone)
    if talweg.rank() in survivors:
        try:
            talweg.all_gather(_ONES, process_set=talweg.ProcessSet([1, 2, 3]))
        except talweg.InvalidArgument as error:
            assert "has rank 3" in str(error) and "end_step()" in str(error), error
        else:
            raise AssertionError("a set with a rank that there is not")
    print("has ended well", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
