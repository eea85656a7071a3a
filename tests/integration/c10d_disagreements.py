# SPDX-License-Identifier: Apache-2.0
"""Checks the errors of torch.distributed over Talweg if ranks' calls do not fit together."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import talweg
import talweg.torch
import torch
import torch.distributed as dist

_RANK, _SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


@contextlib.contextmanager
def raises(exception: type[BaseException], words: str) -> Iterator[None]:
    """A context that raises AssertionError unless its block raises `exception` with such words."""
    try:
        yield
    except exception as error:
        assert re.search(words, str(error), re.DOTALL), f"no {words!r} in: {error}"
        return
    raise AssertionError(f"nothing was raised, not {exception.__name__}: {words}")


def check_mismatch() -> None:
    # Each rank names both sides.
    for tensor in (torch.zeros(5 + _RANK), torch.zeros(4000 + _RANK)):
        with raises(
            talweg.Mismatch, r"rank 0 calls all_reduce sum of f32\[\d+\], but rank 1 calls"
        ):
            dist.all_reduce(tensor)
    with raises(talweg.Mismatch, "rank 0 calls all_reduce sum .*, but rank 1 calls all_reduce max"):
        dist.all_reduce(torch.zeros(5), dist.ReduceOp.MAX if _RANK == 1 else dist.ReduceOp.SUM)
    with raises(talweg.Mismatch, "rank 0 calls broadcast .*, but rank 1 calls all_gather"):
        if _RANK == 1:
            dist.all_gather([torch.zeros(5) for _ in range(_SIZE)], torch.zeros(5))
        else:
            dist.broadcast(torch.zeros(5), 0)
    with raises(talweg.Mismatch, r"f32\[4\].*f64\[4\]"):
        dist.broadcast(torch.zeros(4, dtype=torch.float64 if _RANK == 1 else torch.float32), 0)
    if _RANK < 2:
        with raises(talweg.Mismatch, r"send of f32\[3\].*recv of f32\[4\]"):
            if _RANK == 0:
                dist.send(torch.zeros(3), 1)
            else:
                dist.recv(torch.zeros(4), 0)
    # The group still works.
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [_SIZE] * 3


# The shapes of rank 1 and of the others, with the same number of elements.
_SHAPES = {True: (3, 4), False: (2, 6)}


def _mine(factor: int = 1) -> torch.Tensor:
    rows, columns = _SHAPES[_RANK == 1]
    return torch.ones(rows * factor, columns)


def _calls_of_one_shape() -> dict[str, Callable[[int], Any]]:
    """Returns the calls in which torch wants one shape from all ranks, by a factor for the rows."""

    def coalesced(factor: int) -> None:
        with dist._coalescing_manager():
            dist.all_reduce(_mine(factor))
            dist.all_reduce(_mine(factor))

    def gather(factor: int) -> None:
        outputs = [_mine(factor) for _ in range(_SIZE)] if _RANK == 0 else None
        dist.gather(_mine(factor), outputs, 0)

    def scatter(factor: int) -> None:
        inputs = [torch.ones(2 * factor, 6) for _ in range(_SIZE)] if _RANK == 0 else None
        dist.scatter(_mine(factor), inputs, 0)

    return {
        "all_reduce sum": lambda factor: dist.all_reduce(_mine(factor)),
        "all_reduce": coalesced,
        "reduce sum": lambda factor: dist.reduce(_mine(factor), 0),
        "all_gather": lambda factor: dist.all_gather(
            [_mine(factor) for _ in range(_SIZE)], _mine(factor)
        ),
        "all_gather of": lambda factor: dist.all_gather_into_tensor(
            torch.ones(_SIZE, factor * 12), _mine(factor)
        ),
        "reduce_scatter": lambda factor: dist.reduce_scatter(
            _mine(factor), [_mine(factor) for _ in range(_SIZE)]
        ),
        "reduce_scatter sum": lambda factor: dist.reduce_scatter_tensor(
            _mine(factor), torch.ones(_SIZE * factor * 12)
        ),
        "gather": gather,
        "scatter": scatter,
    }


def check_shapes() -> None:
    for name, call in _calls_of_one_shape().items():
        for factor in (1, 1000):
            both = rf"rank 0 calls {name}.*\[.*{2 * factor}, 6\].*, but rank 1 calls {name}.*"
            for _ in range(2):  # The group knows a small call the second time.
                with raises(talweg.Mismatch, rf"{both}\[.*{3 * factor}, 4\]"):
                    call(factor)
    with raises(talweg.Mismatch, r"rank 0 calls all_reduce sum of f32\[\], but rank 1 .*f32\[1\]"):
        dist.all_reduce(torch.ones(1) if _RANK == 1 else torch.tensor(1.0))
    tensor = torch.ones(3, 4)
    dist.all_reduce(tensor)
    assert (tensor == _SIZE).all()


def check_numbers_of_calls() -> None:
    """Ranks disagree on the number of calls in a group call. All get the error in the first."""
    three = "f32\\[3\\], with 2 to follow in one call"
    for _ in range(2):
        with raises(talweg.Mismatch, rf"rank 0 calls .* of f32\[3\], but rank 1 calls .*{three}"):
            if _RANK == 1:
                dist.all_reduce_coalesced([torch.ones(3) for _ in range(3)])
            else:
                dist.all_reduce(torch.ones(3))
        with raises(talweg.Mismatch, rf"calls .*{three}, but .*f32\[3\], with 1 to follow"):
            with dist._coalescing_manager():
                for _ in range(2 if _RANK == 1 else 3):
                    dist.all_reduce(torch.ones(3))
        sparse = r"all_reduce of sparse sum f32 rows of \[3\]"
        with raises(talweg.Mismatch, f"rank 0 calls broadcast .* rank 1 calls {sparse}"):
            if _RANK == 1:
                dist.all_reduce(torch.ones(3).to_sparse())
            else:
                dist.broadcast(torch.ones(3), 0)
        # The ranks make as many calls, and the second does not fit. The others have results.
        tensors = [torch.ones(3), torch.ones(4 + (_RANK == 1)), torch.ones(2)]
        with raises(talweg.Mismatch, r"f32\[4\], with 1 to follow in one call, but rank 1"):
            dist.all_reduce_coalesced(tensors)
        assert (tensors[2] == _SIZE).all()
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [_SIZE] * 3


def check_any_shapes() -> None:
    """Checks calls in which ranks may have tensors of different shapes but equal length."""
    for factor in (1, 1000):
        numbers = torch.arange(12.0 * factor)
        tensor = numbers.view(_mine(factor).shape) + (_RANK != 0)
        dist.broadcast(tensor, 0)
        assert torch.equal(tensor.flatten(), numbers)
        if _RANK == 0:
            dist.send(numbers.view(2 * factor, 6), 1)
        elif _RANK == 1:
            dist.recv(tensor.fill_(0), 0)
            assert torch.equal(tensor.flatten(), numbers)
        outputs = [torch.zeros(_SHAPES[rank == 1]) for rank in range(_SIZE)]
        outputs = [output.repeat(factor, 1) for output in outputs]
        dist.all_gather(outputs, _mine(factor) * _RANK)
        assert all(bool((output == rank).all()) for rank, output in enumerate(outputs))
        # Some ranks join all ranks' parts in one tensor, others stack them.
        own, every = torch.ones(2 * factor, 6), torch.zeros(_SIZE * 2 * factor, 6)
        every = every.view(_SIZE, 2 * factor, 6) if _RANK == 1 else every
        dist.all_gather_into_tensor(every, own * _RANK)
        assert every.view(_SIZE, -1)[:, -1].tolist() == list(range(_SIZE))
        dist.reduce_scatter_tensor(own, every)
        assert own.eq(_RANK * _SIZE).all()
        received = torch.zeros(_SIZE, 4 * factor)
        dist.all_to_all_single(received, (numbers * 0 + _RANK).view(_SIZE, -1, *[1] * _RANK))
        assert received[:, 0].tolist() == list(range(_SIZE))


def check_call_sites(store: dist.Store) -> None:
    """An error names each side's line of the program, also if a rank waits later."""

    def line_of(marker: str) -> str:
        lines = Path(__file__).read_text().splitlines()
        [found] = [n for n, line in enumerate(lines, 1) if line.endswith(f"# {marker}")]
        return re.escape(f"{__file__}:{found}")

    for factor in (1, 1000):
        where = rf"\(rank 0 at {line_of('Zero')}, rank 1 at {line_of('One')}\)$"
        with raises(talweg.Mismatch, where):
            if _RANK == 1:
                dist.all_reduce(torch.ones(3 * factor, 4))  # One
            else:
                dist.all_reduce(torch.ones(2 * factor, 6))  # Zero
        work = dist.all_reduce(_mine(factor), async_op=True)  # Later
        with raises(talweg.Mismatch, rf"rank 0 at {line_of('Later')}, rank 1 at"):
            work.wait()
    # torch has decorated these functions.
    part = torch.ones(_SIZE + (_RANK == 1))
    with raises(talweg.Mismatch, rf"rank 0 at {line_of('Decorated')}, rank 1 at"):
        dist.all_gather_into_tensor(torch.ones(part.numel() * _SIZE), part)  # Decorated
    # A rank that is busy elsewhere delays the others only for a moment.
    group = dist.new_group()
    if _RANK == 1:
        work = dist.all_reduce(_mine(), group=group, async_op=True)
        store.wait(["told.0", "told.2"])
        with raises(talweg.Mismatch, "rank 0 at .*, rank 1 at .*"):
            work.wait()
    else:
        with raises(talweg.Mismatch, r"rank 1 calls .*in the same order$"):
            dist.all_reduce(_mine(), group=group)
        store.set(f"told.{_RANK}", "")
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [_SIZE] * 3


def check_small_calls_again() -> None:
    """Repeats small calls, with ranks that are late or that make another call."""

    def call(count: int, op: dist.ReduceOp = dist.ReduceOp.SUM) -> torch.Tensor:
        tensor = torch.arange(count) + float(_RANK)
        dist.all_reduce(tensor, op)
        return tensor

    def check() -> None:
        tensor = call(5)
        wanted = torch.arange(5) * _SIZE + float(sum(range(_SIZE)))
        assert tensor.tolist() == wanted.tolist(), tensor

    for _ in range(3):
        check()
        call(6, dist.ReduceOp.MAX)
    words = r"rank 0 calls all_reduce sum of f32\[5\], but rank 1 calls all_reduce max of f32\[6\]"
    for _ in range(3):
        with raises(talweg.Mismatch, words):
            call(6, dist.ReduceOp.MAX) if _RANK == 1 else call(5)
        check()
    # One side has a new length, the other side a known one.
    with raises(talweg.Mismatch, r"f32\[5\], but rank 1 calls all_reduce sum of f32\[2000\]"):
        call(2000 if _RANK == 1 else 5)
    check()
    every = torch.zeros(_SIZE * 3)
    for repeat in range(2):
        dist.all_gather_into_tensor(every, torch.full((3,), _RANK + 10.0 * repeat))
        assert every.view(_SIZE, 3)[:, 0].tolist() == [n + 10.0 * repeat for n in range(_SIZE)]
    with raises(
        talweg.Mismatch, r"rank 0 calls all_gather of f32 rows of \[3\], but rank 1 .*\[\]"
    ):
        if _RANK == 0:
            dist.all_gather_into_tensor(every, torch.ones(3))
        else:
            dist.all_gather([torch.zeros(n + 1) for n in range(_SIZE)], torch.ones(_RANK + 1))
    check()


def check_disagreements(store: dist.Store) -> None:
    """Runs all checks except those of repeated small calls."""
    check_mismatch()
    check_shapes()
    check_numbers_of_calls()
    check_any_shapes()
    check_call_sites(store)
