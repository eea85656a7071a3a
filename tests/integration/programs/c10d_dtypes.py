# SPDX-License-Identifier: Apache-2.0
"""Compares each call of torch.distributed with each dtype, short and long, with Gloo.

If Talweg refuses a dtype by its own error, Gloo refuses it too. Bools are an exception: their sum
is any() for Talweg, as for NCCL, and a number modulo 256 for Gloo.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import talweg.torch
import torch
import torch.distributed as dist

_TIMEOUT = timedelta(seconds=120)
_RANK, _SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
_DTYPES = (
    "uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 bool "
    "complex32 complex64 complex128 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz "
    "float8_e8m0fnu"
).split()
_OPS = ("SUM", "AVG", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR")
_LENGTHS = (0, 6, 3000)
_Call = Callable[[torch.dtype, int], Any]


def _values(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    numbers = torch.arange(count) % 3 + rank + 1
    return numbers % 2 == 0 if dtype is torch.bool else numbers.to(torch.float32).to(dtype)


def _strided(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns every other element of a longer tensor."""
    return _values(rank, 2 * count, dtype).view(count, 2)[:, 0]


def _copies() -> dict[str, _Call]:
    """Returns the calls that compute nothing."""

    def zeros(count: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(count, dtype=dtype)

    def every(count: int, dtype: torch.dtype) -> list[torch.Tensor]:
        return [zeros(count, dtype) for _ in range(_SIZE)]

    def broadcast(dtype: torch.dtype, count: int) -> Any:
        tensor = _values(_RANK, count, dtype)
        dist.broadcast(tensor, 1)
        return tensor

    def all_gather(dtype: torch.dtype, count: int) -> Any:
        outputs, joined = every(count, dtype), zeros(count * _SIZE, dtype)
        dist.all_gather(outputs, _values(_RANK, count, dtype))
        dist.all_gather_into_tensor(joined, _values(_RANK, count, dtype))
        return [outputs, joined]

    def gather_and_scatter(dtype: torch.dtype, count: int) -> Any:
        gathered, output = every(count, dtype), zeros(count, dtype)
        parts = [_values(place, count, dtype) for place in range(_SIZE)]
        is_root = _RANK == 0
        dist.gather(_values(_RANK, count, dtype), gathered if is_root else None)
        dist.scatter(output, parts if is_root else None)
        return [gathered, output]

    def all_to_all(dtype: torch.dtype, count: int) -> Any:
        output, split = zeros(count * _SIZE, dtype), zeros(count * _SIZE, dtype)
        dist.all_to_all_single(output, _values(_RANK, count * _SIZE, dtype))
        dist.all_to_all_single(
            split, _values(_RANK, count * _SIZE, dtype), [count] * _SIZE, [count] * _SIZE
        )
        return [output, split]

    def messages(dtype: torch.dtype, count: int) -> Any:
        output = zeros(count, dtype)
        work = dist.isend(_values(_RANK, count, dtype), (_RANK + 1) % _SIZE)
        dist.recv(output, (_RANK - 1) % _SIZE)
        work.wait()
        return output

    return {
        each.__name__: each
        for each in (broadcast, all_gather, gather_and_scatter, all_to_all, messages)
    }


def _reductions(op: str) -> dict[str, _Call]:
    reduce_op = getattr(dist.ReduceOp, op)

    def all_reduce(dtype: torch.dtype, count: int) -> Any:
        tensor = _values(_RANK, count, dtype)
        dist.all_reduce(tensor, reduce_op)
        return tensor

    def reduce(dtype: torch.dtype, count: int) -> Any:
        tensor = _values(_RANK, count, dtype)
        dist.reduce(tensor, 0, reduce_op)
        return tensor if _RANK == 0 else None  # Talweg leaves the tensors of other ranks.

    def reduce_scatter(dtype: torch.dtype, count: int) -> Any:
        outputs = [torch.zeros(count, dtype=dtype) for _ in range(2)]
        dist.reduce_scatter_tensor(outputs[0], _values(_RANK, count * _SIZE, dtype), reduce_op)
        parts = [_values(_RANK + place, count, dtype) for place in range(_SIZE)]
        dist.reduce_scatter(outputs[1], parts, reduce_op)
        return outputs

    return {f"{each.__name__} {op}": each for each in (all_reduce, reduce, reduce_scatter)}


def _bytes(found: Any) -> Any:
    if isinstance(found, torch.Tensor):
        plain = found.contiguous()
        return [list(found.shape), plain.view(torch.uint8).tolist() if plain.numel() else []]
    return [_bytes(each) for each in found] if isinstance(found, list) else found


def _run(backend: str, calls: dict[str, _Call]) -> dict[tuple[str, str, int], Any]:
    """Returns the result or the error of each call."""
    dist.init_process_group(backend, timeout=_TIMEOUT)
    found: dict[tuple[str, str, int], Any] = {}
    for name, call in calls.items():
        for dtype in _DTYPES:
            for count in _LENGTHS:
                try:
                    found[name, dtype, count] = _bytes(call(getattr(torch, dtype), count))
                except Exception as failure:
                    found[name, dtype, count] = failure
    dist.destroy_process_group()
    return found


def _check_strided() -> None:
    """Checks strided tensors without Gloo, which takes wrong elements of them."""
    dist.init_process_group("talweg", timeout=_TIMEOUT)
    for name in _DTYPES:
        dtype = getattr(torch, name)
        for count in _LENGTHS:
            given, told, scattered, received = (
                _strided(rank, count, dtype) for rank in (_RANK, _RANK, 0, 0)
            )
            outputs, gathered = ([_strided(9, count, dtype) for _ in range(_SIZE)] for _ in "12")
            dist.broadcast(told, 1)
            dist.all_gather(outputs, given)
            dist.gather(given, gathered if _RANK == 0 else None)
            dist.scatter(scattered, outputs if _RANK == 0 else None)
            work = dist.isend(given, (_RANK + 1) % _SIZE)
            before = (_RANK - 1) % _SIZE
            dist.recv(received, before)
            work.wait()
            got = [told, scattered, received, *outputs, *(gathered if _RANK == 0 else [])]
            ranks = [1, _RANK, before, *range(_SIZE), *(range(_SIZE) if _RANK == 0 else [])]
            assert _bytes(got) == [_bytes(_strided(rank, count, dtype)) for rank in ranks], name
    dist.destroy_process_group()


def _check_integers(found: dict[tuple[str, str, int], Any]) -> None:
    """Checks what Gloo has not: averages of integers, which are rounded towards zero, and all
    reductions of uint16, uint32 and uint64.
    """
    wide = ("uint16", "uint32", "uint64")
    for count in _LENGTHS:
        each = torch.stack([_values(rank, count, torch.int64) for rank in range(_SIZE)])
        results = {
            "AVG": each.sum(0) // _SIZE,
            "SUM": each.sum(0),
            "MIN": each.amin(0),
            "MAX": each.amax(0),
            "PRODUCT": each.prod(0),
            "BAND": functools.reduce(torch.bitwise_and, each),
            "BOR": functools.reduce(torch.bitwise_or, each),
            "BXOR": functools.reduce(torch.bitwise_xor, each),
        }
        narrow = ("uint8", "int8", "int16", "int32", "int64")
        for op, numbers in results.items():
            for dtype in (*wide, *narrow) if op == "AVG" else wide:
                wanted = _bytes(numbers.to(getattr(torch, dtype)))
                got = found[f"all_reduce {op}", dtype, count]
                assert got == wanted, (op, dtype, count, got)


def main() -> None:
    calls = _copies()
    for op in _OPS:
        calls |= _reductions(op)
    gloo, own = _run("gloo", calls), _run("talweg", calls)
    alike = 0
    for key, expected in gloo.items():
        got = own[key]
        if isinstance(got, Exception):
            is_torchs = "on complex tensors" in str(got)  # torch refuses it before the backend.
            assert is_torchs or isinstance(got, talweg.TalwegError), (key, repr(got))
            assert isinstance(expected, Exception), (key, repr(got))
        elif not isinstance(expected, Exception):
            is_sum_of_bools = key[1] == "bool" and key[0].endswith("SUM")
            assert got == expected or is_sum_of_bools, (key, got, expected)
            alike += 1
    _check_integers(own)
    _check_strided()
    refused = sorted(
        {(name, dtype) for (name, dtype, _), got in own.items() if isinstance(got, Exception)}
    )
    copies = [each for each in refused if each[0] in _copies()]
    assert not copies, copies
    print(f"rank {_RANK}: {alike} of {len(gloo)} cases alike, {len(refused)} pairs refused")


if __name__ == "__main__":
    main()
