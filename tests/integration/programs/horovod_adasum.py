# SPDX-License-Identifier: Apache-2.0
"""One rank of horovod_test.py. It checks Adasum of torch tensors, and the optimizer that uses it."""

from __future__ import annotations

import copy
import pickle
import sys
from typing import Any

import numpy as np
import talweg.horovod.torch as hvd
import torch
from adasum_reference import adasum
from cases import run_cases
from expected_errors import expect
from torch import nn


def _of_rank(rank: int, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Returns a tensor that is neither parallel nor orthogonal to other ranks', nor opposite."""
    own = np.random.default_rng([seed, rank]).standard_normal(shape)
    common = 1 + np.abs(np.random.default_rng(seed).standard_normal(shape))
    return np.asarray(own + (rank + 1) * common)


def _wanted(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    rounded = [torch.from_numpy(_of_rank(r, shape, seed)).to(dtype) for r in range(hvd.size())]
    return torch.from_numpy(adasum([each.double().numpy() for each in rounded]))


_TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5, torch.float64: 1e-12}


def _alike(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    limit = _TOLERANCE[found.dtype]
    return torch.allclose(found.double(), wanted, rtol=limit, atol=10 * limit)


def _same_at_all_ranks(tensor: torch.Tensor) -> bool:
    every = hvd.allgather(tensor.detach().reshape(1, -1))
    return all(torch.equal(each, every[0]) for each in every)


def tensors() -> None:
    for seed, shape in enumerate([(), (1,), (3, 5), (1000, 7), (300_001,)]):
        for dtype in _TOLERANCE:
            own = torch.from_numpy(_of_rank(hvd.rank(), shape, seed)).to(dtype)
            before = own.clone()
            wanted = _wanted(shape, dtype, seed)
            result = hvd.allreduce(own, op=hvd.Adasum)
            assert result.dtype is dtype and result.shape == own.shape
            assert _alike(result, wanted), (shape, dtype)
            assert torch.equal(own, before) and _same_at_all_ranks(result)
            assert hvd.allreduce_(own, op=hvd.Adasum) is own and torch.equal(own, result)
    assert hvd.allreduce(torch.ones(0, 3), op=hvd.Adasum).shape == (0, 3)
    strided = torch.from_numpy(_of_rank(hvd.rank(), (6, 4))).t()
    assert _alike(hvd.allreduce(strided, op=hvd.Adasum), _wanted((6, 4), torch.float64).t())


def what_it_is_for() -> None:
    """Equal tensors keep their length, orthogonal ones add up, and zeros take no part."""
    size, rank = hvd.size(), hvd.rank()
    alike = hvd.allreduce(torch.full((50,), 3.0), op=hvd.Adasum)
    assert torch.allclose(alike, torch.full((50,), 3.0))
    apart = torch.zeros(size)
    apart[rank] = rank + 1.0
    result = hvd.allreduce(apart, op=hvd.Adasum)
    assert torch.allclose(result, torch.arange(1.0, size + 1))
    only = torch.full((4,), 5.0 if rank == size - 1 else 0.0)
    assert (hvd.allreduce(only, op=hvd.Adasum) == 5).all()
    assert (hvd.allreduce(torch.zeros(4), op=hvd.Adasum) == 0).all()
    opposite = torch.full((3,), 1.0 if rank % 2 == 0 else -1.0)
    assert hvd.allreduce(opposite, op=hvd.Adasum).isfinite().all()
    broken = torch.full((3,), 2.0)
    broken[0] = float("inf") if rank == 0 else 1.0
    assert not hvd.allreduce(broken, op=hvd.Adasum)[0].isfinite()


def far_apart() -> None:
    """Lengths may differ by more than f32 can hold: a rank's number need not be an f32."""
    lengths = (1e-30, 1e30)
    every = [
        (torch.from_numpy(_of_rank(rank, (40,))) * lengths[rank % 2]).float()
        for rank in range(hvd.size())
    ]
    wanted = torch.from_numpy(adasum([each.double().numpy() for each in every]))
    found = hvd.allreduce(every[hvd.rank()], op=hvd.Adasum)
    assert (found - wanted).norm() <= 1e-5 * wanted.norm(), (found, wanted)


def forms() -> None:
    shapes: list[tuple[int, ...]] = [(2, 3), (40,), (5000,)]
    own = [torch.from_numpy(_of_rank(hvd.rank(), shape)).float() for shape in shapes]
    for result, shape in zip(hvd.grouped_allreduce(own, name="group", op=hvd.Adasum), shapes):
        assert _alike(result, _wanted(shape, torch.float32))
    handles = [
        hvd.allreduce_async(each, name=f"each.{number}", op=hvd.Adasum)
        for number, each in enumerate(own)
    ]
    for handle, shape in reversed(list(zip(handles, shapes))):
        assert _alike(hvd.synchronize(handle), _wanted(shape, torch.float32))
    scaled = hvd.allreduce(own[0], op=hvd.Adasum, prescale_factor=4.0, postscale_factor=0.5)
    assert _alike(scaled, 2 * _wanted(shapes[0], torch.float32))
    half = hvd.allreduce(own[1], op=hvd.Adasum, compression=hvd.Compression.fp16)
    assert half.dtype is torch.float32
    assert torch.allclose(half.double(), _wanted(shapes[1], torch.float32), atol=0.05, rtol=0.01)
    leaf = own[0].clone().requires_grad_()
    (hvd.allreduce(leaf, op=hvd.Adasum) * own[0]).sum().backward()
    assert leaf.grad is not None and _alike(leaf.grad, _wanted(shapes[0], torch.float32))
    some = hvd.ProcessSet([0, hvd.size() - 1]) if hvd.size() > 2 else hvd.global_process_set
    if some is not hvd.global_process_set:
        hvd.add_process_set(some)
    if some.included():
        result = hvd.allreduce(own[0], op=hvd.Adasum, process_set=some)
        ranks = sorted({0, hvd.size() - 1})
        wanted = adasum([_of_rank(rank, shapes[0]).astype(np.float32) for rank in ranks])
        assert _alike(result, torch.from_numpy(wanted))


def refusals() -> None:
    size, rank = hvd.size(), hvd.rank()
    expect(ValueError, "not for i32", hvd.allreduce, torch.ones(2).int(), op=hvd.Adasum)
    expect(NotImplementedError, "hvd.Average", hvd.sparse_allreduce_async, None, "s", hvd.Adasum)
    if size == 1:
        return
    own = torch.ones(2, 3) if rank == 0 else torch.ones(3, 2)
    text = "of f32[2, 3], but rank 1 calls allreduce of f32[3, 2]"
    for name in ("differ", None):
        expect(hvd.HorovodInternalError, text, hvd.allreduce, own, name=name, op=hvd.Adasum)
        found = hvd.allreduce(torch.ones(7), name=name, op=hvd.Adasum)
        assert torch.allclose(found, torch.ones(7))


def joined_ranks() -> None:
    """A rank that has joined takes no part in Adasum: the others are told, and may call again."""
    if hvd.size() == 1:
        return
    own = torch.full((5,), 3.0)
    if hvd.rank() != hvd.size() - 1:
        for name in ("joined", None):
            expect(hvd.HorovodInternalError, "joined", hvd.allreduce, own, name=name, op=hvd.Adasum)
        summed = hvd.allreduce(own, name="sum", op=hvd.Sum)
        assert summed.tolist() == [3.0 * (hvd.size() - 1)] * 5
    hvd.join()
    for name in ("joined", None):
        assert torch.allclose(hvd.allreduce(own, name=name, op=hvd.Adasum), own)


def _model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def _batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.randn(16, 4, generator=generator)
    return inputs, inputs.sum(1, keepdim=True)


def _local_step(model: nn.Module, optimizer: Any, rank: int, step: int) -> None:
    inputs, targets = _batch(rank, step)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()


def optimizers() -> None:
    """Each rank makes its own step; what the weights move by is the Adasum of these steps."""
    size, rank = hvd.size(), hvd.rank()
    for make in (
        lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
        lambda parameters: torch.optim.Adam(parameters, lr=0.02),
    ):
        model = _model()
        optimizer = hvd.DistributedOptimizer(
            make(model.parameters()), model.named_parameters(), op=hvd.Adasum
        )
        assert optimizer.op == hvd.Adasum and type(optimizer).__name__ in ("SGD", "Adam")
        hooked: list[torch.Tensor] = []
        optimizer.register_step_post_hook(
            lambda *_, model=model, to=hooked: to.append(model[0].weight.detach().clone())
        )
        every = [_model() for _ in range(size)]
        theirs = [make(each.parameters()) for each in every]
        for step in range(6):
            _local_step(model, optimizer, rank, step)
            assert torch.equal(hooked[-1], model[0].weight.detach()) and len(hooked) == step + 1
            before = [p.detach().clone() for p in every[0].parameters()]
            for r in range(size):
                _local_step(every[r], theirs[r], r, step)
            for number, old in enumerate(before):
                places = [list(each.parameters())[number] for each in every]
                moved = adasum([(p.detach() - old).numpy() for p in places])
                for place in places:
                    with torch.no_grad():
                        place.copy_(old + torch.from_numpy(moved))
        for found, wanted in zip(model.parameters(), every[0].parameters()):
            assert torch.allclose(found, wanted, atol=2e-4), (found, wanted)
            assert _same_at_all_ranks(found)
        plain = pickle.loads(pickle.dumps(optimizer))
        assert type(plain) in (torch.optim.SGD, torch.optim.Adam)
        assert type(copy.deepcopy(optimizer)) is type(plain)


def optimizer_rules() -> None:
    model = _model()
    optimizer: Any = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(),
        hvd.Compression.fp16,
        backward_passes_per_step=2,
        op=hvd.Adasum,
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for p in model[0].parameters():
        p.requires_grad_(False)
    before = model[2].weight.detach().clone()
    inputs, targets = _batch(hvd.rank(), 0)
    for _ in range(2):
        nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.synchronize()
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] < 0.1
    assert not torch.equal(before, model[2].weight) and _same_at_all_ranks(model[2].weight)
    assert optimizer.backward_passes_per_step == 2
    optimizer.set_backward_passes_per_step(1)
    assert optimizer.backward_passes_per_step == 1

    def skip() -> None:
        with optimizer.skip_synchronize():
            pass

    expect(AssertionError, "Adasum", skip)
    scheduled = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.optim.lr_scheduler.StepLR(scheduled, 1)
    expect(ValueError, "schedulers after", hvd.DistributedOptimizer, scheduled, op=hvd.Adasum)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    distribute = hvd.DistributedOptimizer
    factor = {"gradient_predivide_factor": 2.0}
    expect(ValueError, "predivide", distribute, plain, op=hvd.Adasum, **factor)
    expect(ValueError, "called once", hvd.DistributedOptimizer, optimizer)
    # Without a scheduler it can be distributed again, also in the usual way.
    other: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    for op in (hvd.Adasum, hvd.Average, hvd.Adasum):
        other = hvd.DistributedOptimizer(other, model.named_parameters(), op=op)
        _local_step(model, other, hvd.rank(), 1)
    assert _same_at_all_ranks(model[2].weight)


def main() -> int:
    torch.set_num_threads(1)
    hvd.init(process_sets="dynamic")
    cases = (tensors, what_it_is_for, far_apart, forms, refusals, joined_ranks)
    run_cases(*cases, optimizers, optimizer_rules)
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
