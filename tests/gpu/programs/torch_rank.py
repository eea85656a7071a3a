# SPDX-License-Identifier: Apache-2.0
"""A rank whose torch tensors lie on a GPU: torch_rank.py GPU WHAT.

It uses a fake GPU where TALWEG_FAKE_GPUS is set, else a real one. It prints "done" at the end. What it
prints before, and a traceback, are for the test that started it.
"""

from __future__ import annotations

import gc
import itertools
import os
import sys
import time
import weakref
from typing import Any
from unittest import mock

import c10d_cases
import real_c10d_cases
import real_gpu_cases
import talweg
import talweg.torch as tw
import torch
from expected_errors import expect
from rank_tensors import FLOATS, INTEGERS, RealGpu, assert_same, gpu, plain, sample
from talweg._library import native
from torch import nn

# Operations that do not have all dtypes.
_KINDS = {
    tw.Op.AVERAGE: FLOATS,
    tw.Op.BIT_AND: INTEGERS,
    tw.Op.BIT_OR: INTEGERS,
    tw.Op.BIT_XOR: INTEGERS,
}

# ----- Cases for fake GPUs and real ones -----


def dtypes() -> None:
    """Every dtype and operation has the bits that CPU tensors have."""
    for dtype in (*FLOATS, *INTEGERS):
        for op in tw.Op:
            kinds = _KINDS.get(op, (*FLOATS, *INTEGERS))
            if op is tw.Op.BROADCAST or dtype not in kinds:
                continue
            for count in (1, 1000, 70_001):
                values = sample(dtype, count, int(op))
                name = f"{dtype}.{op.name}.{count}"
                wanted = tw.push_pull(values, op=op, name=f"cpu.{name}")
                for _ in range(2):
                    pushed = gpu.put(values)
                    actual = tw.push_pull(pushed, op=op, name=f"gpu.{name}")
                    assert actual.is_cuda and actual is not pushed
                    assert_same(actual, wanted)
                    assert_same(pushed, values)
        values = sample(dtype, 333, 99)
        root = tw.size() - 1
        wanted = tw.broadcast(values, root, name=f"cpu.{dtype}")
        assert_same(tw.broadcast(gpu.put(values), root, name=f"gpu.{dtype}"), wanted)
    flags = gpu.put(torch.tensor([True, tw.rank() == 0]))
    assert plain(tw.push_pull(flags, op=tw.Op.MIN, name="all")).tolist() == [True, tw.size() == 1]
    assert plain(tw.push_pull(flags, op=tw.Op.BIT_OR, name="any")).tolist() == [True, True]


def layouts() -> None:
    """Strides, scalars, and results in place."""
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6) + tw.rank()
    wanted = base + (tw.size() - 1) / 2 - tw.rank()
    for name, view, target in (("t", base.t(), wanted.t()), ("part", base[:, 1:4], wanted[:, 1:4])):
        pushed = gpu.put(view)
        assert_same(tw.push_pull(pushed, name=name), target)
        assert_same(pushed, view)
        assert tw.push_pull_inplace(pushed, name=f"{name}.inplace") is pushed
        assert_same(pushed, target)
    whole = gpu.put(base)
    address = whole.data_ptr()
    assert tw.push_pull_inplace(whole, name="whole") is whole and whole.data_ptr() == address
    assert_same(whole, wanted)
    scalar = gpu.put(torch.tensor(float(tw.rank())))
    total = tw.push_pull(scalar, average=False, name="scalar")
    assert total.shape == () and float(plain(total)) == sum(range(tw.size()))
    assert tw.push_pull(gpu.put(torch.ones(0)), name="empty").shape == (0,)


def handles() -> None:
    """Many rounds open at once, taken in another order, and what may not be done meanwhile."""
    tensors = [gpu.put(torch.full((100 + i,), float(tw.rank() + i))) for i in range(20)]
    for i, tensor in enumerate(tensors):
        tw.declare(f"h{i}", tensor, tw.Op.SUM)
    opened = [tw.push_pull_async(t, average=False, name=f"h{i}") for i, t in enumerate(tensors)]
    expect(talweg.Busy, "h3", lambda: tw.push_pull_async(tensors[3], average=False, name="h3"))
    for i, handle in reversed(list(enumerate(opened))):
        wanted = torch.full((100 + i,), tw.size() * i + tw.size() * (tw.size() - 1) / 2)
        result = tw.synchronize(handle)
        assert_same(result, wanted)
        assert tw.poll(handle)
    expect(talweg.Busy, "synchronized before", lambda: tw.synchronize(opened[0]))
    expect(
        talweg.InvalidArgument,
        "h0",
        lambda: tw.push_pull(gpu.put(torch.ones(7)), average=False, name="h0"),
    )
    # talweg's own synchronize() ends rounds of torch tensors as well.
    view = gpu.put(torch.ones(3, 4).t())
    assert talweg.synchronize(tw.push_pull_async_inplace(view, name="view")) is view


def cpu_beside_gpu() -> None:
    """One tensor from a GPU in one round and from a CPU in the next, and at each rank another."""
    for round_ in range(4):
        values = torch.full((5000,), float(tw.rank() + round_))
        on_gpu = (tw.rank() + round_) % 2 == 0 and round_ > 0
        result = tw.push_pull(gpu.put(values) if on_gpu else values, name="either")
        assert result.is_cuda == on_gpu
        assert_same(result, torch.full((5000,), (tw.size() - 1) / 2 + round_))


def shapes() -> None:
    """Ranks whose tensors have other shapes are told so; with the last one's on a CPU as well."""
    ranks = tw.size()
    mine = ((2, 6), (3, 4))[tw.rank() == ranks - 1]
    for name, last_on_cpu in (("both on GPUs", False), ("one on a CPU", True)):
        ones = torch.ones(mine)
        on_gpu = not (last_on_cpu and tw.rank() == ranks - 1)
        if on_gpu:  # First, else the ranks of a lone node sum the tensor in host memory.
            tw.declare(name, gpu.put(ones))
        tw.barrier()
        for _ in range(2):  # Then by the name's control rounds.
            try:
                tw.push_pull(gpu.put(ones) if on_gpu else ones, name=name)
            except talweg.Mismatch as error:
                assert "[2, 6]" in str(error) and "[3, 4]" in str(error), error
            else:
                raise AssertionError("nobody said that the shapes differ")
        for shape in ((2, 6), (3, 4)):
            ones = torch.ones(shape)
            result = tw.push_pull(gpu.put(ones) if on_gpu else ones, name=name)
            assert_same(result, torch.ones(shape))
    try:
        tw.push_pull(gpu.put(torch.ones(mine)))
    except talweg.Mismatch as error:
        assert "[2, 6]" in str(error) and "[3, 4]" in str(error), error
    else:
        raise AssertionError("nobody said that the shapes differ")


def training() -> None:
    """The weights are those of the same training on CPUs, to the last bit where CPUs compute."""
    weights = []
    for kind in ("cpu", "gpu"):
        torch.manual_seed(7)
        model = nn.Sequential(nn.Linear(6, 50), nn.Tanh(), nn.Linear(50, 3)).double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += tw.rank()  # Differs until the root's are broadcast.
        if kind == "gpu":
            to_gpu(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = tw.DistributedOptimizer(optimizer, model.named_parameters(), name=kind)
        tw.broadcast_parameters([(f"{kind}.{n}", p) for n, p in model.named_parameters()], 0)
        tw.broadcast_optimizer_state(optimizer, 0)
        for step in range(3):
            torch.manual_seed(100 * step + tw.rank())
            optimizer.zero_grad(set_to_none=isinstance(gpu, RealGpu))
            backward(model, torch.randn(4, 6).double())
            optimizer.step()
        weights.append(torch.cat([plain(p).flatten() for p in model.parameters()]))
    if isinstance(gpu, RealGpu):
        torch.testing.assert_close(weights[1], weights[0])
    else:
        assert_same(weights[1], weights[0])


def declared_together() -> None:
    """A model's gradients are agreed on in one go, where the agent takes them from."""
    asked: list[tuple[int, bool]] = []
    declare_all = native.Connection.declare_all

    def count(connection: Any, declarations: Any, on_gpu: bool = False, *rest: bool) -> list[int]:
        asked.append((len(declarations), on_gpu))
        return declare_all(connection, declarations, on_gpu, *rest)

    model = nn.Sequential(nn.Linear(6, 50), nn.Tanh(), nn.Linear(50, 3)).double()
    to_gpu(model)
    optimizer = tw.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), name="together"
    )
    with mock.patch.object(native.Connection, "declare_all", count):
        backward(model, torch.randn(4, 6).double())
        optimizer.step()
    assert [each for each in asked if each[1]] == [(4, True)], asked


def to_gpu(model: nn.Module) -> None:
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            moved = nn.Parameter(gpu.put(parameter.detach()))
            if not isinstance(gpu, RealGpu):
                # Otherwise autograd would make it where a fake GPU has no memory.
                moved.grad = gpu.put(torch.zeros_like(parameter))
            setattr(module, name, moved)


def backward(model: nn.Module, inputs: torch.Tensor) -> None:
    if isinstance(gpu, RealGpu) and next(model.parameters()).is_cuda:
        inputs = inputs.to(f"cuda:{gpu.ordinal}")
    # As a plain tensor, because the test's subclass would take part in all that backward calls.
    model(inputs).square().mean().as_subclass(torch.Tensor).backward()


def steady() -> None:
    """Rounds without end, until something breaks. Each result is compared."""
    tensors = [gpu.put(torch.zeros(count)) for count in (100_000, 1000)]
    for step in itertools.count(1):
        for tensor in tensors:
            with torch.no_grad():
                tensor.fill_(tw.rank() + step)
        handles = [
            tw.push_pull_async_inplace(tensor, average=False, name=f"steady{i}")
            for i, tensor in enumerate(tensors)
        ]
        while step % 2 and not all(tw.poll(handle) for handle in handles):
            pass
        for handle in handles:
            result = tw.synchronize(handle)
            wanted = tw.size() * step + tw.size() * (tw.size() - 1) // 2
            assert (plain(result) == wanted).all(), plain(result)
        print(f"step {step}", flush=True)


# ----- Cases for fake GPUs, whose streams can be held -----


def order() -> None:
    """A contribution is what the stream leaves, and what follows on it finds the result."""
    stream = gpu.new_stream()
    tensor = gpu.put(torch.zeros(10_000, dtype=torch.uint8))
    for round_ in range(1, 4):
        with gpu.on(stream):
            gpu.hold(stream, True)
            gpu.fill(tensor, round_)
            handle = tw.push_pull_async_inplace(tensor, average=False, name="late")
            tw.push_pull(torch.ones(10), name="early")  # The agent has gone past the other one.
            assert not tw.poll(handle), "the round did not wait for the contribution"
            gpu.hold(stream, False)
            waits = gpu.waits(stream)
            tw.synchronize(handle)
            assert gpu.waits(stream) > waits, "the stream does not wait for the result"
        assert (plain(tensor) == round_ * tw.size()).all(), plain(tensor)


def order_through_host_memory() -> None:
    """The same of a tensor that cannot be shared with the agent."""
    values = torch.zeros(10_000, dtype=torch.uint8)
    _check_host_order(gpu.at(gpu.allocate(10_000, managed=True), values))


def _check_host_order(tensor: torch.Tensor) -> None:
    stream = gpu.new_stream()
    for round_ in range(1, 4):
        with gpu.on(stream):
            gpu.hold(stream, True)
            gpu.fill(tensor, round_)
            handle = tw.push_pull_async_inplace(tensor, average=False, name="host")
            assert not tw.poll(handle)
            expect(talweg.Timeout, "host", lambda handle=handle: tw.synchronize(handle, 0.01))
            gpu.hold(stream, False)
            waits = gpu.waits(stream)
            tw.synchronize(handle)
            assert gpu.waits(stream) > waits, "the stream does not wait for the result"
        assert (plain(tensor) == round_ * tw.size()).all(), plain(tensor)


def late_stream() -> None:
    """A stream that is late holds up no other, whose result it may wait for."""
    values = torch.zeros(10_000, dtype=torch.uint8)
    _check_late_stream([gpu.put(values) for _ in range(30)], "late.gpu")


def late_stream_through_host_memory() -> None:
    """The same of tensors that cannot be shared with the agent."""
    values = torch.zeros(10_000, dtype=torch.uint8)
    tensors = [gpu.at(gpu.allocate(10_000, managed=True), values) for _ in range(3)]
    _check_late_stream(tensors, "late.host")


def _check_late_stream(tensors: list[torch.Tensor], name: str) -> None:
    late, other = gpu.new_stream(), gpu.new_stream()
    for round_ in range(1, 4):
        for stream in (late, other):
            gpu.hold(stream, True)
        handles = []
        for i, tensor in enumerate(tensors):
            with gpu.on(late if i < len(tensors) - 1 else other):
                gpu.fill(tensor, round_)
                handles.append(tw.push_pull_async_inplace(tensor, average=False, name=f"{name}{i}"))
        tw.push_pull(torch.ones(10), name="early")
        time.sleep(0.01)  # The agent goes to sleep meanwhile; if not, less is tested.
        gpu.hold(other, False)
        with gpu.on(other):
            tw.synchronize(handles.pop())
        assert not any(tw.poll(handle) for handle in handles)
        gpu.hold(late, False)
        with gpu.on(late):
            for handle in handles:
                tw.synchronize(handle)
        for tensor in tensors:
            assert (plain(tensor) == round_ * tw.size()).all(), plain(tensor)


def reallocated() -> None:
    """Memory that was freed is not taken for what lies at its address now, and is let go."""
    nbytes = 3 << 20
    values = torch.zeros(nbytes // 4)
    addresses = set()
    tw.push_pull_inplace(gpu.put(torch.zeros(1)), name="first")  # The agent has opened the GPU.
    tw.barrier()
    before = mapped_by_agent()
    tw.barrier()
    for round_ in range(6):
        address = gpu.allocate(nbytes)
        addresses.add(address)
        tensor = gpu.at(address, values)
        with torch.no_grad():
            tensor.fill_(tw.rank() + round_)
        tw.push_pull_inplace(tensor, average=False, name="moving")
        wanted = tw.size() * round_ + tw.size() * (tw.size() - 1) / 2
        assert (plain(tensor) == wanted).all(), plain(tensor)
        gpu.free(address)
        assert mapped_by_agent() <= before + tw.local_size(), "freed memory stays mapped"
    assert len(addresses) < 6, "no address came again"


def mapped_by_agent() -> int:
    pid = os.environ["TALWEG_TEST_AGENT_PID"]
    directory = os.environ["TALWEG_FAKE_GPUS"].rpartition(":")[0]
    with open(f"/proc/{pid}/maps") as maps:
        return sum(f"{directory}/mem" in line for line in maps)


def refused() -> None:
    """What the agent cannot have goes through host memory. The rank says why, once for each reason."""
    for number in range(3):
        values = sample(torch.float32, 5000, number)
        wanted = tw.push_pull(values, name=f"cpu{number}")
        tensor = gpu.at(gpu.allocate(values.numel() * 4, managed=True), values)
        for _ in range(2):
            with torch.no_grad():
                tensor.copy_(values)
            tw.push_pull_inplace(tensor, name=f"managed{number}")
            assert_same(tensor, wanted)


def events_refused() -> None:
    """A tensor whose events cannot be had goes through host memory. Others do not."""
    gpu.refuse_events(True)
    for round_ in range(3):
        values = torch.full((5000,), float(tw.rank() + round_))
        tensor = gpu.put(values)
        tw.push_pull_inplace(tensor, name="without events")
        assert_same(tensor, torch.full((5000,), (tw.size() - 1) / 2 + round_))
        gpu.refuse_events(False)


def host_path() -> None:
    """Everything once more, with an agent that takes no memory of GPUs."""
    dtypes()
    layouts()
    handles()
    training()
    _check_host_order(gpu.put(torch.zeros(10_000, dtype=torch.uint8)))


def captured() -> None:
    """A push while a CUDA graph is captured is refused, and is no push."""
    tensor = gpu.put(torch.ones(10))
    stream = gpu.new_stream()
    gpu.capture(stream, True)
    with gpu.on(stream):
        expect(
            talweg.InvalidArgument,
            "push outside of the graph",
            lambda: tw.push_pull_inplace(tensor, name="captured"),
        )
    gpu.capture(stream, False)
    tw.push_pull_inplace(tensor, name="captured")


def dropped() -> None:
    """A round whose handle was dropped keeps its memory to the end."""
    held = gpu.new_stream()
    gpu.hold(held, True)
    tensor = gpu.put(torch.ones(1000))
    weak = weakref.ref(tensor)
    with gpu.on(held):
        tw.push_pull_async_inplace(tensor, name="dropped")
    del tensor
    gc.collect()
    assert weak() is not None, "the agent writes into memory that is free"
    gpu.hold(held, False)


def again() -> None:
    """Another life in the same process, after a round that nobody took."""
    tw.push_pull_async(gpu.put(torch.ones(1000)), name="left open")
    tw.shutdown()
    tw.init()


def two_gpus() -> None:
    """A tensor that moves to another GPU."""
    gpus = [gpu, type(gpu)((gpu.ordinal + 1) % 4)]
    for round_ in range(4):
        values = torch.full((5000,), float(tw.rank() + round_))
        tensor = gpus[round_ % 2].put(values)
        tw.push_pull_inplace(tensor, name="wanderer")
        assert_same(tensor, torch.full((5000,), (tw.size() - 1) / 2 + round_))


def main() -> int:
    torch.set_num_threads(1)
    tw.init()
    cases = dict(globals())
    for each in (c10d_cases, real_c10d_cases, real_gpu_cases):
        cases.update(vars(each))
    for case in sys.argv[2].split(","):
        print(f"case {case}", flush=True)
        cases[case]()
    tw.barrier()
    tw.shutdown()
    print("done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
