# SPDX-License-Identifier: Apache-2.0
"""Makes each call that docs/torch.md lists as tested alone by c10d_listed.

    c10d_listed.py

Runs on two ranks or more. `works` calls whose values it checks, and `raises` calls whose errors it
checks. A call is a function, named after what it makes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import talweg.torch
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from expected_errors import expect
from torch import nn
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

_RANK, _SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
_LIMIT = timedelta(seconds=120)
_CPU = torch.device("cpu")

_WORKS: list[Callable[[], None]] = []
_RAISES: list[Callable[[], None]] = []


def works(call: Callable[[], None]) -> Callable[[], None]:
    _WORKS.append(call)
    return call


def raises(call: Callable[[], None]) -> Callable[[], None]:
    _RAISES.append(call)
    return call


def _world() -> Any:
    return dist.group.WORLD


def _own(count: int = 4) -> torch.Tensor:
    """A rank's numbers: 0, 1, ... plus the rank."""
    return torch.arange(float(count)) + _RANK


def _of(rank: int, count: int = 4) -> torch.Tensor:
    return torch.arange(float(count)) + rank


def _sum(count: int = 4) -> torch.Tensor:
    return sum((_of(rank, count) for rank in range(_SIZE)), torch.zeros(count))


def _every(count: int = 4) -> torch.Tensor:
    return torch.cat([_of(rank, count) for rank in range(_SIZE)])


def _part_of_sum(count: int) -> torch.Tensor:
    """This rank's part of the sum of all ranks' numbers."""
    return _sum(count * _SIZE).split(count)[_RANK]


def _same(found: torch.Tensor, wanted: Any) -> None:
    torch.testing.assert_close(found, torch.as_tensor(wanted, dtype=found.dtype))


# ----- Objects -----


@works
def object_collectives_with_ranks_of_the_group() -> None:
    told: list[Any] = [_RANK if _RANK == 1 else None]
    dist.broadcast_object_list(told, group_src=1, device=_CPU)
    assert told == [1]
    every: list[Any] = [None] * _SIZE
    dist.gather_object(_RANK, every if _RANK == 1 else None, group_dst=1)
    assert _RANK != 1 or every == list(range(_SIZE))
    part: list[Any] = [None]
    dist.scatter_object_list(part, list(range(_SIZE)) if _RANK == 1 else None, group_src=1)
    assert part == [_RANK]


@works
def messages_of_objects() -> None:
    for options in ({"device": _CPU}, {"use_batch": True}):
        sent = ["a", {1: 2}]
        if _RANK == 0:
            dist.send_object_list(sent, group_dst=1, **options)
        elif _RANK == 1:
            told: list[Any] = [None, None]
            assert dist.recv_object_list(told, group_src=0, **options) == 0
            assert told == sent


# ----- Calls by other names -----


@works
def all_gather_single_and_reduce_scatter_single() -> None:
    every, part = torch.zeros(4 * _SIZE), torch.zeros(3)
    dist.all_gather_single(every, _own())
    _same(every, _every())
    dist.reduce_scatter_single(part, _own(3 * _SIZE))
    _same(part, _part_of_sum(3))


@works
def functional_single() -> None:
    group = _world()
    _same(functional.all_gather_single(_own(), 0, group), _every())
    _same(functional.reduce_scatter_single(_own(3 * _SIZE), "sum", 0, group), _part_of_sum(3))
    for found, count in zip(
        functional.all_gather_single_coalesced([_own(), _own(2)], group), (4, 2)
    ):
        _same(found, _every(count))
    parts = [_own(3 * _SIZE), _own(2 * _SIZE)]
    for found, count in zip(
        functional.reduce_scatter_single_coalesced(parts, "sum", [0, 0], group), (3, 2)
    ):
        _same(found, _part_of_sum(count))


@works
def functional_autograd() -> None:
    group = _world()
    for gather in (functional.all_gather_single_autograd, functional.all_gather_tensor_autograd):
        own = _own().requires_grad_()
        gather(own, 0, group).sum().backward()
        _same(own.grad, [_SIZE] * 4)
    for scatter in (
        functional.reduce_scatter_single_autograd,
        functional.reduce_scatter_tensor_autograd,
    ):
        own = _own(2 * _SIZE).requires_grad_()
        scatter(own, "sum", 0, group).sum().backward()
        _same(own.grad, [1] * 2 * _SIZE)
    own = _own(2 * _SIZE).requires_grad_()
    functional.all_to_all_single_autograd(own, [2] * _SIZE, [2] * _SIZE, group).sum().backward()
    _same(own.grad, [1] * 2 * _SIZE)


@works
def functional_coalesced() -> None:
    group = _world()
    for found, count in zip(
        functional.all_reduce_coalesced([_own(), _own(2)], "sum", group), (4, 2)
    ):
        _same(found, _sum(count))
    _same(functional.all_gather_into_tensor_coalesced([_own()], group)[0], _every())
    given = [_own(2 * _SIZE)]
    _same(functional.reduce_scatter_tensor_coalesced(given, "sum", [0], group)[0], _part_of_sum(2))


@works
def functional_along_dimension_1() -> None:
    every = functional.all_gather_tensor(_own().view(2, 2), 1, _world())
    _same(every, torch.cat([_of(rank).view(2, 2) for rank in range(_SIZE)], 1))
    part = functional.reduce_scatter_tensor(torch.ones(2, 3 * _SIZE), "sum", 1, _world())
    _same(part, torch.full((2, 3), float(_SIZE)))


@works
def functional_messages() -> None:
    name, calls = _world().group_name, torch.ops._c10d_functional
    if _RANK == 0:
        calls.wait_tensor(calls.isend(_own(), 1, 0, name))
    elif _RANK == 1:
        _same(calls.wait_tensor(calls.irecv(torch.zeros(4), 0, 0, name)), _of(0))


# ----- Meshes -----


@works
def functional_with_a_mesh() -> None:
    mesh = init_device_mesh("cpu", (_SIZE,))
    _same(functional.all_reduce(_own(), "sum", mesh), _sum())
    _same(functional.all_reduce(_own(), "avg", (mesh, 0)), _sum() / _SIZE)


@works
def other_forms_of_a_mesh() -> None:
    mesh = init_device_mesh("cpu", (1, _SIZE), mesh_dim_names=("a", "b"))
    line = init_device_mesh("cpu", (_SIZE,), mesh_dim_names=("x",))
    unflattened = line._unflatten(0, (1, _SIZE), ("p", "q"))
    for group in (
        mesh._flatten("ab").get_group(),
        unflattened["q"].get_group(),
        DeviceMesh.from_group(_world(), "cpu").get_group(),
    ):
        tensor = _own()
        dist.all_reduce(tensor, group=group)
        _same(tensor, _sum())
    assert mesh["b"].get_local_rank() == _RANK


# ----- In one graph -----


def _compiled(call: Callable[..., Any], *arguments: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(call, fullgraph=True, backend="aot_eager")(*arguments)


@works
def compiled_collectives() -> None:
    def gather(own: torch.Tensor) -> torch.Tensor:
        every = torch.zeros(4 * _SIZE)
        dist.all_gather_into_tensor(every, own)
        return every + 1

    def gather_list(own: torch.Tensor) -> torch.Tensor:
        every = [torch.zeros(4) for _ in range(_SIZE)]
        dist.all_gather(every, own)
        return torch.cat(every) + 1

    def scatter(own: torch.Tensor) -> torch.Tensor:
        part = torch.zeros(3)
        dist.reduce_scatter_tensor(part, own)
        return part + 1

    def exchange(own: torch.Tensor) -> torch.Tensor:
        got = torch.zeros(2 * _SIZE)
        dist.all_to_all_single(got, own)
        return got + 1

    _same(_compiled(gather, _own()), _every() + 1)
    _same(_compiled(gather_list, _own()), _every() + 1)
    _same(_compiled(scatter, _own(3 * _SIZE)), _part_of_sum(3) + 1)
    parts = [_of(rank, 2 * _SIZE).split(2)[_RANK] for rank in range(_SIZE)]
    _same(_compiled(exchange, _own(2 * _SIZE)), torch.cat(parts) + 1)


def _ring() -> tuple[int, int]:
    return (_RANK + 1) % _SIZE, (_RANK - 1) % _SIZE


@works
def compiled_messages() -> None:
    following, before = _ring()

    def call(own: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
        works = [dist.isend(own, following), dist.irecv(got, before)]
        for work in works:
            work.wait()
        return got + 1

    with torch._dynamo.config.patch(enable_p2p_compilation=True):
        _same(_compiled(call, _own(), torch.zeros(4)), _of(before) + 1)


@raises
def batches_of_messages_in_a_graph() -> None:
    following, before = _ring()

    def call(own: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
        ops = [dist.P2POp(dist.isend, own, following), dist.P2POp(dist.irecv, got, before)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return got + 1

    with torch._dynamo.config.patch(enable_p2p_compilation=True):
        expect(RuntimeError, "No backend type associated", _compiled, call, _own(), _own())
    batch = partial(torch.ops._c10d_functional.batch_p2p_ops, ["isend", "irecv"])
    places = [following, before], [0, 0], [_own(), _own()], _world().group_name
    expect(RuntimeError, "No backend type associated", batch, *places)


@raises
def async_calls_in_a_graph() -> None:
    def call(own: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(own, async_op=True).wait()
        return own + 1

    expect(Exception, "async_op=True", _compiled, call, _own())


@raises
def messages_in_a_graph_that_may_have_none() -> None:
    def call(own: torch.Tensor) -> torch.Tensor:
        dist.isend(own, _ring()[0]).wait()
        return own + 1

    with torch._dynamo.config.patch(enable_p2p_compilation=False):
        expect(Exception, "P2P compilation", _compiled, call, _own())


# ----- Training -----


def _train(model: nn.Module, width: int = 4) -> None:
    """Runs one backward pass, after which each weight's gradient is the mean of rank + 1."""
    model(torch.full((1, width), float(_RANK + 1))).sum().backward()
    grad: Any = next(model.parameters()).grad
    grad = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
    _same(grad, torch.full((width, width), (_SIZE + 1) / 2))


@works
def ddps_builtin_hook_all_reduce() -> None:
    model = DistributedDataParallel(nn.Linear(4, 4))
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    _train(model)


@works
def composable_replicate() -> None:
    from torch.distributed._composable.replicate import replicate

    torch.manual_seed(0)
    model = replicate(nn.Linear(4, 4))
    _train(model)


@works
def options_of_fully_shard() -> None:
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    policies: list[dict[str, Any]] = [
        {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)},
        {"mp_policy": MixedPrecisionPolicy(torch.float16)},
        {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
        {},
    ]
    for policy in policies:
        torch.manual_seed(0)
        model = fully_shard(nn.Linear(4, 4), **policy)
        if not policy:
            model.set_gradient_divide_factor(float(_SIZE))
        _train(model)


@works
def premul_sum_with_changing_factors() -> None:
    for factor in (0.5, 2.0, torch.tensor([3.0])):
        tensor = _own()
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor))
        _same(tensor, _sum() * float(factor))
    part = torch.zeros(3)
    dist.reduce_scatter_tensor(part, _own(3 * _SIZE), dist._make_nccl_premul_sum(0.5))
    _same(part, _part_of_sum(3) * 0.5)


@works
def async_save_in_a_process() -> None:
    import torch.distributed.checkpoint as checkpoints
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    told = [tempfile.mkdtemp() if _RANK == 0 else None]
    dist.broadcast_object_list(told, 0)
    saved = {"numbers": _of(7)}
    checkpoints.async_save(
        saved, checkpoint_id=told[0], async_checkpointer_type=AsyncCheckpointerType.PROCESS
    ).result(timeout=_LIMIT.total_seconds())
    loaded = {"numbers": torch.zeros(4)}
    checkpoints.load(loaded, checkpoint_id=told[0])
    _same(loaded["numbers"], _of(7))
    dist.barrier()
    if _RANK == 0:
        shutil.rmtree(str(told[0]))


# ----- The group, and its works -----


@works
def questions_about_groups() -> None:
    assert dist.get_backend() == "talweg" and dist.is_backend_available("talweg")
    assert "cpu:talweg" in dist.get_backend_config()
    assert dist.get_default_backend_for_device("cpu") == "gloo"
    assert dist.get_node_local_rank() == int(os.environ["LOCAL_RANK"])
    count = dist.get_pg_count()
    group = dist.new_group(list(reversed(range(_SIZE))), sort_ranks=False)
    assert dist.get_pg_count() == count + 1
    last = _SIZE - 1
    assert dist.get_group_rank(group, 0) == last and dist.get_global_rank(group, 0) == last
    assert dist.get_process_group_ranks(group) == list(reversed(range(_SIZE)))
    dist.destroy_process_group(group)
    assert dist.is_initialized() and dist.is_available()


@works
def options_of_the_group() -> None:
    options = _world()._get_backend(_CPU).options
    assert options.backend == "talweg" and options._timeout == _LIMIT
    assert list(options.global_ranks_in_group) == list(range(_SIZE))


@works
def barriers_of_devices() -> None:
    dist.barrier(device_ids=[0])


@works
def boxed_works() -> None:
    tensor = _own()
    dist.Work.unbox(dist.all_reduce(tensor, async_op=True).boxed()).wait()
    _same(tensor, _sum())


@works
def debug_level_detail() -> None:
    """torch wraps no group of Talweg's."""
    level = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        group = dist.new_group()
        assert type(group) is type(_world())
        tensor = _own()
        dist.all_reduce(tensor, group=group)
        _same(tensor, _sum())
        dist.destroy_process_group(group)
    finally:
        dist.set_debug_level(level)


@works
def ephemeral_timeouts_have_no_effect() -> None:
    c10d._add_ephemeral_timeout_for_all_pgs(timedelta(milliseconds=1))
    tensor = _own()
    dist.all_reduce(tensor)
    _same(tensor, _sum())


@raises
def calls_of_works() -> None:
    tensor = _own()
    work = dist.all_reduce(tensor, async_op=True)
    expect(RuntimeError, "not implemented", work.get_future_result)
    expect(RuntimeError, "StreamBlock", work.block_current_stream)
    work.wait()
    _same(tensor, _sum())


@raises
def groups_made_in_another_way() -> None:
    from torch.distributed import _dist2

    expect(ValueError, "Backend talweg not registered", _dist2.new_group, "talweg", _LIMIT, "cpu")
    expect(TypeError, "does not support shrinking", dist.shrink_group, [_SIZE - 1])
    split = partial(dist.split_group, split_ranks=[[rank] for rank in range(_SIZE)])
    expect(RuntimeError, "No device associated", split)
    expect(talweg.Unsupported, "new_group(ranks)", _world().split_group, [0])
    expect(talweg.Unsupported, "new_group(ranks)", _world().merge_remote_group, None, _SIZE)


@raises
def what_wants_a_backend_in_cpp() -> None:
    from torch.distributed import _symmetric_memory

    def estimate() -> None:
        with c10d._time_estimator():
            dist.all_reduce(_own())

    def share() -> None:
        _symmetric_memory.rendezvous(_symmetric_memory.empty(4, device="cpu"), _world())

    expect(NotImplementedError, "time estimator is not supported", estimate)
    expect(RuntimeError, "SymmetricMemory does not support device type cpu", share)
    hook = partial(_world()._register_on_completion_hook, print)
    expect(RuntimeError, "Could not find the default backend", hook)


@raises
def gradients_of_all_gather_base() -> None:
    from torch.distributed.nn import functional as of_nn

    every = of_nn._all_gather_base(torch.zeros(4 * _SIZE), _own().requires_grad_())
    _same(every.detach(), _every())
    expect(RuntimeError, "Backend not supported", every.sum().backward)


@raises
def messages_to_the_own_rank() -> None:
    expect(ValueError, "destination rank should not be the same", dist.send, _own(), _RANK)
    expect(talweg.InvalidArgument, "of the group is this one", dist.isend, _own(), _RANK)
    batch = [dist.P2POp(dist.isend, _own(), _RANK), dist.P2POp(dist.irecv, _own(), _RANK)]
    expect(talweg.InvalidArgument, "of the group is this one", dist.batch_isend_irecv, batch)


@raises
def tensors_of_several_dtypes() -> None:
    mixed = [_own(), torch.ones(3, dtype=torch.int64)]
    expect(ValueError, "different dtypes", dist.all_reduce_coalesced, mixed)


def main() -> None:
    dist.init_process_group("talweg", timeout=_LIMIT)
    for call in (*_WORKS, *_RAISES):
        print(call.__name__, flush=True)
        call()
        dist.barrier()
    print(f"rank {_RANK}: {len(_WORKS)} work, {len(_RAISES)} raise")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
