# SPDX-License-Identifier: Apache-2.0
"""Checks that torch's ways to train on several ranks give the same weights over Gloo and Talweg."""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from c10d_groups import each_backend
from c10d_models import sgd_of, weights_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_CASES: dict[str, Callable[[int, int], Any]] = {}


def case(run: Callable[[int, int], Any]) -> Callable[[int, int], Any]:
    """Registers a way to train, whose results are compared."""
    _CASES[run.__name__] = run
    return run


class _Model(nn.Module):
    """A small model with a layer that not every step uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 40)
        self.seldom = nn.Linear(40, 40)
        self.last = nn.Linear(40, 3)

    def forward(self, inputs: torch.Tensor, use_all: bool = True) -> torch.Tensor:
        hidden = torch.relu(self.first(inputs))
        if use_all:
            hidden = torch.relu(self.seldom(hidden))
        return self.last(hidden)


def _batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return (
        torch.randn(8, 12, generator=generator),
        torch.randint(0, 3, (8,), generator=generator),
    )


def _step(model: Any, optimizer: Any, rank: int, step: int, **options: Any) -> None:
    inputs, labels = _batch(rank, step)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs, **options), labels).backward()
    optimizer.step()


class _Wide(nn.Module):
    """A model whose buckets are summed where they lie, over Talweg on one node."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(12, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 3)
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs)


@case
def ddp_of_wide_layers(rank: int, size: int) -> Any:
    found = []
    for is_view in (False, True):
        torch.manual_seed(1)
        model = DistributedDataParallel(_Wide(), bucket_cap_mb=0.2, gradient_as_bucket_view=is_view)
        optimizer = sgd_of(model)
        for step in range(8):
            _step(model, optimizer, rank, step)
        found += weights_of(model)
    group = dist.distributed_c10d._get_default_group()
    if dist.get_backend() == "talweg" and int(os.environ["LOCAL_WORLD_SIZE"]) == size:
        tensors = group._channel.in_place._tensors
        there = [each for each in tensors if each.storage is not None]
        assert there, tensors
        for each in there:
            assert each.declared.buffer.is_attached_to(each.storage.data_ptr())
    return found


@case
def data_parallel(rank: int, size: int) -> Any:
    torch.manual_seed(rank)  # With DDP all ranks begin with rank 0's weights.
    model = DistributedDataParallel(_Model(), bucket_cap_mb=0.002)
    optimizer = sgd_of(model)
    for step in range(4):
        _step(model, optimizer, rank, step)
    return weights_of(model)


@case
def compiled_data_parallel(rank: int, size: int) -> Any:
    """torch traces code that runs within the forward pass, and might trace the group's methods."""
    found = []
    for is_outermost in (False, True):
        for splits in (False, True):
            torch._dynamo.reset()
            torch.manual_seed(1)
            compiled = partial(torch.compile, backend="aot_eager")
            with torch._dynamo.config.patch(optimize_ddp=splits):
                if is_outermost:
                    model: Any = compiled(DistributedDataParallel(_Wide()))
                else:
                    model = DistributedDataParallel(compiled(_Wide()))
                optimizer = sgd_of(model)
                for step in range(3):
                    _step(model, optimizer, rank, step)
            found += weights_of(model)
    return found


@case
def compiled_step(rank: int, size: int) -> Any:
    """Backward, messages and collectives run where torch leaves the graph and looks for another."""
    torch._dynamo.reset()
    torch.manual_seed(1)
    model = DistributedDataParallel(_Wide())
    optimizer = sgd_of(model)
    got = torch.zeros(2000)

    @torch.compile(backend="eager")
    def step(number: int) -> None:
        _step(model, optimizer, rank, number)
        works = [dist.isend(got + rank, (rank + 1) % size), dist.irecv(got, (rank - 1) % size)]
        for work in works:
            work.wait()
        dist.reduce(got, 0)
        dist.broadcast(got, 0)
        dist.barrier()

    for number in range(3):
        step(number)
    return [*weights_of(model), got]


@case
def unused_parameters(rank: int, size: int) -> Any:
    model = DistributedDataParallel(_Model(), find_unused_parameters=True)
    optimizer = sgd_of(model)
    for step in range(3):
        _step(model, optimizer, rank, step, use_all=(step + rank) % 2 == 0)
    return weights_of(model)


@case
def static_graph(rank: int, size: int) -> Any:
    model = DistributedDataParallel(_Model(), static_graph=True)
    optimizer = sgd_of(model)
    for step in range(4):
        _step(model, optimizer, rank, step)
    return weights_of(model)


@case
def no_sync(rank: int, size: int) -> Any:
    model = DistributedDataParallel(_Model())
    optimizer = sgd_of(model)
    for step in range(2):
        optimizer.zero_grad()
        for micro in range(3):
            inputs, labels = _batch(rank, 3 * step + micro)
            if micro < 2:
                with model.no_sync():
                    nn.functional.cross_entropy(model(inputs), labels).backward()
            else:
                nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return weights_of(model)


def _hooked(rank: int, state: Any, hook: Any) -> list[torch.Tensor]:
    model = DistributedDataParallel(_Model())
    model.register_comm_hook(state, hook)
    optimizer = sgd_of(model)
    for step in range(4):
        _step(model, optimizer, rank, step)
    return weights_of(model)


@case
def half_hook(rank: int, size: int) -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    return _hooked(rank, None, default_hooks.fp16_compress_hook)


@case
def power_hook(rank: int, size: int) -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    state = powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2)
    return _hooked(rank, state, powerSGD_hook.powerSGD_hook)


@case
def join(rank: int, size: int) -> Any:
    model = DistributedDataParallel(_Model())
    optimizer = sgd_of(model)
    with model.join():
        for step in range(2 + rank):
            _step(model, optimizer, rank, step)
    return weights_of(model)


@case
def join_divided_by_those_left(rank: int, size: int) -> Any:
    model = DistributedDataParallel(_Model())
    optimizer = sgd_of(model)
    with model.join(divide_by_initial_world_size=False):
        for step in range(2 + rank):
            _step(model, optimizer, rank, step)
    return weights_of(model)


@case
def sync_batch_norm_like_buffers(rank: int, size: int) -> Any:
    network = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    model = DistributedDataParallel(network)
    optimizer = sgd_of(model)
    for step in range(3):
        _step(model, optimizer, rank, step)
    # In the last step each rank has its own statistics, and rank 0's count.
    buffers = [buffer.clone() for buffer in model.buffers()]
    for buffer in buffers:
        dist.broadcast(buffer, 0)
    return [weights_of(model), buffers]


@case
def zero_redundancy(rank: int, size: int) -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(_Model())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01
    )
    for step in range(3):
        _step(model, optimizer, rank, step)
    optimizer.consolidate_state_dict(0)
    state = optimizer.state_dict()["state"] if rank == 0 else None
    return [weights_of(model), state]


def _sharded(mesh: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    from torch.distributed.fsdp import fully_shard

    model = _Model()
    for layer in (model.first, model.seldom):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def _full(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.full_tensor().detach().clone() for parameter in model.parameters()]


@case
def fully_sharded(rank: int, size: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    model, optimizer = _sharded(init_device_mesh("cpu", (size,)))
    for step in range(3):
        _step(model, optimizer, rank, step)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return [_full(model), norm.full_tensor()]


@case
def hybrid_sharded(rank: int, size: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    shards = 2 if size % 2 == 0 else 1
    mesh = init_device_mesh("cpu", (size // shards, shards), mesh_dim_names=("copies", "shards"))
    model, optimizer = _sharded(mesh)
    for step in range(3):
        _step(model, optimizer, rank, step)
    return _full(model)


@case
def hybrid_sharded_by_two_backends(rank: int, size: int) -> Any:
    """Copies go over the backend, shards over Gloo."""
    from torch.distributed.device_mesh import init_device_mesh

    shards = 2 if size % 2 == 0 else 1
    mesh = init_device_mesh(
        "cpu",
        (size // shards, shards),
        mesh_dim_names=("copies", "shards"),
        backend_override={"copies": dist.get_backend(), "shards": "gloo"},
    )
    assert dist.get_backend(mesh.get_group("copies")) == dist.get_backend()
    assert dist.get_backend(mesh.get_group("shards")) == "gloo"
    model, optimizer = _sharded(mesh)
    for step in range(3):
        _step(model, optimizer, rank, step)
    return _full(model)


@case
def distributed_tensors(rank: int, size: int) -> Any:
    """The number of ranks does not divide the lengths."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size,))
    generator = torch.Generator().manual_seed(1)
    left = torch.randn(5, 7, generator=generator)
    right = torch.randn(7, 3, generator=generator)
    found = []
    for placement in (Shard(0), Shard(1), Replicate()):
        tensor = distribute_tensor(right, mesh, [placement])
        for other in (Shard(0), Shard(1), Replicate()):
            found.append(tensor.redistribute(mesh, [other]).full_tensor())
        found.append((distribute_tensor(left, mesh, [Replicate()]) @ tensor).full_tensor())
    partial = DTensor.from_local(left * (rank + 1), mesh, [Partial()])
    return [*found, partial.redistribute(mesh, [Shard(0)]).full_tensor()]


@case
def tensor_parallel(rank: int, size: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import parallel

    model = _Model()
    plan = {"first": parallel.ColwiseParallel(), "seldom": parallel.RowwiseParallel()}
    parallel.parallelize_module(model, init_device_mesh("cpu", (size,)), plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        _step(model, optimizer, 0, step)
    weights = [*model.first.parameters(), *model.seldom.parameters()]
    return [each.full_tensor().detach() for each in weights]


@case
def compiled(rank: int, size: int) -> Any:
    """torch.compile traces collectives as one graph."""
    import torch.distributed._functional_collectives as functional

    def call(tensor: torch.Tensor) -> Any:
        group = dist.group.WORLD
        summed = functional.all_reduce(tensor * 2, "sum", group)
        every = functional.all_gather_tensor(summed + rank, 0, group)
        own = functional.reduce_scatter_tensor(every, "sum", 0, group)
        last = tensor + 1
        dist.all_reduce(last)
        return every, own, last

    traced = torch.compile(call, fullgraph=True, backend="aot_eager")
    return [[each.clone() for each in traced(torch.arange(6.0) + rank + turn)] for turn in range(2)]


def _directory(rank: int) -> str:
    """Returns a directory that rank 0 makes for all ranks."""
    directory: list[Any] = [tempfile.mkdtemp(prefix="talweg.") if rank == 0 else None]
    dist.broadcast_object_list(directory, 0)
    return str(directory[0])


@case
def checkpoint(rank: int, size: int) -> Any:
    import torch.distributed.checkpoint as checkpoints
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (size,))
    model, optimizer = _sharded(mesh)
    _step(model, optimizer, rank, 0)
    directory = _directory(rank)
    states, optimizer_states = get_state_dict(model, optimizer)
    checkpoints.save({"model": states, "optimizer": optimizer_states}, checkpoint_id=directory)
    saved = copy.deepcopy(_full(model))
    _step(model, optimizer, rank, 1)
    states, optimizer_states = get_state_dict(model, optimizer)
    loaded = {"model": states, "optimizer": optimizer_states}
    checkpoints.load(loaded, checkpoint_id=directory)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=loaded["model"],
        optim_state_dict=loaded["optimizer"],
    )
    for one, other in zip(_full(model), saved):
        assert torch.equal(one, other)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(directory)
    _step(model, optimizer, rank, 1)
    return _full(model)


@case
def checkpoint_beside_training(rank: int, size: int) -> Any:
    """The thread of async_save makes calls of the group. It saves no later changes of the model."""
    import torch.distributed.checkpoint as checkpoints
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh

    model, _ = _sharded(init_device_mesh("cpu", (size,)))
    saved = copy.deepcopy(_full(model))
    directory = _directory(rank)
    under_way = checkpoints.async_save(
        {"model": get_model_state_dict(model)}, checkpoint_id=directory
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.to_local().fill_(7)
    under_way.result()
    checkpoints.load({"model": get_model_state_dict(model)}, checkpoint_id=directory)
    for one, other in zip(_full(model), saved):
        assert torch.equal(one, other)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(directory)
    return saved


@case
def state_from_rank_0(rank: int, size: int) -> Any:
    """Only rank 0 has a state, and the others get it, for a sharded and for a whole model."""
    from torch.distributed.checkpoint import state_dict
    from torch.distributed.device_mesh import init_device_mesh

    def whole() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = _Model()
        return model, torch.optim.Adam(model.parameters(), lr=0.01)

    def weights(model: nn.Module) -> list[torch.Tensor]:
        return weights_of(model) if make is whole else _full(model)

    mesh = init_device_mesh("cpu", (size,))
    at_rank_0 = state_dict.StateDictOptions(full_state_dict=True, cpu_offload=True)
    options = state_dict.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    found = []
    for make in (whole, lambda: _sharded(mesh)):
        model, optimizer = make()
        _step(model, optimizer, 0, 0)
        states = state_dict.get_model_state_dict(model, options=at_rank_0)
        optimizer_states = state_dict.get_optimizer_state_dict(model, optimizer, options=at_rank_0)
        # Without copies the two optimizers of rank 0 would share their states.
        optimizer_states = copy.deepcopy(optimizer_states)
        torch.manual_seed(50 + rank)
        other, other_optimizer = make()
        state_dict.set_model_state_dict(other, states if rank == 0 else {}, options=options)
        state_dict.set_optimizer_state_dict(
            other, other_optimizer, optimizer_states if rank == 0 else {}, options=options
        )
        for one, same in zip(weights(other), weights(model)):
            assert torch.equal(one, same)
        _step(other, other_optimizer, 0, 1)
        _step(model, optimizer, 0, 1)
        for one, same in zip(weights(other), weights(model)):
            assert torch.equal(one, same)
        found += weights(other)
    return found


def _pipeline(rank: int, size: int, schedule: str, per_rank: int) -> Any:
    """Makes two steps of a network with layers at each rank. Returns own gradients, and losses."""
    from torch.distributed.pipelining import PipelineStage, schedules

    count, width = size * per_rank, 12
    layers = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(count)]
    numbers = [rank + size * each for each in range(per_rank)]
    if schedule == "ScheduleZBVZeroBubble":  # Its stages go from rank 0 to the last one and back.
        numbers = [rank, count - 1 - rank]
    stages = [
        PipelineStage(layers[number], number, count, torch.device("cpu")) for number in numbers
    ]
    generator = torch.Generator().manual_seed(5)
    inputs, targets = (torch.randn(4 * size, width, generator=generator) for _ in range(2))
    run = getattr(schedules, schedule)(
        stages if per_rank > 1 else stages[0],
        2 * size,
        loss_fn=lambda output, target: (output - target).square().mean(),
    )
    losses: list[torch.Tensor] = []
    for _ in range(2):
        given = [inputs] if 0 in numbers else []
        wanted = {"target": targets, "losses": losses} if count - 1 in numbers else {}
        run.step(*given, **wanted)
    gradients = [each.grad for number in numbers for each in layers[number].parameters()]
    return [gradients, [loss.detach() for loss in losses]]


@case
def pipelines(rank: int, size: int) -> Any:
    return [
        _pipeline(rank, size, schedule, per_rank)
        for schedule, per_rank in (
            ("ScheduleGPipe", 1),
            ("Schedule1F1B", 1),
            ("ScheduleInterleaved1F1B", 2),
            ("ScheduleInterleavedZeroBubble", 2),
            ("ScheduleZBVZeroBubble", 2),
        )
    ]


@case
def pipeline_of_tensor_parallel_stages(rank: int, size: int) -> Any:
    """A stage sends the result of a functional collective, which is not there yet."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    from torch.distributed.tensor import parallel

    stages = 2 if size % 2 == 0 and size > 2 else 1
    mesh = init_device_mesh("cpu", (stages, size // stages), mesh_dim_names=("stages", "parts"))
    number = mesh.get_local_rank("stages")
    torch.manual_seed(number)
    layers = nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 12))
    plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    parallel.parallelize_module(layers, mesh["parts"], plan)
    stage = PipelineStage(
        layers, number, stages, torch.device("cpu"), group=mesh.get_group("stages")
    )
    run = Schedule1F1B(stage, 4, loss_fn=nn.functional.mse_loss)
    generator = torch.Generator().manual_seed(5)
    inputs, targets = (torch.randn(8, 12, generator=generator) for _ in range(2))
    run.step(
        *([inputs] if number == 0 else []),
        **({"target": targets} if number == stages - 1 else {}),
    )
    return [parameter.grad.full_tensor() for parameter in layers.parameters()]


@case
def memory_of_the_backend(rank: int, size: int) -> Any:
    """FSDP2 asks the group's backend for memory, if the backend can allocate any."""
    from torch.distributed.device_mesh import init_device_mesh

    model, optimizer = _sharded(init_device_mesh("cpu", (size,)))
    model.set_allocate_memory_from_process_group_for_comm(True)
    for step in range(2):
        _step(model, optimizer, rank, step)
    return _full(model)


if __name__ == "__main__":
    # Gloo rounds a sum of halves after each rank, Talweg once.
    each_backend(_CASES, tolerance=1e-5, tolerances={"half_hook": 2e-3})
