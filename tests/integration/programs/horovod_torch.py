# SPDX-License-Identifier: Apache-2.0
"""One rank of horovod_test.py. It checks what Horovod's documents say of horovod.torch."""

from __future__ import annotations

import inspect
import pickle
import sys
from typing import Any

import talweg.horovod.torch as hvd
import torch
from cases import run_cases
from expected_errors import expect, expect_warning
from horovod_states import elastic_where_nodes_stay
from horovod_timelines import timelines
from talweg._compat.torch import rounds
from talweg.horovod.common import exceptions
from torch import nn
from torch.utils.data import DataLoader, Dataset

_INTEGERS = (torch.int32, torch.int64)
_FLOATS = (torch.float16, torch.float32, torch.float64)


def _sum_of_ranks() -> int:
    return hvd.size() * (hvd.size() - 1) // 2


def _parameters(function: Any) -> str:
    words = []
    for p in inspect.signature(function).parameters.values():
        default = getattr(p.default, "__name__", p.default)
        if p.default is hvd.global_process_set:
            default = "PS"
        words.append(p.name if p.default is p.empty else f"{p.name}={default}")
    return ", ".join(words)


def signatures() -> None:
    scale = "prescale_factor=1.0, postscale_factor=1.0"
    ps, none, of = "process_set=PS", "compression=NoneCompressor", "average=None, name=None"
    wanted = {
        hvd.init: "comm=None, process_sets=None",
        hvd.ProcessSet: "ranks_or_comm",
        hvd.allreduce: f"tensor, {of}, {none}, op=None, {scale}, {ps}",
        hvd.allreduce_: f"tensor, {of}, op=None, {scale}, {ps}",
        hvd.allreduce_async: f"tensor, {of}, op=None, {scale}, {ps}",
        hvd.allreduce_async_: f"tensor, {of}, op=None, {scale}, {ps}",
        hvd.grouped_allreduce: f"tensors, {of}, {none}, op=None, {scale}, {ps}",
        hvd.grouped_allreduce_: f"tensors, {of}, op=None, {scale}, {ps}",
        hvd.grouped_allreduce_async: f"tensors, {of}, op=None, {scale}, {ps}",
        hvd.grouped_allreduce_async_: f"tensors, {of}, op=None, {scale}, {ps}",
        hvd.sparse_allreduce_async: f"tensor, name, op, {ps}",
        hvd.allgather: f"tensor, name=None, {ps}",
        hvd.allgather_async: f"tensor, name=None, {ps}",
        hvd.grouped_allgather: f"tensors, name=None, {ps}",
        hvd.grouped_allgather_async: f"tensors, name=None, {ps}",
        hvd.broadcast: f"tensor, root_rank, name=None, {ps}",
        hvd.broadcast_: f"tensor, root_rank, name=None, {ps}",
        hvd.broadcast_async: f"tensor, root_rank, name=None, {ps}",
        hvd.broadcast_async_: f"tensor, root_rank, name=None, {ps}",
        hvd.alltoall: f"tensor, splits=None, name=None, {ps}",
        hvd.alltoall_async: f"tensor, splits=None, name=None, {ps}",
        hvd.reducescatter: f"tensor, name=None, {none}, op=0, {ps}, {scale}",
        hvd.reducescatter_async: f"tensor, name=None, op=0, {ps}, {scale}",
        hvd.grouped_reducescatter: f"tensors, name=None, {none}, op=0, {ps}, {scale}",
        hvd.grouped_reducescatter_async: f"tensors, name=None, op=0, {ps}, {scale}",
        hvd.join: "device=-1",
        hvd.barrier: ps,
        hvd.poll: "handle",
        hvd.synchronize: "handle",
        hvd.allgather_object: "obj, name=None",
        hvd.broadcast_parameters: "params, root_rank",
        hvd.broadcast_optimizer_state: "optimizer, root_rank, model=None",
        hvd.broadcast_object: f"obj, root_rank=0, name=None, {ps}",
        hvd.DistributedOptimizer: f"optimizer, named_parameters=None, {none}, "
        "backward_passes_per_step=1, op=0, gradient_predivide_factor=1.0, num_groups=0, "
        f"groups=None, sparse_as_dense=False, {ps}",
        hvd.SyncBatchNorm: "num_features, eps=1e-05, momentum=0.1, affine=True, "
        "track_running_stats=True",
        hvd.start_timeline: "file_path, mark_cycles=False",
        hvd.stop_timeline: "",
        hvd.add_process_set: "process_set",
        hvd.remove_process_set: "process_set",
        hvd.elastic.run: "func",
        hvd.elastic.TorchState: "model=None, optimizer=None, kwargs",
        hvd.elastic.ElasticSampler: "dataset, shuffle=True, seed=0",
        hvd.elastic.ElasticSampler.set_epoch: "self, epoch",
        hvd.elastic.ElasticSampler.record_batch: "self, batch_idx, batch_size",
        hvd.Compression.fp16.compress: "tensor",
        hvd.Compression.fp16.decompress: "tensor, ctx",
    }
    for function, text in wanted.items():
        assert _parameters(function) == text, f"{function}: {_parameters(function)}"
    numbers = (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product)
    assert numbers == (0, 1, 2, 3, 4, 5) and {type(each) for each in numbers} == {int}
    for name in hvd.__all__:
        assert hasattr(hvd, name), name
    assert not hasattr(hvd.elastic, "State")
    assert issubclass(exceptions.HorovodInternalError, RuntimeError)
    assert issubclass(exceptions.HostsUpdatedInterrupt, RuntimeError)
    assert issubclass(exceptions.HorovodVersionMismatchError, ImportError)


def places() -> None:
    assert hvd.is_initialized() and 0 <= hvd.rank() < hvd.size()
    assert hvd.cross_size() >= 1 and hvd.cross_rank() < hvd.cross_size()
    everyone = hvd.allgather_object((hvd.rank(), hvd.cross_rank(), hvd.local_rank()))
    assert [rank for rank, _, _ in everyone] == list(range(hvd.size()))
    assert len({(cross, local) for _, cross, local in everyone}) == hvd.size()
    assert not hvd.mpi_built() and not hvd.mpi_enabled() and hvd.nccl_built() == 0
    assert hvd.gloo_built() and hvd.gloo_enabled()
    expect(ValueError, "MPI", hvd.mpi_threads_supported)


def reductions() -> None:
    size = hvd.size()
    for dtype in (*_INTEGERS, *_FLOATS):
        for dim in (1, 2, 3):
            own = torch.full([3] * dim, hvd.rank() + 2).to(dtype)
            total = _sum_of_ranks() + 2 * size
            assert (hvd.allreduce(own, op=hvd.Sum) == total).all()
            average = total // size if dtype in _INTEGERS else total / size
            named = hvd.allreduce(own, name=f"average.{dtype}.{dim}")
            assert named.dtype == dtype and torch.allclose(
                named.double(), torch.tensor(average).double(), rtol=1e-3
            )
            assert (hvd.allreduce(own, op=hvd.Min) == 2).all()
            assert (hvd.allreduce(own, op=hvd.Max) == size + 1).all()
            product = torch.arange(2, size + 2).prod()
            assert (hvd.allreduce(own, op=hvd.Product) == product).all()
            assert (own == hvd.rank() + 2).all()
            assert hvd.allreduce_(own, op=hvd.Sum) is own and (own == total).all()
    negative = torch.full((2,), -1 if hvd.rank() == 0 else 0, dtype=torch.int32)
    wanted = -1 if size == 1 else 0  # Averages are truncated, and not rounded down.
    assert (hvd.allreduce(negative, op=hvd.Average) == wanted).all()
    assert hvd.allreduce(torch.empty(0, 3), name="empty").shape == (0, 3)


def scaling() -> None:
    size = hvd.size()
    for dtype in _FLOATS:
        own = torch.full((5,), 3.0, dtype=dtype)
        result = hvd.allreduce(own, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
        assert (result == 6 * size).all() and (own == 3).all()
    whole = torch.full((5,), 3, dtype=torch.int32)
    scaled = hvd.allreduce(whole, op=hvd.Sum, prescale_factor=0.5)  # 1.5 is truncated.
    assert scaled.dtype == torch.int32 and (scaled == size).all()
    after = hvd.allreduce_(whole, op=hvd.Sum, postscale_factor=0.5)
    assert after is whole and (whole == 3 * size // 2).all()
    odd = torch.tensor([1 + (hvd.rank() == 0), -1 - (hvd.rank() == 0)])
    mean = hvd.allreduce(odd, op=hvd.Average, postscale_factor=2.0)  # It is rounded once.
    assert mean.tolist() == [wanted := 2 * (size + 1) // size, -wanted], mean
    for ranks in range(1, 100):  # 49 * (1 / 49) is less than 1.
        for dtype in (*_INTEGERS, torch.int8):
            assert rounds.average_whole(
                torch.tensor([ranks, -ranks], dtype=dtype), ranks
            ).tolist() == [1, -1]
    large = torch.tensor([2**62 + 1, -(2**62) - 1])
    assert rounds.average_whole(large, 1).tolist() == [2**62 + 1, -(2**62) - 1]


def op_and_average() -> None:
    one = torch.ones(2)
    expect(ValueError, "supersedes average", hvd.allreduce, one, True, op=hvd.Sum)
    for reduce in (hvd.allreduce, hvd.allreduce_, hvd.allreduce_async, hvd.allreduce_async_):
        given = torch.ones(2)
        result = expect_warning(DeprecationWarning, "`average`", reduce, given, False)
        result = hvd.synchronize(result) if type(result) is int else result
        assert (result == hvd.size()).all() and (result is given) == reduce.__name__.endswith("_")
    for grouped in (
        *(hvd.grouped_allreduce, hvd.grouped_allreduce_),
        *(hvd.grouped_allreduce_async, hvd.grouped_allreduce_async_),
    ):
        result = expect_warning(DeprecationWarning, "`average`", grouped, [torch.ones(2)], False)
        [result] = hvd.synchronize(result) if type(result) is int else result
        assert (result == hvd.size()).all()
    expect(ValueError, "op is 17", hvd.allreduce, one, op=17)
    expect(ValueError, "sparse", hvd.allreduce, one.to_sparse())


def handles() -> None:
    first = hvd.allreduce_async(torch.ones(4), name="first", op=hvd.Sum)
    second = hvd.allreduce_async_(torch.ones(4), name="second", op=hvd.Sum)
    assert type(first) is int and type(second) is int and first != second
    expect(ValueError, "first", hvd.allreduce_async, torch.ones(4), name="first", op=hvd.Sum)
    while not hvd.poll(first):
        pass
    for handle in (second, first):
        assert (hvd.synchronize(handle) == hvd.size()).all()
        assert hvd.synchronize(handle) is None
        expect(ValueError, "handle", hvd.poll, handle)
    expect(ValueError, "handle", hvd.poll, 10**9)
    open_handle = hvd.allreduce_async(torch.ones(4), op=hvd.Sum)
    # Two kinds of calls may have the same name.
    tensor = torch.full((4,), float(hvd.rank()))
    broadcast = hvd.broadcast_async(tensor, 0, name="first")
    reduced = hvd.allreduce_async(torch.ones(4), name="first", op=hvd.Sum)
    assert (hvd.synchronize(broadcast) == 0).all()
    assert (hvd.synchronize(reduced) == hvd.size()).all()
    assert (hvd.synchronize(open_handle) == hvd.size()).all()


def groups() -> None:
    tensors = [torch.full((i + 1,), float(i + hvd.rank())) for i in range(3)]
    total = [i * hvd.size() + _sum_of_ranks() for i in range(3)]
    results = hvd.grouped_allreduce(tensors, name="group", op=hvd.Sum)
    assert isinstance(results, list)
    assert all((result == wanted).all() for result, wanted in zip(results, total))
    handle = hvd.grouped_allreduce_async(tensors, name="group", op=hvd.Sum)
    assert type(handle) is int
    given = hvd.synchronize(handle)
    assert isinstance(given, tuple) and len(given) == 3
    in_place = hvd.grouped_allreduce_(tensors, op=hvd.Sum)
    assert all(a is b for a, b in zip(in_place, tensors))
    assert all((tensor == wanted).all() for tensor, wanted in zip(tensors, total))
    inputs = [torch.ones(2, requires_grad=True) for _ in range(2)]
    sum(hvd.grouped_allreduce(inputs, op=hvd.Sum)).sum().backward()
    assert all((each.grad == hvd.size()).all() for each in inputs)


def gradients() -> None:
    for op, wanted in ((hvd.Sum, hvd.size()), (hvd.Average, 1)):
        tensor = torch.ones(3, requires_grad=True)
        hvd.allreduce(tensor, name=f"gradient.{op}", op=op).sum().backward()
        assert (tensor.grad == wanted).all()
    root = hvd.size() - 1
    tensor = torch.full((3,), float(hvd.rank()), requires_grad=True)
    result = hvd.broadcast(tensor, root)
    assert (result == root).all()
    result.sum().backward()
    assert (tensor.grad == (1 if hvd.rank() == root else 0)).all()


def broadcasts() -> None:
    for root in {0, hvd.size() - 1}:
        for dtype in (torch.uint8, torch.int8, torch.bool, torch.int16, *_INTEGERS, *_FLOATS):
            own = torch.full((2, 3), hvd.rank() % 2).to(dtype)
            result = hvd.broadcast(own, root)
            assert result.dtype == dtype and (result == torch.tensor(root % 2).to(dtype)).all()
            assert hvd.broadcast_(own, root, name=f"in place.{dtype}.{root}") is own
            assert (own == torch.tensor(root % 2).to(dtype)).all()
    expect(ValueError, "root_rank is", hvd.broadcast, torch.ones(2), hvd.size())
    assert hvd.broadcast_object({"rank": hvd.rank()}, hvd.size() - 1) == {"rank": hvd.size() - 1}
    assert hvd.allgather_object("x" * hvd.rank()) == ["x" * rank for rank in range(hvd.size())]


def states() -> None:
    torch.manual_seed(hvd.rank())
    model = nn.Linear(3, 2)
    hvd.broadcast_parameters(dict(model.state_dict()), root_rank=0)
    hvd.broadcast_parameters(list(model.named_parameters()), 0)
    expect(ValueError, "invalid params", hvd.broadcast_parameters, model.named_parameters(), 0)
    same = hvd.allgather_object(model.weight.detach())
    assert all(torch.equal(each, same[0]) for each in same)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 + hvd.rank())
    model.bias.requires_grad_(False)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)  # The optimizer has no state.
    assert (model.weight.grad == 0).all() and model.bias.grad is None
    model.bias.requires_grad_(True)
    if hvd.rank() == 0:
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert float(optimizer.state[model.weight]["step"]) == 1
    lbfgs = torch.optim.LBFGS(model.parameters())
    expect(ValueError, "LBFGS", hvd.broadcast_optimizer_state, lbfgs, 0)


def _model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def _loss(model: nn.Module, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(8, 6, generator=generator), torch.randn(8, 3, generator=generator)
    return (model(x) - y).square().mean()


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _check_optimizer(divided_by: float, tolerance: float, **keywords: Any) -> None:
    """Compares training with one process that has all data and divides the gradients' sum."""
    model, plain = _model(), _model()
    alone = _sgd(plain)
    distributed = hvd.DistributedOptimizer(_sgd(model), model.named_parameters(), **keywords)
    assert type(distributed).__name__ == "SGD" and isinstance(distributed, torch.optim.SGD)
    for step in range(3):
        distributed.zero_grad()
        _loss(model, 100 * step + hvd.rank()).backward()
        if step == 1:
            distributed.synchronize()
            with distributed.skip_synchronize():
                distributed.step()
        else:
            distributed.step()
        alone.zero_grad()
        losses = [_loss(plain, 100 * step + rank) for rank in range(hvd.size())]
        (sum(losses) / divided_by).backward()
        alone.step()
    for (name, a), (_, b) in zip(model.named_parameters(), plain.named_parameters()):
        assert torch.allclose(a, b, atol=tolerance), f"{keywords}: {name}"


def optimizers() -> None:
    size = float(hvd.size())
    _check_optimizer(size, 1e-6)
    _check_optimizer(size, 2e-3, compression=hvd.Compression.fp16)
    _check_optimizer(1.0, 1e-5, op=hvd.Sum)
    _check_optimizer(size, 1e-5, gradient_predivide_factor=4.0)
    _check_optimizer(size, 1e-6, groups=2)
    model = _model()
    distributed = hvd.DistributedOptimizer(_sgd(model))  # The parameters have no names.
    distributed.zero_grad()
    names = distributed._parameter_names
    assert set(names) == set(model.parameters()) and len(set(names.values())) == len(names)


def sparse_gradients() -> None:
    """Rows are gathered, or pushed as a dense tensor. The gradient stays sparse."""
    size = hvd.size()
    for as_dense in (False, True):
        table, bias = nn.Embedding(size, 3, sparse=True), nn.Parameter(torch.zeros(3))
        hvd.broadcast_parameters(table.state_dict(), root_rank=0)
        wanted = table.weight.detach().clone()
        distributed = hvd.DistributedOptimizer(
            torch.optim.SGD([table.weight, bias], lr=0.1), sparse_as_dense=as_dense
        )
        for users in (range(size), range(size), range(1)):  # At last some have no gradient.
            distributed.zero_grad()
            loss = bias.sum()
            if hvd.rank() in users:
                loss = loss + table(torch.tensor([hvd.rank()])).sum()
            loss.backward()
            assert table.weight.grad is not None and table.weight.grad.is_sparse
            distributed.step()
            wanted[list(users)] -= 0.1 / size
        assert torch.allclose(table.weight, wanted, atol=1e-6)
        sparse_adam = torch.optim.SparseAdam(list(table.parameters()), lr=0.1)
        hvd.broadcast_optimizer_state(sparse_adam, root_rank=0)
        distributed = hvd.DistributedOptimizer(sparse_adam, sparse_as_dense=as_dense)
        table(torch.tensor([0])).sum().backward()
        distributed.step()
    table = nn.Embedding(size, 3, sparse=True)
    least = hvd.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=0.1), table.named_parameters(), op=hvd.Min
    )
    expect(ValueError, "sparse_as_dense=True", table(torch.tensor([0])).sum().backward)
    del least


def optimizer_arguments() -> None:
    model = _model()

    def refused(text: str, *arguments: Any, **keywords: Any) -> None:
        expect(ValueError, text, hvd.DistributedOptimizer, _sgd(model), *arguments, **keywords)

    parameters = list(model.parameters())
    refused("found twice: a", [("a", p) for p in parameters])
    refused("tuples", parameters)
    refused("named_parameters", list(model.named_parameters())[1:])
    refused("at least 1", model.named_parameters(), backward_passes_per_step=0)
    refused("predivide", model.named_parameters(), op=hvd.Sum, gradient_predivide_factor=2.0)
    refused("groups is 0", model.named_parameters(), groups=0)
    refused("one of the groups", groups=[[parameters[0]], [parameters[0]]])
    refused("list of lists", groups="two")
    make = hvd.DistributedOptimizer
    expect_warning(DeprecationWarning, "`num_groups`", make, _sgd(model), num_groups=2)


def passes() -> None:
    model = _model()
    distributed = hvd.DistributedOptimizer(
        _sgd(model), model.named_parameters(), backward_passes_per_step=2
    )
    assert distributed.backward_passes_per_step == 2
    for _ in range(2):
        for _ in range(2):
            _loss(model, hvd.rank()).backward()
        if hvd.size() > 1:
            expect(AssertionError, "more than backward", _loss(model, hvd.rank()).backward)
            expect(AssertionError, "zero_grad", distributed.zero_grad)
        distributed.step()
        distributed.zero_grad()
    distributed.set_backward_passes_per_step(1)
    assert distributed.backward_passes_per_step == 1
    _loss(model, hvd.rank()).backward()
    distributed.synchronize()
    expect_warning(UserWarning, "skip_synchronize", distributed.step)


def one_rank_alone() -> None:
    """A single rank may step without averages, because there are no others."""
    if hvd.size() > 1:
        return
    model = _model()
    distributed = hvd.DistributedOptimizer(_sgd(model), model.named_parameters())
    for _ in range(2):
        _loss(model, 0).backward()
    distributed.zero_grad()
    _loss(model, 0).backward()
    distributed.step()


def loaded_between_passes() -> None:
    """A rank that loads an earlier state between passes begins the step anew."""
    model, plain = _model(), _model()
    alone = _sgd(plain)
    distributed = hvd.DistributedOptimizer(
        _sgd(model), model.named_parameters(), backward_passes_per_step=2
    )
    kept = distributed.state_dict()
    for passes_before in (1, 2):
        for _ in range(passes_before):
            _loss(model, 7).backward()
        distributed.load_state_dict(kept)
        distributed.zero_grad()
        for seed in (1, 2):
            _loss(model, seed).backward()
            _loss(plain, seed).backward()
        distributed.step()
        alone.step()
        alone.zero_grad()
        distributed.zero_grad()
        alone.load_state_dict(_sgd(plain).state_dict())
    for (name, a), (_, b) in zip(model.named_parameters(), plain.named_parameters()):
        assert torch.allclose(a, b, atol=1e-6), name


def joined() -> None:
    """Rank r has r + 1 batches, so every rank learns that the last rank joined last."""
    model = _model()
    distributed = hvd.DistributedOptimizer(_sgd(model), model.named_parameters())
    hvd.join()  # It ends what earlier optimizers have begun.
    for step in range(hvd.rank() + 1):
        distributed.zero_grad()
        _loss(model, step).backward()
        distributed.step()
    assert hvd.join() == hvd.size() - 1
    assert hvd.join() == hvd.size() - 1  # If all join at once, the largest rank counts.


def barriers() -> None:
    hvd.barrier()
    hvd.barrier(hvd.global_process_set)


def batch_norms() -> None:
    torch.manual_seed(3)
    for shape in ((6, 4), (6, 4, 5), (6, 4, 3, 2)):
        everything = torch.randn(hvd.size() * shape[0], *shape[1:], dtype=torch.float64)
        kinds: dict[int, Any] = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}
        plain = kinds[len(shape)](4).double()
        synchronized = hvd.SyncBatchNorm(4).double()
        whole = everything.clone().requires_grad_()
        part = everything[hvd.rank() * 6 : hvd.rank() * 6 + 6].clone().requires_grad_()
        mine = slice(hvd.rank() * 6, hvd.rank() * 6 + 6)
        expected, result = plain(whole), synchronized(part)
        assert torch.allclose(result, expected[mine])
        expected.square().sum().backward()
        result.square().sum().backward()
        assert torch.allclose(part.grad, whole.grad[mine], atol=1e-9)
        assert torch.allclose(synchronized.running_mean, plain.running_mean)
        assert torch.allclose(synchronized.running_var, plain.running_var)
        synchronized.eval()
        plain.eval()
        assert torch.allclose(synchronized(part), plain(part))
        untracked = hvd.SyncBatchNorm(4, track_running_stats=False).double().eval()
        plain = kinds[len(shape)](4, track_running_stats=False).double().eval()
        assert torch.allclose(untracked(part), plain(whole)[mine])
    expect(ValueError, "2D", hvd.SyncBatchNorm(4), torch.ones(4))


def process_sets() -> None:
    expect(ValueError, "dynamic", hvd.add_process_set, [0])
    loose = hvd.ProcessSet([0])
    assert loose.process_set_id is None and loose.rank() is None and loose.included() is None
    expect(ValueError, "not registered", hvd.allreduce, torch.ones(1), process_set=loose)
    bad: Any = [0]
    model = torch.nn.Linear(2, 2)
    sgd: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    text = "process_set is [0]; it must be a hvd.ProcessSet"
    expect(ValueError, text, hvd.allreduce, torch.ones(1), process_set=bad)
    expect(ValueError, text, hvd.DistributedOptimizer, sgd, process_set=bad)
    for sets in ("fixed", [[0]]):
        expect(ValueError, f"process_sets is {sets!r}", hvd.init, process_sets=sets)
    hvd.init(process_sets="Dynamic")  # A later init() changes nothing.
    expect(ValueError, "optimizer is a Linear", hvd.DistributedOptimizer, model)
    some = [("weight", model.weight)]
    text = "the first is parameter 1 of group 0, of shape [2]"
    expect(ValueError, text, hvd.DistributedOptimizer, sgd, some)
    assert hvd.global_process_set.process_set_id == 0
    assert hvd.global_process_set.size() == hvd.size()
    assert hvd.global_process_set.rank() == hvd.rank()


def lives() -> None:
    """After shutdown() calls raise, and init() begins anew if the job still can."""
    hvd.barrier()
    hvd.shutdown()
    assert not hvd.is_initialized()
    expect(ValueError, "has not been initialized; use hvd.init()", hvd.size)
    expect(hvd.HorovodInternalError, "hvd.init()", hvd.allreduce, torch.ones(1))


def exception_types() -> None:
    assert exceptions.HorovodInternalError is hvd.HorovodInternalError
    assert issubclass(hvd.HorovodInternalError, RuntimeError)
    mismatch = exceptions.HorovodVersionMismatchError("torch", "2.0", "1.9")
    both: list[Any] = [mismatch, pickle.loads(pickle.dumps(mismatch))]
    for each in both:
        assert issubclass(type(each), ImportError)
        assert (each.name, each.version, each.installed_version) == ("torch", "2.0", "1.9")
        assert str(each) == exceptions.get_version_mismatch_message("torch", "2.0", "1.9")


def numbers_in_a_loaders_worker() -> None:
    """A worker of a DataLoader, which is a fork, tells by the numbers which samples it loads."""

    def numbers() -> list[int | None]:
        return [
            int(hvd.is_initialized()),
            hvd.rank(),
            hvd.size(),
            hvd.local_rank(),
            hvd.local_size(),
            hvd.cross_rank(),
            hvd.global_process_set.rank(),
        ]

    class Samples(Dataset):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, _: int) -> torch.Tensor:
            return torch.tensor(numbers())

    options = {"batch_size": None, "num_workers": 1, "multiprocessing_context": "fork"}
    assert [each.tolist() for each in DataLoader(Samples(), **options)] == [numbers()]


CASES = [
    signatures,
    places,
    numbers_in_a_loaders_worker,
    reductions,
    scaling,
    op_and_average,
    handles,
    groups,
    gradients,
    broadcasts,
    states,
    optimizers,
    sparse_gradients,
    optimizer_arguments,
    passes,
    one_rank_alone,
    loaded_between_passes,
    joined,
    barriers,
    batch_norms,
    timelines,
    process_sets,
    elastic_where_nodes_stay,
    exception_types,
    lives,
]


def main() -> int:
    torch.set_num_threads(1)
    expect(ValueError, "has not been initialized", hvd.rank)
    expect(hvd.HorovodInternalError, "hvd.init()", hvd.allreduce_async, torch.ones(1))
    assert hvd.mpi_built() is False
    hvd.init()
    hvd.init()
    run_cases(*CASES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
