# SPDX-License-Identifier: Apache-2.0
"""One rank of horovod_test.py. If ranks disagree, each gets an error, and the job goes on."""

from __future__ import annotations

import sys

import talweg.byteps.torch as bps
import talweg.horovod.torch as hvd
import torch
from talweg.errors import Mismatch


def _told(tensor: torch.Tensor, name: str | None, op: int = hvd.Sum) -> str:
    handle = hvd.allreduce_async(tensor, name=name, op=op)
    try:
        hvd.synchronize(handle)
    except hvd.HorovodInternalError as error:
        return str(error)
    return ""


def without_names() -> None:
    """Calls without a name take tensors in turn, and the turns stay the same at all ranks."""
    rank, size = hvd.rank(), hvd.size()
    for _ in range(2):
        lengths = _told(torch.ones(5 + rank), None)
        assert "f32[5]" in lengths and "f32[6]" in lengths, lengths
    for call in range(60):
        handles = {
            length: hvd.allreduce_async(torch.full((length,), float(call)), op=hvd.Sum)
            for length in (5, 6)
        }
        for length, handle in handles.items():
            found = hvd.synchronize(handle)
            assert torch.equal(found, torch.full((length,), float(call * size))), found


def of_byteps() -> None:
    rank, one, double = bps.rank(), torch.ones(3), torch.float64

    def told(name: str, tensor: torch.Tensor, average: bool = True) -> str:
        try:
            bps.push_pull(tensor, average=average, name=name)
        except Mismatch as error:
            return str(error)
        return ""

    lengths = told("lengths", torch.ones(3 + rank))
    assert "byteps.lengths" in lengths and "f32[3]" in lengths and "f32[4]" in lengths, lengths
    dtypes = told("dtypes", one if rank == 0 else one.to(double))
    assert "f32[3]" in dtypes and "f64[3]" in dtypes, dtypes
    ops = told("ops", one, average=rank == 0)
    assert "f32[3] average" in ops and "f32[3] sum" in ops, ops
    assert told("ops", one, average=False) == told("lengths", one) == ""


def main() -> int:
    hvd.init()
    without_names()
    rank = hvd.rank()
    shapes = _told(torch.ones(3 + rank), "shapes")
    assert "f32[3]" in shapes and "f32[4]" in shapes, shapes
    assert _told(torch.ones(3), "shapes") == ""  # The name is free again.
    turned = _told(torch.ones([(2, 6), (3, 4)][rank % 2]), None)
    assert "[2, 6]" in turned and "[3, 4]" in turned, turned
    assert _told(torch.ones(3, 4), None) == ""
    for name in ("turned", "agreed"):
        if name == "agreed":
            assert _told(torch.ones(3, 4), name) == _told(torch.ones(3, 4), name) == ""
        turned = _told(torch.ones([(2, 6), (3, 4)][rank % 2]), name)
        assert "[2, 6]" in turned and "[3, 4]" in turned, turned
        for shape in ((3, 4), (2, 6)):
            assert _told(torch.ones(shape), name) == ""
    for given in ("emptied", None):  # A tensor without elements takes part, too.
        emptied = _told(torch.ones([0, 3][rank % 2]), given)
        assert "f32[0]" in emptied and "f32[3]" in emptied, emptied
        assert _told(torch.ones(0), given) == _told(torch.ones(3), given) == ""
    dtypes = _told(torch.ones(3, dtype=(torch.float32, torch.float64)[rank % 2]), "dtypes")
    assert "f32[3]" in dtypes and "f64[3]" in dtypes, dtypes
    for op, word in ((hvd.Min, "min"), (hvd.Average, "average")):
        ops = _told(torch.ones(3), "ops", (hvd.Sum, op)[rank % 2])
        assert "sum" in ops and word in ops, ops
        assert _told(torch.ones(3), "ops") == ""
    roots = ""
    try:
        hvd.broadcast(torch.ones(2), rank, name="roots")
    except hvd.HorovodInternalError as error:
        roots = str(error)
    assert "roots" in roots, roots
    rows = ""
    handle = hvd.allgather_async(torch.ones(2, 3 + rank), name="rows")
    try:
        hvd.synchronize(handle)
    except hvd.HorovodInternalError as error:
        rows = str(error)
    assert "[3]" in rows and "[4]" in rows, rows
    assert hvd.allgather(torch.ones(2, 3), name="rows").shape == (2 * hvd.size(), 3)
    assert (hvd.allreduce(torch.ones(3), name="after", op=hvd.Sum) == hvd.size()).all()
    hvd.shutdown()
    bps.init()
    of_byteps()
    bps.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
