# SPDX-License-Identifier: Apache-2.0
"""One of two ranks whose tensors have one name, but different shapes.

Each kind of call raises an error at both ranks that names both shapes, and the next call works.
The tensors of calls have as many elements at both ranks, those of optimizers also different numbers.
Optimizers raise such an error also where the ranks combine gradients otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import talweg
import talweg.byteps.torch as bps
import talweg.horovod.torch as hvd
import talweg.torch as tw
import torch
from talweg.byteps.torch.parallel import DistributedDataParallel

# The shapes of the two ranks.
SHAPES = ((2, 6), (3, 4))


def mine() -> tuple[int, ...]:
    return SHAPES[tw.rank()]


def told(case: str, errors: Any, call: Callable[[], Any]) -> None:
    try:
        call()
    except errors as error:
        for shape in SHAPES:
            assert str(list(shape)) in str(error), f"{case}: {error}"
    else:
        raise AssertionError(f"{case}: nobody said that the shapes differ")


def check_calls() -> None:
    """Checks new names, and names that ranks have used with one shape before."""
    ones: dict[str, Callable[[tuple[int, ...]], Any]] = {"numpy": np.ones, "torch": torch.ones}
    calls: dict[str, Callable[[Any, str], Any]] = {
        "numpy push_pull": talweg.push_pull,
        "numpy push_pull_inplace": talweg.push_pull_inplace,
        "numpy broadcast": lambda array, name: talweg.broadcast(array, name=name),
        "torch push_pull": tw.push_pull,
        "torch push_pull_inplace": tw.push_pull_inplace,
        "torch broadcast": lambda tensor, name: tw.broadcast(tensor, name=name),
        "torch grouped": lambda tensor, name: tw.grouped_push_pull([tensor], name),
    }
    for case, call in calls.items():
        make = ones[case.split()[0]]
        told(case, talweg.Mismatch, partial(call, make(mine()), f"new {case}"))
        for shape in (*SHAPES, (12,)):  # The name is free for any shape.
            call(make(shape), f"new {case}")
        for _ in range(3):
            call(make((3, 4)), f"used {case}")
        told(case, talweg.Mismatch, partial(call, make(mine()), f"used {case}"))
        call(make((3, 4)), f"used {case}")


def check_declared() -> None:
    """A name that was declared by its count takes the shape of its first call."""
    talweg.declare("declared", np.float32, 12)
    talweg.declare("declared", np.float32, 12)
    for _ in range(3):
        talweg.push_pull(np.ones((3, 4), np.float32), "declared")
    talweg.declare("declared", np.float32, 12)
    talweg.push_pull(np.ones((3, 4), np.float32), "declared")
    talweg.declare("declared too", np.float32, 12)
    told(
        "declared",
        talweg.Mismatch,
        lambda: talweg.push_pull(np.ones(mine(), np.float32), "declared too"),
    )
    tw.declare("declared by torch", torch.ones(3, 4))
    for _ in range(2):
        tw.push_pull(torch.ones(3, 4), "declared by torch")


def model_of(shape: tuple[int, ...]) -> torch.nn.Module:
    """Returns a model whose two parameters have the same names and lengths at all ranks."""
    model = torch.nn.Module()
    model.register_parameter("first", torch.nn.Parameter(torch.ones(5)))
    model.register_parameter("weight", torch.nn.Parameter(torch.ones(shape)))
    return model


def backward(model: torch.nn.Module) -> None:
    sum(parameter.sum() for parameter in model.parameters()).backward()


def step_fails(
    case: str, errors: Any, model: torch.nn.Module, optimizer: Any, wanted: list[str]
) -> None:
    try:
        backward(model)
        optimizer.step()
    except errors as error:
        for text in wanted:
            assert text in str(error), f"{case}: {error}"
    else:
        raise AssertionError(f"{case}: nobody said that the ranks differ")


def check_optimizers() -> None:
    """Optimizers get the error in their first step, for small and for large gradients."""

    def talwegs(model: torch.nn.Module, optimizer: Any, name: str) -> Any:
        return tw.DistributedOptimizer(optimizer, model.named_parameters(), name=name)

    def horovods(model: torch.nn.Module, optimizer: Any, name: str) -> Any:
        return hvd.DistributedOptimizer(optimizer, model.named_parameters())

    def halves(model: torch.nn.Module, optimizer: Any, name: str) -> Any:
        return hvd.DistributedOptimizer(
            optimizer, model.named_parameters(), compression=hvd.Compression.fp16
        )

    def byteps(model: torch.nn.Module, optimizer: Any, name: str) -> Any:
        return bps.DistributedOptimizer(optimizer, model.named_parameters())

    own, internal = talweg.Mismatch, hvd.HorovodInternalError
    makes = ((talwegs, own), (horovods, internal), (halves, internal), (byteps, own))
    lengths = ((2, 6), (2, 7))
    for make, error in makes:
        for shapes, factor in ((SHAPES, 1), (SHAPES, 20_000), (lengths, 1), (lengths, 20_000)):
            case = f"{make.__name__} {shapes} {factor}"
            all_shapes = [(rows, columns * factor) for rows, columns in shapes]
            model = model_of(all_shapes[tw.rank()])
            plain = torch.optim.SGD(model.parameters(), lr=0.1)
            wanted = ["weight", *(str(list(shape)) for shape in all_shapes)]
            step_fails(case, error, model, make(model, plain, case), wanted)


def check_choices() -> None:
    """Ranks whose optimizers combine gradients otherwise get the error, which names the choice."""
    none, half = hvd.Compression.none, hvd.Compression.fp16
    choices: tuple[tuple[str, Any, Any, str], ...] = (
        ("op", hvd.Average, hvd.Sum, "op=sum"),
        ("compression", none, half, "compression=FP16Compressor"),
        ("gradient_predivide_factor", 1.0, 2.0, "factors 0.5 before and 2 after"),
        ("gradient_predivide_factor", 2.0, 4.0, "factors 0.25 before and 4 after"),
        ("sparse_as_dense", False, True, "sparse_as_dense=True"),
    )
    for key, *values, text in choices:
        model = model_of((2, 6))
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        keywords = {key: values[tw.rank()]}
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), **keywords)
        step_fails(key, hvd.HorovodInternalError, model, optimizer, [text])


def check_sparse_choices() -> None:
    """The same with sparse gradients, which one rank pushes as rows and the other as a whole."""
    model = torch.nn.Embedding(4, 3, sparse=True)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(
        plain, model.named_parameters(), sparse_as_dense=tw.rank() == 1
    )
    try:
        model(torch.tensor([tw.rank()])).sum().backward()
        optimizer.step()
    except hvd.HorovodInternalError as error:
        assert "sparse_as_dense=True" in str(error) and "'weight" in str(error), error
    else:
        raise AssertionError("sparse_as_dense: nobody said that the ranks differ")


def check_elastic() -> None:
    """hvd.elastic.run does not try again what no restored state makes alike."""
    calls = []

    @hvd.elastic.run
    def train(_: Any) -> None:
        calls.append(1)
        model = model_of((2, 6))
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        names = [(f"{name}.{tw.rank()}", each) for name, each in model.named_parameters()]
        optimizer = hvd.DistributedOptimizer(plain, names)
        backward(model)
        optimizer.step()

    try:
        train(hvd.elastic.ObjectState(batch=0))
    except hvd.HorovodInternalError as error:
        assert "'first.0'" in str(error) and len(calls) == 1, (calls, error)
    else:
        raise AssertionError("elastic.run: nobody said that the ranks differ")


def check_parameters() -> None:
    """Horovod's broadcast and BytePS's model raise at all ranks and name both shapes."""
    model = model_of(mine())
    try:
        hvd.broadcast_parameters(model.state_dict(), 0)
    except hvd.HorovodInternalError as error:
        assert "'weight'" in str(error) and "(2, 6)" in str(error), error
        assert "(3, 4)" in str(error), error
    else:
        raise AssertionError("broadcast_parameters: nobody said that the shapes differ")
    try:
        DistributedDataParallel(model, device_ids=None)
    except talweg.Mismatch as error:
        assert "'weight'" in str(error) and "(2, 6)" in str(error), error
        assert "(3, 4)" in str(error), error
    else:
        raise AssertionError("DistributedDataParallel: nobody said that the shapes differ")


def main() -> int:
    torch.set_num_threads(1)
    hvd.init()
    bps.init()
    check_calls()
    check_declared()
    check_optimizers()
    check_choices()
    check_sparse_choices()
    check_parameters()
    check_elastic()
    assert (tw.push_pull(torch.ones(3), "after") == 1).all()
    return 0


if __name__ == "__main__":
    sys.exit(main())
