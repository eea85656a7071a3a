# SPDX-License-Identifier: Apache-2.0
"""One rank of horovod_test.py. The process joins its job, leaves it and joins it again."""

from __future__ import annotations

import sys
import threading
from typing import Any

import talweg.horovod.torch as hvd
import torch
from expected_errors import expect

_LIVES = 6


def wrong_process_sets() -> None:
    """init() refuses wrong process sets with an error, and takes correct ones after that."""
    expect(
        ValueError,
        "registered already",
        hvd.init,
        process_sets=[hvd.ProcessSet([0]), hvd.ProcessSet([0])],
    )
    assert not hvd.is_initialized()
    first = hvd.ProcessSet([0])
    hvd.init(process_sets=[first])
    ranks = list(range(hvd.size()))
    assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == {0: ranks, 1: [0]}
    assert first.process_set_id == 1
    again = hvd.ProcessSet([0])  # As of a module that calls init() for itself.
    hvd.init(process_sets=[again])
    assert again.process_set_id == 1 and again.size() == 1
    if hvd.rank() == 0:
        assert hvd.allreduce(torch.ones(2), process_set=again).tolist() == [1.0, 1.0]
    unknown = hvd.ProcessSet(ranks)
    expect(ValueError, "was called before", hvd.init, process_sets=[unknown])
    assert unknown.process_set_id is None and hvd.is_initialized()
    hvd.shutdown()


def lives() -> None:
    """Each life has operations that nobody waits for, with names of the life before."""
    for life in range(_LIVES):
        hvd.init()
        rank, size = hvd.rank(), hvd.size()
        own = torch.full((life + 1, 2), float(rank))
        summed = hvd.allreduce(own, name="of each life", op=hvd.Sum)
        assert (summed == size * (size - 1) // 2).all() and summed.shape == own.shape
        for _ in range(4):  # Each turn has a round for which others wait, after one that is over.
            hvd.allgather_async(own)
        hvd.allgather_async(own, name="left open")
        hvd.barrier()
        hvd.shutdown()
        assert not hvd.is_initialized()
    threads = [each for each in threading.enumerate() if each.name == "talweg-completions"]
    for each in threads[:-2]:  # The threads of the last life may still run.
        each.join(60)
        assert not each.is_alive(), f"of {_LIVES} lives there are {len(threads)} threads"


def names_of_forgotten_handles() -> None:
    """A second init() forgets handles. A rank that has lost a handle so may use its name again."""
    hvd.init()
    own = torch.arange(2.0 * hvd.size())
    for start in (hvd.allgather_async, hvd.alltoall_async, hvd.reducescatter_async):
        first = start(own, name="forgotten")
        assert first, "a program may take 0 for no handle"
        expect(ValueError, "is open", start, own, name="forgotten")
        hvd.init()
        expect(ValueError, "was never given out", hvd.poll, first)
        hvd.synchronize(start(own, name="forgotten"))
    hvd.shutdown()


def optimizers_live_on() -> None:
    """An optimizer keeps its name in later lives, and one that is made there has another."""
    first, second = torch.nn.Linear(3, 1), torch.nn.Linear(4, 2)  # Parameters have equal names.
    kept: dict[torch.nn.Linear, Any] = {}
    for life in range(3):
        hvd.init()
        # The last life makes the first one's optimizer anew.
        for model in (first, second, first)[life : life + 1]:
            made = torch.optim.SGD(model.parameters(), lr=0.1)
            kept[model] = hvd.DistributedOptimizer(made, model.named_parameters())
        for _ in range(2):
            loss = torch.zeros(())
            for model, optimizer in kept.items():
                optimizer.zero_grad()
                inputs = torch.full((1, model.in_features), float(hvd.rank()))
                loss = loss + model(inputs).sum()
            loss.backward()
            for model, optimizer in kept.items():
                average = torch.full_like(model.weight, (hvd.size() - 1) / 2)
                torch.testing.assert_close(model.weight.grad, average)
                optimizer.step()
        hvd.shutdown()


def main() -> int:
    wrong_process_sets()
    names_of_forgotten_handles()
    lives()
    optimizers_live_on()
    return 0


if __name__ == "__main__":
    sys.exit(main())
