# SPDX-License-Identifier: Apache-2.0
"""Checks that calls of uncommon tensors give the same over Gloo and Talweg."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from c10d_groups import each_backend
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map


class Pair(torch.Tensor):
    """A tensor that wraps two tensors. An operator on it is two operators on these."""

    one: torch.Tensor
    other: torch.Tensor

    @staticmethod
    def __new__(cls: Any, one: torch.Tensor, other: torch.Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, one.shape, dtype=one.dtype)  # type: ignore[attr-defined]
        made.one, made.other = one, other
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def of(name: str) -> Any:
            def inside(value: Any) -> Any:
                return getattr(value, name) if isinstance(value, Pair) else value

            return func(*tree_map(inside, args), **tree_map(inside, kwargs or {}))

        def pair(one: Any, other: Any) -> Any:
            if isinstance(one, (list, tuple)):
                return type(one)(map(pair, one, other))
            return Pair(one, other) if isinstance(one, torch.Tensor) else one

        made = pair(of("one"), of("other"))
        return return_and_correct_aliasing(func, args, kwargs or {}, made)


_Values = Callable[[int, int], torch.Tensor]


def _one(rank: int, count: int) -> torch.Tensor:
    return torch.arange(count) + 10.0 * rank


def _other(rank: int, count: int) -> torch.Tensor:
    return torch.arange(count) * (rank + 2.0)


def _pair(rank: int, count: int) -> Pair:
    return Pair(_one(rank, count), _other(rank, count))


def _of_pairs(calls: Callable[[_Values], list[Any]]) -> Any:
    """Returns the results of calls of pairs, first those inside of the one kind.

    Over Gloo these are calls of the tensors inside, because torch waits there for one of them only.
    """
    if dist.get_backend() == "gloo":
        return [*calls(_one), *calls(_other)]
    pairs = calls(_pair)
    return [pair.one for pair in pairs] + [pair.other for pair in pairs]


def calls_of_a_class_that_unwraps_its_tensors(rank: int, size: int) -> Any:
    def calls(values: _Values, count: int) -> list[Any]:
        dist.all_reduce(torch.ones(count))  # The next call like it would take the short way.
        summed, told, most = (values(rank, count) for _ in range(3))
        dist.all_reduce(summed)
        dist.broadcast(told, size - 1)
        dist.reduce(most, 0, dist.ReduceOp.MAX)
        every = [values(0, count) for _ in range(size)]
        dist.all_gather(every, values(rank, count))
        joined, part = values(0, count * size), values(0, count // size)
        dist.all_gather_into_tensor(joined, values(rank, count))
        dist.reduce_scatter_tensor(part, values(rank, count))
        own, swapped = values(0, count), values(0, count)
        parts = [values(place, count) for place in range(size)]
        dist.scatter(own, parts if rank == 1 else None, 1)
        dist.all_to_all_single(swapped, values(rank, count))
        got = [values(0, count) for _ in range(size)] if rank == 1 else []
        dist.gather(values(rank, count), got or None, 1)
        group, many = dist.group.WORLD, [[values(0, count)] for _ in range(size)]
        dist.all_gather_coalesced(many, [values(rank, count)])
        lists = [values(0, count * size)], [values(rank, count)]
        group.all_gather_single_coalesced(*lists).wait()
        shares = [values(0, count // size)], [values(rank, count)]
        group.reduce_scatter_single_coalesced(*shares).wait()
        dist.all_reduce_coalesced(lists[1])
        kept = [most] if rank == 0 else got
        return [
            summed,
            told,
            *every,
            joined,
            part,
            own,
            swapped,
            *kept,
            *lists[0],
            *lists[1],
            *shares[0],
            *(each[0] for each in many),
        ]

    return [_of_pairs(partial(calls, count=count)) for count in (2 * size, 3000 * size)]


def async_calls_of_a_class_that_unwraps_its_tensors(rank: int, size: int) -> Any:
    def calls(values: _Values, count: int) -> list[Any]:
        tensors = [values(rank + place, count) for place in range(3)]
        works: list[Any] = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        sent, came = values(rank, count), values(0, count)
        works.append(dist.isend(sent, (rank + 1) % size))
        works.append(dist.irecv(came, (rank - 1) % size))
        for work in reversed(works):
            work.wait()
        assert all(work.is_completed() and work.is_success() for work in works)
        told = values(rank, count)
        last: Any = dist.broadcast(told, 0, async_op=True)
        [output] = last.get_future().wait()
        assert type(output) is type(told)
        return [*tensors, came, told]

    return [_of_pairs(partial(calls, count=count)) for count in (4, 9000)]


def one_tensor_twice_in_a_call(rank: int, size: int) -> Any:
    found: list[Any] = []
    for count in (1, 3, 5000):
        tensor, table = torch.arange(count) + rank, torch.arange(4.0 * count).view(4, count) * rank
        dist.all_reduce_coalesced([tensor, tensor])
        dist.all_reduce_coalesced([table[:2], table[1:], torch.ones(count), table[3]])
        found += [tensor, table]
    return found


def tensors_of_inference_mode(rank: int, size: int) -> Any:
    """A call may end on another thread, and outside the mode."""
    found: list[Any] = []
    for count in (3, 5000):

        def ones(*shape: int) -> torch.Tensor:
            return torch.ones(*shape) * (rank + 1)

        with torch.inference_mode():
            every = [ones(count) for _ in range(size)]
            works = [dist.all_gather(every, ones(count), async_op=True)]
            columns = ones(count, 2).t()
            works.append(dist.all_reduce(columns, async_op=True))
            told = ones(2, count).t()
            later = dist.broadcast(told, 1, async_op=True)
        for work in works:
            work.get_future().wait()
        later.wait()
        dist.all_reduce(columns)
        dist.broadcast(told, 0)
        found += [*every, columns, told]
    return [tensor.clone() for tensor in found]


def tensor_in_shards(rank: int, size: int) -> Any:
    from torch.distributed._shard import sharded_tensor, sharding_spec

    places = [f"rank:{place}/cpu" for place in range(size)]
    spec = sharding_spec.ChunkShardingSpec(dim=0, placements=places)  # type: ignore[arg-type]
    sharded = sharded_tensor.zeros(spec, 2 * size + 1, 3)
    for shard in sharded.local_shards():
        shard.tensor.add_(rank + 1)
    whole = torch.zeros(2 * size + 1, 3)
    sharded.gather(0, whole if rank == 0 else None)
    return whole


_CASES: list[Callable[[int, int], Any]] = [
    calls_of_a_class_that_unwraps_its_tensors,
    async_calls_of_a_class_that_unwraps_its_tensors,
    one_tensor_twice_in_a_call,
    tensors_of_inference_mode,
    tensor_in_shards,
]


if __name__ == "__main__":
    each_backend({case.__name__: case for case in _CASES})
