# SPDX-License-Identifier: Apache-2.0
"""Sums of sparse tensors, and training with sparse gradients, beside dense ones.

The results are the same in three ways: where ranks gather all rows, where each row is dealt to an
owner, and where the tensors are dense.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import talweg
import talweg.torch as tw
import torch
from cases import run_cases
from expected_errors import expect
from talweg._collectives import sparse_rows
from torch import nn

_ROWS = 5000


@contextmanager
def _way(dealt: bool) -> Iterator[None]:
    """Has the calls of each name go one way, from their second one on."""
    least, part = sparse_rows._DEALT_BYTES_MIN, sparse_rows._DEALT_PART
    sparse_rows._DEALT_BYTES_MIN = 0
    sparse_rows._DEALT_PART = 1e9 if dealt else 0.0
    try:
        yield
    finally:
        sparse_rows._DEALT_BYTES_MIN, sparse_rows._DEALT_PART = least, part


def _own(step: int, dtype: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """This rank's rows: some more than once, and at some ranks none at all."""
    rng = np.random.default_rng(10 * step + talweg.rank())
    count = 0 if (step + talweg.rank()) % 3 == 0 else int(rng.integers(1, 2000))
    return rng.integers(0, _ROWS, count), rng.integers(-9, 9, (count, *shape)).astype(dtype)


def numpy_sums_are_those_of_dense_arrays() -> None:
    cases: list[tuple[Any, tuple[int, ...]]] = [
        (np.float32, (8,)),
        (np.float64, ()),
        (np.float16, (3,)),
        (np.complex64, (2, 2)),
        (np.int8, (5,)),
        (np.uint64, (1,)),
    ]
    for dtype, shape in cases:
        for dealt in (False, True):
            for step in range(4):
                name = f"sum {np.dtype(dtype).name} {dealt}"
                indices, values = _own(step, dtype, shape)
                with _way(dealt), np.errstate(over="ignore"):
                    got = talweg.push_pull_sparse(indices, values, _ROWS, name, talweg.Op.SUM)
                dense = np.zeros((_ROWS, *shape), dtype)
                np.add.at(dense, indices, values)
                dense = talweg.push_pull(dense, f"dense {name}", talweg.Op.SUM)
                found = np.zeros_like(dense)
                found[got.indices] = got.values
                assert got.values.dtype == np.dtype(dtype)
                assert np.all(got.indices[1:] > got.indices[:-1])
                np.testing.assert_array_equal(found, dense, name)


def both_ways_have_the_same_bits() -> None:
    rng = np.random.default_rng(talweg.rank())
    indices = rng.integers(0, 300, 900)
    for dtype in (np.float32, np.float16):
        values = rng.standard_normal((900, 7)).astype(dtype)
        results = []
        for dealt in (False, True):
            for _ in range(2):
                with _way(dealt):
                    of = (f"bits {dealt} {np.dtype(dtype).name}",)
                    results.append(talweg.push_pull_sparse(indices, values, 300, *of))
        first = results[0]
        for other in results[1:]:
            np.testing.assert_array_equal(other.indices, first.indices)
            assert other.values.tobytes() == first.values.tobytes()
        every = talweg.all_gather(first.values.view(np.uint8)[np.newaxis])
        assert (every == every[0]).all()


def averages_and_factors() -> None:
    place, size = np.array([talweg.rank()]), talweg.size()
    ones: np.ndarray = np.ones((1, 2), np.float32)
    got = talweg.push_pull_sparse(place, ones, size)
    np.testing.assert_array_equal(got.values, np.full((size, 2), np.float32(1) / np.float32(size)))
    got = talweg.push_pull_sparse(
        place, ones, size, average=False, prescale_factor=4.0, postscale_factor=0.5
    )
    np.testing.assert_array_equal(got.values, np.full((size, 2), 2.0, np.float32))
    handles = [talweg.push_pull_sparse_async(place, ones * k, size, f"many {k}") for k in range(5)]
    for k, handle in enumerate(handles):
        np.testing.assert_allclose(talweg.synchronize(handle).values, k / size, rtol=1e-6)


def rows_that_change_while_a_call_waits_for_its_turn() -> None:
    """The caller may change its arrays at once, also if the call before is under way."""
    for dealt in (False, True):
        with _way(dealt):
            _change_rows(f"turns {dealt}")


def _change_rows(name: str) -> None:
    indices = np.array([2, 5])
    values: np.ndarray = np.ones((2, 3), np.float32)
    if talweg.rank() > 0:
        talweg.barrier()  # The calls of rank 0 wait for those of the others.
    handles = [talweg.push_pull_sparse_async(indices, values, 9, name) for _ in range(3)]
    tensor = torch.ones(4).to_sparse()
    handles.append(tw.push_pull_sparse_async(tensor, name))
    values[:], indices[:] = 7.0, 0
    tensor.values()[:] = 7.0
    if talweg.rank() == 0:
        talweg.barrier()
    *found, last = [talweg.synchronize(handle) for handle in handles]
    for each in found:
        assert each.indices.tolist() == [2, 5] and (each.values == 1).all()
    assert last.to_dense().tolist() == [1.0] * 4


def process_sets() -> None:
    some = talweg.ProcessSet([0])
    if some.included():
        got = talweg.push_pull_sparse(
            np.array([3, 3]), np.ones(2, np.float32), 4, "of a set", process_set=some
        )
        assert got.indices.tolist() == [3] and got.values.tolist() == [2.0]


def wrong_calls() -> None:
    ones: np.ndarray = np.ones((1, 2), np.float32)

    def call(indices: Any, values: Any, rows: int, **options: Any) -> Any:
        return talweg.push_pull_sparse(indices, values, rows, "wrong", **options)

    at = np.array
    expect(talweg.InvalidArgument, "row 10 of a tensor that has 10", call, at([10]), ones, 10)
    expect(talweg.InvalidArgument, "row -1 of", call, at([-1]), ones, 10)
    expect(talweg.InvalidArgument, "use integers", call, at([1.0]), ones, 10)
    expect(talweg.InvalidArgument, "one index", call, at([1, 2]), ones, 10)
    expect(talweg.InvalidArgument, "one for each row", call, at([1]), at(1.0, np.float32), 10)
    expect(talweg.InvalidArgument, "rows is -1", call, at([1]), ones, -1)
    expect(talweg.WrongType, "indices are a list", call, [1], ones, 10)
    expect(talweg.Unsupported, "max", call, at([1]), ones, 10, op=talweg.Op.MAX)
    expect(talweg.Unsupported, "average", call, at([1]), ones.astype(np.int32), 10)
    wide: np.ndarray = np.ones((1, 2 + talweg.rank()), np.float32)
    if talweg.size() > 1:
        expect(talweg.Mismatch, "[10, 2], but rank 1", call, at([1]), wide, 10)
        average = talweg.rank() == 0
        expect(talweg.Mismatch, "avg f32", call, at([1]), ones, 10, average=average)
    # The name is usable again.
    assert call(at([1]), ones, 10).values.shape == (1, 2)
    expect(talweg.InvalidArgument, "to_sparse(1)", tw.push_pull_sparse, torch.ones(3))


def torch_sums_are_those_of_dense_tensors() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.complex64, torch.int64):
        for dimensions, shape in ((1, (50, 3)), (2, (5, 10, 2)), (2, (6, 7))):
            torch.manual_seed(talweg.rank())
            dense = torch.randint(-4, 4, shape).to(dtype)
            dense[torch.rand(shape[0]) < 0.7] = 0
            name = f"torch {dtype} {shape}"
            got = tw.push_pull_sparse(
                dense.to_sparse(dimensions), f"{name} sparse", op=talweg.Op.SUM
            )
            assert got.is_coalesced() and got.sparse_dim() == dimensions and got.dtype == dtype
            expected = tw.push_pull(dense, name, talweg.Op.SUM)
            assert torch.equal(got.to_dense(), expected), name
    twice = torch.sparse_coo_tensor([[1, 1, 0]], torch.ones(3), (4,), check_invariants=True)
    assert tw.push_pull_sparse(twice).to_dense().tolist() == [1, 2, 0, 0]
    handle = tw.push_pull_sparse_async(torch.zeros(4).to_sparse(1))
    assert tw.synchronize(handle)._nnz() == 0


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(200, 8, sparse=True)
        self.rare = nn.Embedding(20, 8, sparse=True)  # One rank uses it, from the third step on.
        self.never = nn.Embedding(20, 8, sparse=True)
        self.bags = nn.EmbeddingBag(30, 8, mode="sum", sparse=True)
        self.out = nn.Linear(8, 3)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, rare: bool) -> torch.Tensor:
        hidden = self.words(x).mean(1) + self.bags(x % 30)
        if rare:
            hidden = hidden + self.rare(x % 20).mean(1)
        out: torch.Tensor = self.out(hidden)
        return out


def _sparse_and_dense(model: nn.Module) -> tuple[list[Any], list[Any]]:
    named = list(model.named_parameters())
    is_dense = [name.startswith(("out", "unused")) for name, _ in named]
    return (
        [each for each, dense in zip(named, is_dense) if not dense],
        [each for each, dense in zip(named, is_dense) if dense],
    )


def _optimizers(model: nn.Module, kind: str) -> list[tuple[torch.optim.Optimizer, list[Any]]]:
    sparse, dense = _sparse_and_dense(model)
    if kind == "sgd":
        return [(torch.optim.SGD(model.parameters(), lr=0.05), list(model.named_parameters()))]
    return [
        (torch.optim.SparseAdam([p for _, p in sparse], lr=0.1), sparse),
        (torch.optim.Adagrad([p for _, p in dense], lr=0.1), dense),
    ]


def _train(kind: str, overlaps: bool, passes: int) -> None:
    torch.manual_seed(1)
    model, size = _Model(), tw.size()
    reference = copy.deepcopy(model)
    name = f"{kind} {overlaps} {passes}"
    optimizers: list[Any] = []
    for optimizer, named in _optimizers(model, kind):
        optimizers.append(
            tw.DistributedOptimizer(
                optimizer,
                named,
                name=f"{name} {len(optimizers)}",
                backward_passes_per_step=passes,
                overlap_forward=model if overlaps else None,
            )
        )
    plain = [optimizer for optimizer, _ in _optimizers(reference, kind)]
    for step in range(5):
        torch.manual_seed(100 + step)
        batches = torch.randint(0, 200, (passes, size, 4, 5))
        targets = torch.randn(passes, size, 4, 3)

        def loss(model: nn.Module, turn: int, rank: int, step: int = step) -> torch.Tensor:
            rare = step >= 2 and rank == step % size
            out = model(batches[turn, rank], rare)  # noqa: B023
            return (out - targets[turn, rank]).square().mean()  # noqa: B023

        for turn in range(passes):
            loss(model, turn, tw.rank()).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        for turn in range(passes):
            (sum(loss(reference, turn, rank) for rank in range(size)) / size).backward()
        for optimizer in plain:
            optimizer.step()
            optimizer.zero_grad()
    for optimizer in optimizers:
        optimizer.synchronize_parameters()
    for (what, mine), other in zip(model.named_parameters(), reference.parameters()):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6, msg=f"{name}: {what}")
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    every = tw.all_gather(flat[None])
    assert (every == every[0]).all(), name


def training_with_sparse_gradients() -> None:
    for kind in ("sgd", "adam"):
        for dealt in (False, True):
            with _way(dealt):
                _train(kind, False, 1)
    _train("sgd", False, 2)
    _train("sgd", True, 1)


def gradients_that_are_sparse_at_one_rank_only() -> None:
    """The others have a dense one, so that all push it as a dense one."""
    torch.manual_seed(0)
    layer = nn.Embedding(10, 3, sparse=tw.rank() == 0)
    optimizer = tw.DistributedOptimizer(
        torch.optim.SGD(layer.parameters(), lr=1.0), layer.named_parameters(), name="one sparse"
    )
    before = layer.weight.detach().clone()
    for _ in range(2):
        optimizer.zero_grad()
        layer(torch.tensor([tw.rank()])).sum().backward()
        optimizer.step()
    moved = before - layer.weight.detach()
    expected = torch.zeros(10, 3)
    expected[: tw.size()] = 2 / tw.size()
    torch.testing.assert_close(moved, expected)


def uneven_batches() -> None:
    layer = nn.Embedding(10, 3, sparse=True)
    optimizer = tw.DistributedOptimizer(
        torch.optim.SGD(layer.parameters(), lr=1.0), layer.named_parameters(), name="uneven"
    )
    tw.broadcast_parameters(layer.state_dict(), 0)
    with optimizer.join():  # type: ignore[attr-defined]
        for _ in range(tw.rank() + 1):
            optimizer.zero_grad()
            layer(torch.tensor([tw.rank()])).sum().backward()
            optimizer.step()
    every = tw.all_gather(layer.weight.detach()[None])
    assert (every == every[0]).all()


def patience_refuses_them() -> None:
    layer = nn.Embedding(10, 3, sparse=True)
    optimizer = tw.DistributedOptimizer(
        torch.optim.SGD(layer.parameters(), lr=1.0),
        layer.named_parameters(),
        name="patient",
        patience=0.5,
    )
    expect(
        talweg.Unsupported,
        "patience: the gradient of 'weight' is sparse",
        lambda: layer(torch.tensor([1])).sum().backward(),
    )
    del optimizer


def main() -> int:
    talweg.init()
    run_cases(
        numpy_sums_are_those_of_dense_arrays,
        both_ways_have_the_same_bits,
        averages_and_factors,
        rows_that_change_while_a_call_waits_for_its_turn,
        process_sets,
        wrong_calls,
        torch_sums_are_those_of_dense_tensors,
        training_with_sparse_gradients,
        gradients_that_are_sparse_at_one_rank_only,
        uneven_batches,
        patience_refuses_them,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
