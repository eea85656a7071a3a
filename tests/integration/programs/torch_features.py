# SPDX-License-Identifier: Apache-2.0
"""One rank of torch_test.py. Each function checks a promise of talweg.torch."""

from __future__ import annotations

import inspect
import os
import sys
import threading
import traceback
import warnings
from typing import Any
from unittest import mock

import numpy as np
import talweg
import talweg.torch as tw
import torch
from cases import run_cases
from expected_errors import expect
from talweg import _client
from talweg._collectives import objects
from torch import nn


def dtypes() -> None:
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        tensor = torch.full((3, 5), tw.rank() + 1, dtype=dtype)
        mean = tw.push_pull(tensor, name=f"mean.{dtype}")
        assert mean.dtype == dtype and mean.shape == (3, 5)
        assert (mean == (tw.size() + 1) / 2).all(), mean
    integers = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
    # The oldest torch lacks these.
    newer = ("uint16", "uint32", "uint64")
    integers += [getattr(torch, name) for name in newer if hasattr(torch, name)]
    for dtype in integers:
        tensor = torch.full((7,), tw.rank() + 1, dtype=dtype)
        total = tw.push_pull(tensor, average=False, name=f"sum.{dtype}")
        assert (total == tw.size() * (tw.size() + 1) // 2).all(), total
    flags = torch.tensor([True, tw.rank() == 0])
    assert tw.push_pull(flags, op=tw.Op.MIN, name="all").tolist() == [True, tw.size() == 1]
    odd = tw.push_pull(flags, op=tw.Op.BIT_XOR, name="odd")
    assert odd.dtype == torch.bool and odd.tolist() == [tw.size() % 2 == 1, True], odd
    bits = torch.full((3,), 1 << tw.rank(), dtype=torch.int16)
    assert (tw.push_pull(bits, op=tw.Op.BIT_OR, name="bits.or") == (1 << tw.size()) - 1).all()
    expect(
        talweg.InvalidArgument, "bit_and", tw.push_pull, torch.ones(2), op=tw.Op.BIT_AND, name="f"
    )
    expect(talweg.InvalidArgument, "average", tw.push_pull, torch.ones(2, dtype=torch.int32))
    narrow = torch.ones(2).to(torch.float8_e4m3fn)
    expect(talweg.InvalidArgument, "float8_e4m3fn", tw.push_pull, narrow)
    pairs = torch.ones(2, dtype=torch.complex64)
    expect(talweg.InvalidArgument, "complex64", tw.push_pull, pairs, op=tw.Op.MAX)
    assert tw.push_pull(torch.ones(0), name="empty").shape == (0,)


def layouts() -> None:
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6) + tw.rank()
    wanted = base.t() + (tw.size() - 1) / 2 - tw.rank()
    assert torch.equal(tw.push_pull(base.t(), name="transposed"), wanted)
    view = base.clone().t()
    assert tw.push_pull_inplace(view, name="transposed.inplace") is view
    assert torch.equal(view, wanted)
    scalar = torch.tensor(float(tw.rank()))
    assert tw.push_pull(scalar, average=False, name="scalar").shape == ()
    expect(
        talweg.InvalidArgument, "to_dense", tw.push_pull, torch.eye(3).to_sparse(), name="sparse"
    )


def again() -> None:
    """Rounds of one name in place take the short way only if they are like the round before."""
    ramp = torch.arange(6.0)
    negative = torch.complex(torch.zeros(6), ramp).conj().imag
    assert negative.is_neg()
    for tensor in (ramp.reshape(2, 3), ramp.reshape(3, 2).t(), negative, ramp + 1):
        wanted = tw.size() * tensor.clone()
        for _ in range(2):
            assert tw.push_pull_inplace(tensor, average=False, name="again") is tensor
            assert torch.equal(tensor, wanted), (tensor, wanted)
            tensor /= tw.size()
    sparse = torch.ones(2, 3).to_sparse()
    expect(talweg.InvalidArgument, "to_dense", tw.push_pull_inplace, sparse, name="again")
    freed = torch.ones(6)
    freed.untyped_storage().resize_(0)
    for call in (tw.push_pull_inplace, tw.push_pull, tw.all_gather):
        expect(talweg.InvalidArgument, "has no memory", call, freed, name="again")
    for other in (torch.ones(6, dtype=torch.float64), torch.ones(7), ramp):
        wanted = tw.size() * other.clone()
        assert tw.push_pull_inplace(other, average=False, name="again") is other
        assert torch.equal(other, wanted), (other, wanted)
    wanted = ramp.clone()
    assert torch.equal(tw.push_pull_inplace(ramp, op=tw.Op.MAX, name="again"), wanted)
    bytes_, flags = torch.ones(4, dtype=torch.uint8), torch.ones(4, dtype=torch.bool)
    tw.push_pull_inplace(bytes_, average=False, name="bits")
    expect(talweg.InvalidArgument, "bool", tw.push_pull_inplace, flags, average=False, name="bits")


def handles() -> None:
    tensors = [torch.full((100 + i,), float(tw.rank() + i)) for i in range(20)]
    opened = [tw.push_pull_async(t, average=False, name=f"h{i}") for i, t in enumerate(tensors)]
    last = tw.push_pull_async(tensors[3], average=False, name="h3")
    assert (tw.synchronize(last) == tw.size() * 3 + tw.size() * (tw.size() - 1) / 2).all()
    for i, handle in reversed(list(enumerate(opened))):
        wanted = tw.size() * i + tw.size() * (tw.size() - 1) / 2
        assert (tw.synchronize(handle) == wanted).all()
        assert tw.poll(handle)
    expect(talweg.Busy, "synchronized before", tw.synchronize, opened[0])
    # A handle is equal only to itself, whatever == of its tensor returns.
    assert opened.index(opened[3]) == 3 and len(set(opened)) == 20
    assert (tw.push_pull(torch.ones(7), average=False, name="h0") == tw.size()).all()


def broadcasts() -> None:
    for root in range(tw.size()):
        tensor = torch.full((33,), float("nan") if tw.rank() != root else -0.0)
        tw.broadcast_(tensor, root, name=f"b{root}")
        assert torch.signbit(tensor).all() and (tensor == 0).all()
        copy = tw.broadcast(torch.full((5,), tw.rank(), dtype=torch.int64), root, name=f"c{root}")
        assert (copy == root).all()
    value = tw.broadcast_object({"rank": tw.rank(), "text": "x" * 5000}, root_rank=tw.size() - 1)
    assert value == {"rank": tw.size() - 1, "text": "x" * 5000}
    everyone = tw.all_gather_object(("rank", tw.rank(), "y" * (1000 * tw.rank())))
    assert everyone == [("rank", r, "y" * (1000 * r)) for r in range(tw.size())]
    _gathers_of_long_objects()
    tw.barrier()
    expect(talweg.InvalidArgument, "root_rank", tw.broadcast, torch.ones(1), tw.size())


def _gathers_of_long_objects() -> None:
    """Gathers of long objects take more rounds, and no more memory."""
    lengths: list[int] = []
    client = _client.current()
    run = client.run

    def record(name: str, array: Any, *arguments: Any) -> None:
        lengths.append(array.size)
        run(name, array, *arguments)

    own = [bytes([rank]) * (3000 * rank + 1) for rank in range(tw.size())]
    with mock.patch.object(objects, "_CHUNK_BYTES", 1024), mock.patch.object(client, "run", record):
        assert tw.all_gather_object(own[tw.rank()]) == own
    assert max(lengths) <= 1024 + tw.size() and len(lengths) > sum(map(len, own)) // 1024


def arguments_in_the_wrong_place() -> None:
    ones = torch.ones(2)
    for push in (
        tw.push_pull,
        tw.push_pull_inplace,
        tw.push_pull_async,
        tw.push_pull_async_inplace,
    ):
        invalid = talweg.InvalidArgument
        expect(invalid, "pass an operation as op=Op.SUM", push, ones, tw.Op.SUM)
        expect(invalid, "pass a tensor's name as name='weights'", push, ones, average="weights")
        expect(invalid, "pass a tensor's name as name='weights'", push, ones, None, "weights")
        expect(invalid, "average is None; it must be True or False", push, ones, average=None)
        expect(invalid, "average is 1;", push, ones, 1, op=tw.Op.SUM)
        expect(invalid, "op is True;", push, ones, op=True)
        expect(invalid, "op is 'sum'", push, ones, op="sum")
    expect(talweg.InvalidArgument, "op is 99;", tw.declare, "d", ones, 99)
    number: Any = int(tw.Op.SUM)
    assert (tw.push_pull(ones, op=number, name="number") == tw.size()).all()


def arguments_in_numpys_order() -> None:
    """Arguments may come in NumPy's order, and in the old one with `average` before the name."""
    for name in ("push_pull", "push_pull_inplace", "push_pull_async", "push_pull_async_inplace"):
        push: Any = getattr(tw, name)
        numpys, own = (
            list(inspect.signature(each).parameters.values())[1:]
            for each in (getattr(talweg, name), push)
        )
        assert own == numpys and [each.name for each in own[:2]] == ["name", "op"], own
        timeout = () if "async" in name else (60.0,)
        for arguments, wanted, warned in (
            ((f"{name}.max", tw.Op.MAX), 1, []),
            ((False, f"{name}.sum"), tw.size(), [(DeprecationWarning, __file__)]),
            ((True, f"{name}.max", 1, tw.Op.MAX, *timeout), 1, [(DeprecationWarning, __file__)]),
        ):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                result = push(torch.ones(3), *arguments)
            assert [(each.category, each.filename) for each in caught] == warned, caught
            if isinstance(result, tw.Handle):
                result = tw.synchronize(result)
            assert (result == wanted).all(), (name, arguments)


def _ones(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.ones(3, dtype=dtype, requires_grad=True)


def gradients() -> None:
    """The gradient is the combination of all ranks' gradients by the same operation."""
    own = tw.rank() + 1
    total = tw.size() * (tw.size() + 1) // 2
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.complex64):
        for average, wanted in ((False, total), (True, total / tw.size())):
            tensor = _ones(dtype)
            for _ in range(2):
                result = tw.push_pull(tensor, average=average, name=f"forward.{dtype}.{average}")
                assert result.grad_fn is not None and not result.is_leaf
                # The gradient is one expanded number; for complex tensors it is a conjugate view.
                tensor.grad = None
                (own * result.conj().sum()).abs().backward()
                assert torch.equal(tensor.grad, torch.full_like(tensor, wanted)), tensor.grad
    part = torch.ones(4, 6, requires_grad=True)
    (own * tw.push_pull(part.t()[1:], name="forward.part")).sum().backward()
    assert part.grad is not None
    assert (part.grad[:, 0] == 0).all() and (part.grad[:, 1:] == total / tw.size()).all()
    embedding = torch.ones(5, 2, requires_grad=True)
    rows = tw.push_pull(embedding, name="forward.rows")
    nn.functional.embedding(torch.tensor([3]), rows, sparse=True).sum().backward()
    assert embedding.grad is not None and embedding.grad.tolist()[2:4] == [[0, 0], [1, 1]]


def gradients_of_gradients() -> None:
    """All ranks change their elements together, so finite differences give the whole gradient."""
    torch.manual_seed(1)
    for dtype in (torch.float64, torch.complex128):
        for average in (False, True):
            tensor = torch.randn(3, dtype=dtype, requires_grad=True)

            def cube(x: torch.Tensor, average: bool = average) -> torch.Tensor:
                return tw.push_pull(x * x, f"checked.{x.dtype}.{average}", average=average) * x

            assert torch.autograd.gradcheck(cube, [tensor])
            assert torch.autograd.gradgradcheck(cube, [tensor])


def gradients_without_names() -> None:
    """Rounds without names between forward and backward do not disturb the gradient."""
    own, mean = tw.rank() + 1, (tw.size() + 1) / 2
    declared = 0
    for step in range(60):
        a, b = _ones(), _ones()
        of_a, of_b = tw.push_pull(a), tw.push_pull(b * 10)
        expect_mean = (of_a.detach() - of_b.detach()).sum()
        a.register_hook(lambda gradient: tw.push_pull(gradient, op=tw.Op.MAX))
        (own * (of_a + 2 * of_b)).sum().backward()
        assert expect_mean == -27
        assert (a.grad == mean).all() and (b.grad == 20 * mean).all(), (a.grad, b.grad)
        if step == 30:
            declared = _client.current().tensor_count
    assert _client.current().tensor_count == declared


def gradients_by_torch_func() -> None:
    size, x = tw.size(), torch.arange(3.0)

    def loss(tensor: torch.Tensor) -> torch.Tensor:
        return tw.push_pull(tensor, name="func", op=tw.Op.SUM).square().sum()

    first, second = torch.func.grad(loss), torch.func.grad(lambda each: first(each).pow(2).sum())
    assert torch.equal(first(x), 2 * size * size * x)
    assert torch.equal(second(x), 8 * size**4 * x)
    _, pull = torch.func.vjp(lambda tensor: tw.push_pull(tensor, op=tw.Op.SUM), x)
    assert torch.equal(pull(x)[0], size * x)
    own, total = tw.rank() + 1.0, size * (size + 1) / 2
    _, tangent = torch.func.jvp(
        lambda tensor: tw.push_pull(tensor, "jvp", op=tw.Op.SUM) ** 2, (x,), (own * x,)
    )
    assert torch.equal(tangent, 2 * size * x * total * x)
    batch = torch.ones(2, 3)
    text = "under torch.func.vmap"
    expect(talweg.InvalidArgument, text, lambda: torch.func.vmap(tw.push_pull)(batch))


def no_gradients() -> None:
    for context in (torch.no_grad(), torch.inference_mode()):
        tensor = _ones()
        with context:
            assert not tw.push_pull(tensor, name="no.grad").requires_grad
    assert not tw.push_pull(torch.ones(3, dtype=torch.float64), name="no.grad").requires_grad
    assert not tw.synchronize(tw.push_pull_async(_ones(), name="no.grad")).requires_grad
    assert not tw.broadcast(_ones(), name="no.grad.root").requires_grad
    changed = _ones() * 2
    assert tw.push_pull_inplace(changed.detach(), name="no.grad").grad_fn is None
    for op in (tw.Op.MIN, tw.Op.MAX, tw.Op.PRODUCT):
        result = tw.push_pull(_ones(), op=op, name=f"no.{op.name}")
        assert (result == 1).all()
        expect(talweg.InvalidArgument, f"the {op.name.lower()} has no", result.sum().backward)


def _parameters(value: int) -> dict[str, Any]:
    """Returns parameters of every kind. The order of elements in memory may differ by rank."""
    tied = torch.full((40, 20), float(value))
    image = torch.arange(240.0).reshape(2, 3, 5, 8) * value
    if tw.rank() % 2 == 0:
        image = image.to(memory_format=torch.channels_last)
    parameters: dict[str, Any] = {
        "weight": nn.Parameter(torch.full((7, 3), float(value))),
        "tied": tied,
        "tied.again": tied,
        "flags": torch.tensor([value % 2 == 0, True, False]),
        "scalar": torch.tensor(value),
        "empty": torch.empty(0, 4),
        "image": image,
        "strided": torch.full((9, 6), value, dtype=torch.int16)[::2, 1:],
        "complex": torch.full((3,), complex(value, -1), dtype=torch.complex128),
        "conjugate": torch.full((2, 2), complex(1, value)).conj(),
        "negative": torch.full((4,), complex(1, value)).conj().imag,
        "nan": torch.full((3,), float("nan") if value == 0 else float(value)),
        "half": torch.full((5,), value, dtype=torch.bfloat16),
        "no tensor": value,
    }
    if hasattr(torch, "float8_e4m3fn"):  # The oldest torch lacks it.
        parameters["float8"] = torch.full((3, 3), float(value)).to(torch.float8_e4m3fn)
    with torch.inference_mode():
        parameters["inference"] = torch.full((3,), float(value))
    return parameters


def _bytes(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    return plain.view(torch.uint8).numpy().tobytes()


def parameters_of_every_kind() -> None:
    """Parameters lie across the ends of chunks, and ranks name them in different orders."""
    before = _client.current().tensor_count
    for root in range(tw.size()):
        parameters, wanted = _parameters(tw.rank()), _parameters(root)
        storages = {name: p.data_ptr() for name, p in parameters.items() if name != "no tensor"}
        items = list(parameters.items())
        chunk_bytes = 1024 if root % 2 == 0 else objects._CHUNK_BYTES
        with mock.patch.object(objects, "_CHUNK_BYTES", chunk_bytes):
            tw.broadcast_parameters(dict(items if tw.rank() == 0 else reversed(items)), root)
        assert parameters.pop("no tensor") == tw.rank()
        for name, tensor in parameters.items():
            assert _bytes(tensor) == _bytes(wanted[name]), (name, tensor)
            assert tensor.data_ptr() == storages[name], name
    # The tensors are the length and two for the bytes of a long stream, for any number of
    # parameters. Another root has its own. Two more say at the end that no rank has failed.
    long = (tw.size() + 1) // 2
    assert _client.current().tensor_count == before + 2 * tw.size() + long + 2


def parameters_that_are_in_a_graph() -> None:
    if not hasattr(torch.autograd.graph, "increment_version"):
        return
    for parameter in (torch.ones(3), torch.ones(3, 2).t()):
        saved = parameter.requires_grad_() * 2
        loss = (saved * saved).sum()
        tw.broadcast_parameters([("saved", saved.detach())])
        expect(RuntimeError, "inplace", loss.backward)


def parameters_that_differ() -> None:
    """If a rank's parameters are not like the root's, all raise, and nobody waits for ever."""
    last = tw.size() - 1
    differs = tw.rank() == last and last > 0
    text = f"parameter 'b' is float32 of shape (2, 3) at rank 0, but {{}} at rank {last}: build"
    others: dict[str, Any] = {
        text.format("float32 of shape (3, 2)"): {"b": torch.ones(3, 2)},
        text.format("float64 of shape (2, 3)"): {"b": torch.ones(2, 3, dtype=torch.float64)},
        text.format("is not there"): {"c": torch.ones(5)},
        f"'d' is int64 of shape () at rank {last}, but is not there at rank 0": {
            "b": torch.ones(2, 3),
            "d": torch.tensor(1),
        },
        "single memory location": {"b": torch.ones(3).expand(2, 3)},
    }
    for error, theirs in others.items():
        own = theirs if differs else {"b": torch.ones(2, 3)}
        model = {"a": torch.tensor(tw.rank()), **own, "e": torch.full((300,), tw.rank())}
        with mock.patch.object(objects, "_CHUNK_BYTES", 1024):
            if last == 0:
                tw.broadcast_parameters(model)
            else:
                expect(Exception, error, tw.broadcast_parameters, model)
        assert model["a"] == 0 and (model["e"] == 0).all()
    sparse = {"s": torch.eye(3).to_sparse()}
    expect(talweg.InvalidArgument, "to_dense", tw.broadcast_parameters, sparse)
    expect(talweg.InvalidArgument, "root_rank", tw.broadcast_parameters, {}, tw.size())
    tw.broadcast_parameters({})


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        torch.manual_seed(100 * step + tw.rank())
        optimizer.zero_grad()
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()


def _weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def _assert_same_everywhere(tensor: torch.Tensor) -> None:
    everyone = tw.all_gather_object(tensor.numpy().tobytes())
    assert all(other == everyone[0] for other in everyone)


def optimizer_basics() -> None:
    model = nn.Linear(6, 3)
    inner = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(inner, 2)
    optimizer = tw.DistributedOptimizer(inner, model.named_parameters(), name="basics")
    assert optimizer is inner and isinstance(optimizer, torch.optim.Adam)
    tw.broadcast_parameters(model.state_dict(), 0)
    tw.broadcast_optimizer_state(optimizer, 0)
    _train(model, optimizer, 3)
    scheduler.step()
    _assert_same_everywhere(_weights(model))
    # The averages are in .grad when backward returns, so clipping sees the same norm at all ranks.
    optimizer.zero_grad()
    model(torch.randn(4, 6)).sum().backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    _assert_same_everywhere(norm)
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()
    _assert_same_everywhere(_weights(model))


def unused_parameters() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.never = nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(x) if tw.rank() == 0 else self.b(x)

    model = Branches()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    optimizer = tw.DistributedOptimizer(sgd, model.named_parameters(), name="unused")
    tw.broadcast_parameters(model.named_parameters(), 0)
    never = model.never.weight.detach().clone()
    _train(model, optimizer, 3)
    assert model.never.weight.grad is None and torch.equal(model.never.weight, never)
    if tw.size() > 1:
        assert model.a.weight.grad is not None and model.b.weight.grad is not None
    _assert_same_everywhere(_weights(model))


def grad_scaler() -> None:
    if not hasattr(torch.amp, "GradScaler"):  # Before torch 2.3 only CUDA tensors can be scaled.
        return
    model = nn.Linear(6, 3)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = tw.DistributedOptimizer(sgd, model.named_parameters(), name="scaler")
    tw.broadcast_parameters(model.named_parameters(), 0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 6)).square().mean()
        if step == 1 and tw.rank() == tw.size() - 1:
            loss = loss * float("inf")  # One rank overflows, so all must skip this step.
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 2.0**9, scaler.get_scale()
    assert torch.isfinite(_weights(model)).all()
    _assert_same_everywhere(_weights(model))


def uneven_batches() -> None:
    model = nn.Linear(6, 3)
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    optimizer = tw.DistributedOptimizer(adam, model.named_parameters(), name="uneven")
    tw.broadcast_parameters(model.named_parameters(), 0)
    with optimizer.join():
        _train(model, optimizer, 2 + tw.rank())
    _assert_same_everywhere(_weights(model))
    everyone = tw.all_gather_object(adam.state_dict()["state"][0]["step"].item())
    assert everyone == [2 + tw.size() - 1] * tw.size(), everyone


def refused_optimizers() -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    few = list(model.named_parameters())[:1]
    expect(talweg.InvalidArgument, "1 of the", tw.DistributedOptimizer, optimizer, few)
    twice = [("w", p) for p in model.parameters()]
    expect(talweg.InvalidArgument, "'w'", tw.DistributedOptimizer, optimizer, twice)
    meta = {"w": torch.empty(3, device="meta")}
    expect(talweg.InvalidArgument, "'w' has no memory", tw.broadcast_parameters, meta)


def optimizers_of_one_name() -> None:
    """Optimizers of one name fail, also if their parameters have other names.

    They would share the marks that say which gradients count.
    """
    models = [nn.Linear(3, 3) for _ in range(2)]
    optimizers = []  # They average gradients as long as somebody has them.
    for at, model in enumerate(models):
        named = [(f"{at}.{name}", each) for name, each in model.named_parameters()]
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizers.append(tw.DistributedOptimizer(plain, named, name="one"))
    loss = models[1](models[0](torch.ones(2, 3))).sum()
    expect(talweg.Busy, "several DistributedOptimizers, give each a `name`", loss.backward)


def threads() -> None:
    failures = []

    def work(number: int) -> None:
        for step in range(5):
            tensor = torch.full((50,), float(number + step))
            if not (tw.push_pull(tensor, name=f"thread.{number}") == number + step).all():
                failures.append((number, step))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures, failures


def forked_child() -> None:
    pid = os.fork()
    if pid == 0:
        try:
            talweg.push_pull(np.ones(3, np.float32), name="forked")
        except talweg.Forked:
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    tw.barrier()


CASES = [
    dtypes,
    layouts,
    again,
    handles,
    arguments_in_the_wrong_place,
    arguments_in_numpys_order,
    broadcasts,
    gradients,
    gradients_of_gradients,
    gradients_without_names,
    gradients_by_torch_func,
    no_gradients,
    parameters_of_every_kind,
    parameters_that_are_in_a_graph,
    parameters_that_differ,
    optimizer_basics,
    unused_parameters,
    grad_scaler,
    uneven_batches,
    refused_optimizers,
    optimizers_of_one_name,
    threads,
    forked_child,
]


def main() -> int:
    torch.set_num_threads(1)
    expect(talweg.NotInitialized, "talweg.init()", talweg.rank)
    tw.init()
    tw.init()
    run_cases(*CASES)
    tw.shutdown()
    tw.shutdown()
    expect(talweg.NotInitialized, "talweg.init()", talweg.rank)
    return 0


if __name__ == "__main__":
    sys.exit(main())
