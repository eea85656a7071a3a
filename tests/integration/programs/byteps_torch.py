# SPDX-License-Identifier: Apache-2.0
"""One rank of byteps_test.py. It checks what BytePS's documents and source say of byteps.torch."""

from __future__ import annotations

import copy
import inspect
import sys
from typing import Any

import talweg
import talweg.byteps.torch as bps
import torch
from cases import run_cases
from expected_errors import expect
from talweg import _client
from talweg._compat import timeline
from talweg.byteps.misc import imagenet18
from talweg.byteps.torch import cross_barrier
from talweg.byteps.torch.parallel import DistributedDataParallel
from talweg.horovod.torch import SyncBatchNorm
from torch import nn
from torch.utils.data import DataLoader, Dataset


def _mean_of_ranks() -> float:
    return (bps.size() - 1) / 2


def _sum_of_ranks() -> int:
    return bps.size() * (bps.size() - 1) // 2


def _parameters(function: Any) -> str:
    return ", ".join(
        p.name if p.default is p.empty else f"{p.name}={getattr(p.default, '__name__', p.default)}"
        for p in inspect.signature(function).parameters.values()
    )


def signatures() -> None:
    none = "compression=NoneCompressor"
    wanted = {
        bps.init: "lazy=True",
        bps.resume: "num_workers, num_servers, global_rank, context=None",
        bps.push_pull: f"tensor, average=True, name=None, version=0, priority=0, {none}",
        bps.push_pull_async: "tensor, average=True, name=None, version=0, priority=0",
        bps.push_pull_inplace: "tensor, average=True, name=None, version=0, priority=0",
        bps.byteps_push_pull: "tensor, average=True, name=None, version=0, priority=0",
        bps.poll: "handle",
        bps.synchronize: "handle",
        bps.declare: "name",
        bps.DistributedOptimizer: f"optimizer, named_parameters=None, {none}, "
        "backward_passes_per_step=1",
        bps.broadcast_parameters: "params, root_rank, prefix=Parameter.",
        bps.broadcast_object: "obj, root_rank=0, name=None",
        DistributedDataParallel.__init__: "self, module, device_ids=None, broadcast_buffers=True, "
        + none,
        cross_barrier.CrossBarrier: f"model, optimizer, named_parameters=None, {none}, "
        "backward_passes_per_step=1, num_steps=1000000",
        imagenet18.DistributedOptimizer: f"optimizer, named_parameters=None, {none}, "
        "backward_passes_per_step=1, half=False, model=None, fp16_params=None, fp32_params=None, "
        "loss_scale=1024",
    }
    for function, text in wanted.items():
        assert _parameters(function) == text, f"{function}: {_parameters(function)}"


def modules_in_its_place() -> None:
    """Programs may import these modules as `bps`."""
    for module in (cross_barrier, imagenet18):
        for name in bps.__all__:
            own = getattr(module, name)
            assert own is getattr(bps, name) or (module, name) == (
                imagenet18,
                "DistributedOptimizer",
            ), name
            assert name in module.__all__, name


def calls_of_unreleased_branches() -> None:
    """Calls of unreleased branches fail with the name of the call to use instead."""
    for module in (bps, cross_barrier, imagenet18):
        for name, remedy in (
            ("allgather", "talweg.torch.all_gather"),
            ("alltoall", "talweg.torch.all_to_all"),
            ("SyncBatchNorm", "talweg.horovod.torch.SyncBatchNorm"),
            ("batched_fuse_", "torch.cat"),
            ("batched_unfuse_", "torch.split"),
            ("batched_zero_", "the optimizer's zero_grad"),
            ("dc_adam_", "torch.optim.Adam"),
            ("delay_compensation_", "gradients as they are"),
            ("recv_async", "torch.distributed.irecv"),
            ("send_async", "torch.distributed.isend"),
        ):
            assert not hasattr(module, name)
            expect(AttributeError, f"use {remedy}", getattr, module, name)
        expect(AttributeError, "has no attribute 'nothing'", getattr, module, "nothing")


def batch_norm_in_its_place() -> None:
    """The layer that is named in place of SyncBatchNorm needs no other init()."""
    batches = torch.arange(4.0 * bps.size()).reshape(bps.size(), 2, 2).square()
    plain, layer = nn.BatchNorm1d(2), SyncBatchNorm(2)
    normalized = plain(batches.reshape(-1, 2)).reshape(batches.shape)
    assert torch.allclose(layer(batches[bps.rank()]), normalized[bps.rank()], atol=1e-6)
    assert torch.allclose(layer.running_var, plain.running_var)


def averages_and_sums() -> None:
    for dtype in (torch.float16, torch.float32, torch.float64):
        own = torch.full((3, 4), float(bps.rank()), dtype=dtype)
        mean = bps.push_pull(own, name=f"mean.{dtype}")
        assert mean.dtype == dtype and (mean == _mean_of_ranks()).all()
        assert (own == bps.rank()).all()
        total = bps.push_pull(own, average=False, name=f"sum.{dtype}")
        assert (total == _sum_of_ranks()).all()
    for dtype in (torch.uint8, torch.int32, torch.int64):
        own = torch.full((3,), bps.rank(), dtype=dtype)
        assert (bps.push_pull(own, average=False, name=f"sum.{dtype}") == _sum_of_ranks()).all()
        # The average of integers is rounded down.
        mean = bps.push_pull(own, name=f"mean.{dtype}")
        assert mean.dtype == dtype and (mean == _sum_of_ranks() // bps.size()).all()
    below = bps.push_pull(torch.full((2,), -bps.rank(), dtype=torch.int64), name="below")
    assert (below == -(_sum_of_ranks()) // bps.size()).all()
    scalar = bps.push_pull(torch.tensor(float(bps.rank())), name="avg_loss")
    assert scalar.shape == () and scalar == _mean_of_ranks()


def positions() -> None:
    """Programs may give average, name, version and priority by position."""
    own = torch.full((5,), float(bps.rank()))
    assert (bps.push_pull(own, False, "positions", 3, 7) == _sum_of_ranks()).all()
    handle = bps.byteps_push_pull(own, True, "in place", 0, -4)
    assert isinstance(handle, int)
    assert bps.synchronize(handle) is own and (own == _mean_of_ranks()).all()
    expect(ValueError, "version", bps.push_pull, own, True, "positions", "2")


def handles() -> None:
    first = bps.push_pull_async(torch.ones(7), name="first")
    second = bps.push_pull_async(torch.ones(7), name="second")
    assert isinstance(first, int) and first != second
    assert (bps.synchronize(second) == 1).all() and (bps.synchronize(first) == 1).all()
    assert bps.synchronize(first) is None
    expect(ValueError, "never given out", bps.poll, first)
    third = bps.push_pull_async(torch.ones(7), name="first")
    while not bps.poll(third):
        pass
    # A program may push a name again before it waits, or never wait.
    again = [bps.byteps_push_pull(torch.ones(7), False, "first") for _ in range(3)]
    assert bps.poll(third) and bps.poll(again[0])
    assert (bps.synchronize(third) == 1).all()
    assert (bps.synchronize(again[2]) == bps.size()).all()
    assert (bps.synchronize(again[0]) == bps.size()).all()


def other_shapes_of_one_name() -> None:
    """BytePS's programs may use a name for tensors of any shape."""
    for shape in ((3,), (4, 5), (3,)):
        assert (bps.push_pull(torch.ones(shape), False, "reused") == bps.size()).all()
    assert (bps.push_pull(torch.ones(3), True, "reused") == 1).all()
    assert bps.push_pull(torch.empty(0, 4), name="empty").shape == (0, 4)
    bps.declare("declared.early")
    assert (bps.push_pull(torch.ones(2)) == 1).all()  # This call has no name.


def compression() -> None:
    own = torch.full((100,), 1.0 + bps.rank())
    result = bps.push_pull(own, name="half", compression=bps.Compression.fp16)
    assert result.dtype == torch.float32 and (result == 1 + _mean_of_ranks()).all()
    whole, context = bps.Compression.fp16.compress(torch.ones(2, dtype=torch.int32))
    assert whole.dtype == torch.int32 and context is None


def gradients_of_push_pull() -> None:
    tensor = torch.full((3,), 2.0, requires_grad=True)
    (bps.push_pull(tensor, False, "differentiated") * (bps.rank() + 1)).sum().backward()
    assert tensor.grad is not None
    assert (tensor.grad == _sum_of_ranks() + bps.size()).all()


def broadcasts() -> None:
    root = bps.size() - 1
    model = nn.Linear(4, 3)
    with torch.no_grad():
        model.weight.fill_(bps.rank())
    bps.broadcast_parameters(model.state_dict(), root_rank=root)
    assert (model.weight == root).all()
    pairs = [("w", torch.full((3,), float(bps.rank())))]
    bps.broadcast_parameters(pairs, 0, prefix="Other.")
    assert (pairs[0][1] == 0).all()
    expect(ValueError, "invalid params", bps.broadcast_parameters, iter(pairs), 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (bps.rank() + 1), momentum=0.9)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert bps.broadcast_object({"rank": bps.rank()}, root) == {"rank": root}


def _data(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(8, 6, generator=generator), torch.randn(8, 3, generator=generator)


def _loss(model: nn.Module, seed: int) -> torch.Tensor:
    x, y = _data(seed)
    return (model(x) - y).square().mean()


def _model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def _step_over_all_data(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Makes, in one process, the step that all ranks make together."""
    optimizer.zero_grad()
    losses = [_loss(model, 100 * step + rank) for rank in range(bps.size())]
    (sum(losses) / len(losses)).backward()
    optimizer.step()


def _close(one: nn.Module, other: nn.Module, tolerance: float = 1e-6) -> None:
    for (name, a), (_, b) in zip(one.named_parameters(), other.named_parameters()):
        assert torch.allclose(a, b, atol=tolerance), name


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def optimizer() -> None:
    for compression, tolerance in ((bps.Compression.none, 1e-6), (bps.Compression.fp16, 2e-3)):
        model, plain = _model(), _model()
        alone = _sgd(plain)
        distributed: Any = bps.DistributedOptimizer(
            _sgd(model), model.named_parameters(), compression
        )
        assert isinstance(distributed, torch.optim.SGD)
        assert type(distributed).__name__ == "SGD"
        for step in range(3):
            distributed.zero_grad()
            _loss(model, 100 * step + bps.rank()).backward()
            if step == 1:
                distributed.synchronize()
                with distributed.skip_synchronize():
                    distributed.step()
            else:
                distributed.step()
            _step_over_all_data(plain, alone, step)
        _close(model, plain, tolerance)
    expect(
        ValueError,
        "found twice: a",
        bps.DistributedOptimizer,
        _sgd(model),
        [("a", p) for p in model.parameters()],
    )


def several_passes() -> None:
    model, plain = _model(), _model()
    alone = _sgd(plain)
    distributed: Any = bps.DistributedOptimizer(_sgd(model), model.named_parameters())
    distributed.set_backward_passes_per_step(2)
    for step in range(2):
        distributed.zero_grad()
        for part in range(2):
            _loss(model, 1000 * part + 100 * step + bps.rank()).backward()
        distributed.step()
        alone.zero_grad()
        for rank in range(bps.size()):
            for part in range(2):
                (_loss(plain, 1000 * part + 100 * step + rank) / bps.size()).backward()
        alone.step()
    _close(model, plain)


def data_parallel() -> None:
    plain = _model()
    model = DistributedDataParallel(copy.deepcopy(plain), device_ids=[bps.local_rank()])
    assert next(model.named_parameters())[0] == "module.0.weight"
    optimizer, alone = _sgd(model), _sgd(plain)
    for step in range(3):
        optimizer.zero_grad()
        _loss(model, 100 * step + bps.rank()).backward()
        optimizer.step()
        _step_over_all_data(plain, alone, step)
    _close(model.module, plain)
    # In no_sync() gradients add up, and the next pass averages them all.
    optimizer.zero_grad()
    with model.no_sync():
        _loss(model, bps.rank()).backward()
        first = model.module[0].bias.grad
        assert first is not None
        mine = first.clone()
        _loss(copy.deepcopy(model.module), bps.rank()).backward()
    expected = bps.push_pull(mine, False, "no_sync")
    model.synchronize()  # It averages the gradients of a pass in no_sync().
    assert torch.allclose(model.module[0].bias.grad * bps.size(), expected, atol=1e-6)
    expect(AssertionError, "one device", DistributedDataParallel, plain, [0, 1])
    other = DistributedDataParallel(_model())  # The process may have a second module.
    _loss(other, bps.rank()).backward()


def buffers_of_data_parallel() -> None:
    for broadcasts_them in (True, False):
        norm = nn.BatchNorm1d(3)
        with torch.no_grad():
            norm.running_mean.fill_(bps.rank() + 1)
        model = DistributedDataParallel(norm, broadcast_buffers=broadcasts_them)
        assert (norm.running_mean == 1).all()  # The constructor broadcasts buffers.
        norm.running_mean.fill_(bps.rank() + 5)
        model.eval()
        model(torch.zeros(2, 3))
        assert (norm.running_mean == (5 if broadcasts_them else bps.rank() + 5)).all()


def steps_across_the_barrier() -> None:
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop):
        model, plain = _model(), _model()
        alone = kind(plain.parameters(), lr=0.01)
        optimizer = cross_barrier.CrossBarrier(
            model, kind(model.parameters(), lr=0.01), model.named_parameters(), num_steps=3
        )
        cross_barrier.broadcast_optimizer_state(optimizer, root_rank=0)
        for step in range(3):
            optimizer.zero_grad()
            _loss(model, 100 * step + bps.rank()).backward()
            optimizer.step()
            _step_over_all_data(plain, alone, step)
        _close(model, plain, 1e-5)  # Step number num_steps has waited for all averages.


def half_precision() -> None:
    full = _model()
    model = _model().half()
    fp16 = list(model.parameters())
    fp32 = [p.detach().clone().float().requires_grad_() for p in fp16]
    optimizer: Any = imagenet18.DistributedOptimizer(
        torch.optim.SGD(fp32, lr=0.1),
        model.named_parameters(),
        half=True,
        model=model,
        fp16_params=fp16,
        fp32_params=fp32,
        loss_scale=64,
    )
    alone = torch.optim.SGD(full.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        x, y = _data(100 * step + bps.rank())
        loss = (model(x.half()).float() - y).square().mean()
        (loss * 64).backward()
        optimizer.step()
        _step_over_all_data(full, alone, step)
    for half, single, wanted in zip(fp16, fp32, full.parameters()):
        assert half.dtype == torch.float16 and torch.allclose(half.float(), single, atol=1e-3)
        assert torch.allclose(single, wanted, atol=5e-3)
        assert torch.equal(bps.broadcast_object(single.detach()), single.detach())
    expect(ValueError, "fp16_params", imagenet18.DistributedOptimizer, alone, half=True)


def speed() -> None:
    """A sample comes when a round ends more than ten seconds after the last sample."""
    clock = [0]
    speed = timeline.Speed(_client.current(), lambda: clock[0])
    while bps.get_pushpull_speed() != (0, -5.0):  # This program may have taken long.
        pass
    for seconds, megabytes_a_second in ((9, None), (20, 0.4), (21, None), (40, 0.4)):
        clock[0] = seconds * 1_000_000_000
        bps.push_pull(torch.ones(500_000, dtype=torch.float64), name="speed")  # 4 MB.
        sample = speed.take()
        if megabytes_a_second is None:
            assert sample is None
        else:
            assert sample is not None and abs(sample[1] - megabytes_a_second) < 1e-6, sample


def numbers_in_a_loaders_worker() -> None:
    """A worker of a DataLoader, which is a fork, tells by the numbers which samples it loads."""

    def numbers() -> list[int]:
        return [bps.rank(), bps.size(), bps.local_rank(), bps.local_size()]

    class Samples(Dataset):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, _: int) -> torch.Tensor:
            return torch.tensor(numbers())

    options = {"batch_size": None, "num_workers": 1, "multiprocessing_context": "fork"}
    assert [each.tolist() for each in DataLoader(Samples(), **options)] == [numbers()]


CASES = [
    signatures,
    modules_in_its_place,
    calls_of_unreleased_branches,
    batch_norm_in_its_place,
    averages_and_sums,
    positions,
    numbers_in_a_loaders_worker,
    handles,
    other_shapes_of_one_name,
    compression,
    gradients_of_push_pull,
    broadcasts,
    optimizer,
    several_passes,
    data_parallel,
    buffers_of_data_parallel,
    steps_across_the_barrier,
    half_precision,
    speed,
]


def main() -> int:
    torch.set_num_threads(1)
    assert (bps.rank(), bps.size()) == (0, 1)
    expect(talweg.NotInitialized, "init()", bps.push_pull, torch.ones(1), name="early")
    bps.init()
    bps.init()
    run_cases(*CASES)
    print(f"rank {bps.rank()} of {bps.size()}, local {bps.local_rank()} of {bps.local_size()}")
    bps.shutdown()
    assert (bps.rank(), bps.size()) == (0, 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
