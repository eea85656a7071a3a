# SPDX-License-Identifier: Apache-2.0
"""One rank of ddp_test.py. It compares DistributedDataParallel with Talweg's hook and with Gloo."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import re
import sys
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any
from unittest import mock

import talweg
import talweg.torch as tw
import torch
import torch.distributed as dist
from expected_errors import expect
from talweg._library import native
from talweg.torch import _buckets, _ddp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

# Options of DDP. Over a static graph the first pass reduces its buckets when it has ended. A bucket
# without used parameters is reduced before backward begins.
_MANNERS: tuple[dict[str, bool], ...] = (
    {},
    {"gradient_as_bucket_view": True},
    {"static_graph": True},
    {"find_unused_parameters": True, "gradient_as_bucket_view": True},
)


class _Model(nn.Module):
    """A model of three layers. A pass may leave out the second one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(20, 300)
        self.second = nn.Linear(300, 300)
        self.third = nn.Linear(300, 5)

    def forward(self, x: torch.Tensor, whole: bool) -> torch.Tensor:
        x = torch.relu(self.first(x))
        if whole:
            x = torch.relu(self.second(x))
        return self.third(x)


def train(hook: bool, name: str, manner: dict[str, bool]) -> torch.Tensor:
    torch.manual_seed(0)
    inner = _Model()
    model = DistributedDataParallel(inner, bucket_cap_mb=0.1, **manner)
    if hook:
        model.register_comm_hook(name, tw.ddp_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(10):
        torch.manual_seed(step * 10 + dist.get_rank())
        optimizer.zero_grad()
        whole = step % 2 == 0 or "find_unused_parameters" not in manner
        model(torch.randn(8, 20), whole).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in inner.parameters()])


def check(name: str, manner: dict[str, bool]) -> None:
    ours, theirs = train(True, name, manner), train(False, name, manner)
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6), (name, (ours - theirs).abs().max())
    everyone = tw.all_gather_object(ours.numpy().tobytes())
    assert all(other == everyone[0] for other in everyone), name


class _Bucket:
    """The part of DDP's bucket that the hook needs."""

    def __init__(self) -> None:
        self._tensor = torch.full((4,), float(tw.rank()))

    def buffer(self) -> torch.Tensor:
        return self._tensor

    def index(self) -> int:
        return 0

    def parameters(self) -> list[torch.Tensor]:
        return [self._tensor]


def check_after_failed_backward() -> None:
    """A bucket that was pushed before backward failed does not disturb later passes."""
    futures: list[torch.futures.Future[torch.Tensor]] = []
    for fails in (True, False):
        weight = nn.Parameter(torch.ones(4))
        bucket: Any = _Bucket()

        def hook(_: torch.Tensor, bucket: Any = bucket, fails: bool = fails) -> None:
            futures.append(tw.ddp_hook("failed", bucket))
            if fails:
                raise ArithmeticError("on purpose")

        weight.register_post_accumulate_grad_hook(hook)
        try:
            weight.sum().backward()
            assert not fails
        except ArithmeticError:
            assert fails
    for future in futures:
        assert torch.equal(future.wait(), torch.full((4,), (tw.size() - 1) / 2)), future.wait()


def check_errors_of_rounds(left: bool, manner: dict[str, bool]) -> None:
    """Backward raises a round's error, and the next step works."""
    torch.manual_seed(0)
    inner = _Model()
    model = DistributedDataParallel(inner, bucket_cap_mb=0.1, **manner)
    model.register_comm_hook(f"errors.{left}.{manner}", tw.ddp_hook)
    real = _ddp.finish

    def fail(*arguments: Any) -> torch.Tensor:
        real(*arguments)
        raise talweg.Aborted("on purpose")

    for step in range(4):
        inner.zero_grad()
        whole = "find_unused_parameters" not in manner
        with mock.patch.object(_ddp, "finish", fail if step in (0, 2) else real):
            loss = model(torch.full((8, 20), float(tw.rank() + step)), whole).square().mean()
            try:
                loss.backward()
                assert step in (1, 3)
            except talweg.Aborted as error:
                assert step in (0, 2) and str(error) == "on purpose"
        if step in (1, 3):
            gradients = [p.grad.numpy().tobytes() for p in inner.parameters() if p.grad is not None]
            everyone = tw.all_gather_object(gradients)
            assert all(other == everyone[0] for other in everyone)


class _Two(nn.Module):
    def __init__(self, shape: tuple[int, int]) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones(shape))
        self.two = nn.Parameter(torch.ones(5))

    def forward(self, factor: torch.Tensor) -> torch.Tensor:
        return factor * (self.one.sum() + self.two.sum())


def check_shapes(columns: int) -> None:
    """Each rank has its own process group, so torch does not compare shapes."""
    own = (3, 2 * columns) if tw.rank() == 1 else (2, 3 * columns)
    alone = dist.new_subgroups_by_enumeration([[rank] for rank in range(tw.size())])[0]
    words = rf"of shape \[2, {3 * columns}\] at rank 0, but of shape \[3, {2 * columns}\] at rank 1"
    for differs in (True, True, False, False):
        inner = _Two(own if differs else (6, columns))
        model = DistributedDataParallel(inner, process_group=alone)
        model.register_comm_hook(f"shapes.{columns}", tw.ddp_hook)
        for _ in range(3):
            inner.zero_grad()
            loss = model(torch.tensor(float(tw.rank())))
            try:
                loss.backward()
                assert not differs, "nobody said that the shapes differ"
            except talweg.Mismatch as error:
                assert differs and re.search(words, str(error)), error
            else:
                for parameter in inner.parameters():
                    assert parameter.grad.eq((tw.size() - 1) / 2).all()


def check_states_that_are_none() -> None:
    for state in (dist.group.WORLD, 7, object()):
        model = DistributedDataParallel(nn.Linear(2, 2))
        model.register_comm_hook(state, tw.ddp_hook)
        expect(
            talweg.InvalidArgument,
            f"state is a {type(state).__name__}; register it with None",
            lambda model=model: model(torch.ones(2)).sum().backward(),
        )


class _Trainer:
    """A model whose gradients lie in the memory of its buckets."""

    def __init__(self, name: str | None, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.inner = _Model()
        self._model = DistributedDataParallel(self.inner, gradient_as_bucket_view=True)
        if name is not None:
            self._model.register_comm_hook(name, tw.ddp_hook)
        self._optimizer = torch.optim.SGD(self.inner.parameters(), lr=0.05, momentum=0.9)
        self._step = 0

    def step(self) -> None:
        self._step += 1
        torch.manual_seed(self._step * 10 + dist.get_rank())
        self._optimizer.zero_grad()
        self._model(torch.randn(8, 20), True).square().mean().backward()
        self._optimizer.step()

    def gradients(self) -> torch.Tensor:
        each = [parameter.grad for parameter in self.inner.parameters()]
        return torch.cat([torch.zeros(0), *(grad.flatten() for grad in each if grad is not None)])

    def check_same(self, other: _Trainer) -> None:
        ours, theirs = (
            torch.cat([p.detach().flatten() for p in each.inner.parameters()])
            for each in (self, other)
        )
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6), (ours - theirs).abs().max()


@contextlib.contextmanager
def _counting(method: str) -> Iterator[list[int]]:
    """A context that lists the addresses or tensors with which a connection's method is called."""
    calls: list[int] = []
    real = getattr(native.Connection, method)

    def count(connection: Any, *arguments: int) -> None:
        real(connection, *arguments)
        calls.append(arguments[-1])

    with mock.patch.object(native.Connection, method, count):
        yield calls


def check_where_buckets_lie() -> None:
    """From the third step on gradients are summed in the buckets' own memory, over nodes too."""
    ours, theirs = _Trainer("where"), _Trainer(None)
    with _counting("attach") as places:
        for step in range(6):
            ours.step()
            theirs.step()
            assert len(places) == 1 or step < 2, (step, places)
    first: Any = ours.inner.third.bias.grad
    assert first.untyped_storage().data_ptr() == places[0]
    ours.check_same(theirs)


def check_two_models_of_one_name() -> None:
    """Rounds of one model do not write to the other's gradients. In turn each keeps its memory."""
    ours = [_Trainer("same", seed) for seed in range(2)]
    theirs = [_Trainer(None, seed) for seed in range(2)]
    with _counting("attach") as places, _counting("detach") as given_back:
        for turn in (0, 0, 0, 1, 1, 1, 0, 1, 0, 0, 0, 1, 1, 1):
            ours[turn].step()
            theirs[turn].step()
            for mine, other in zip(ours, theirs):
                assert torch.allclose(mine.gradients(), other.gradients(), rtol=1e-4, atol=1e-6)
    assert len(places) == len(given_back) == _buckets._PLACES_MAX, (places, given_back)
    for mine, other in zip(ours, theirs):
        mine.check_same(other)


def check_a_gradient_for_another_process() -> None:
    ours, theirs = _Trainer("sent"), _Trainer(None)
    for _ in range(4):
        ours.step()
        theirs.step()
    with _counting("detach") as given_back:
        sent = pickle.loads(bytes(ForkingPickler.dumps(ours.inner.second.weight.grad)))
        assert len(given_back) == 1
    assert torch.equal(sent, ours.inner.second.weight.grad)
    sent[0] += 1  # A process that torch shares the tensor with has the same memory.
    assert torch.equal(sent, ours.inner.second.weight.grad)
    with _counting("attach") as places:
        for _ in range(4):
            ours.step()
            theirs.step()
    assert not places
    assert torch.equal(sent, ours.inner.second.weight.grad)
    ours.check_same(theirs)


def check_buckets_that_stay_where_they_are() -> None:
    full = os.statvfs_result((4096, 4096, 9, 0, 0, 9, 9, 9, 0, 255))
    for name, patch in (
        ("full", mock.patch.object(os, "statvfs", lambda path: full)),
        ("strategy", mock.patch.object(torch.multiprocessing, "get_sharing_strategy", str)),
        ("viewed", contextlib.nullcontext()),
    ):
        ours, theirs = _Trainer(name), _Trainer(None)
        views: list[Any] = []
        with patch, _counting("attach") as places:
            for _ in range(5):
                ours.step()
                theirs.step()
                gradient: Any = ours.inner.second.weight.grad
                if name == "viewed":
                    views.append(gradient.numpy())
        assert not places, name
        assert all((view == gradient.numpy()).all() for view in views[2:])
        ours.check_same(theirs)


def check_over_a_goodbye() -> None:
    """After shutdown() gradients have their own memory, and the next client takes them there."""
    ours, theirs = _Trainer("life"), _Trainer(None)
    for _ in range(4):
        ours.step()
        theirs.step()
    before = ours.gradients().clone()
    with _counting("detach") as given_back:
        tw.shutdown()
        assert given_back
    assert torch.equal(ours.gradients(), before)
    tw.init()
    with _counting("attach") as places:
        for _ in range(4):
            ours.step()
            theirs.step()
    assert len(places) == 1, places
    ours.check_same(theirs)


def main() -> int:
    torch.set_num_threads(1)
    tw.init()
    dist.init_process_group("gloo")  # The variables of `talweg run` tell its place.
    assert (dist.get_rank(), dist.get_world_size()) == (tw.rank(), tw.size())
    for number, (manner, left) in enumerate(itertools.product(_MANNERS, (False, True))):
        with (
            mock.patch.object(_ddp, "_completer", None),
            mock.patch.object(_ddp, "cpus_are_left", lambda client, left=left: left),
        ):
            check(f"model{number}", manner)
            if not left:
                check_after_failed_backward()
            check_errors_of_rounds(left, manner)
    check_states_that_are_none()
    for columns in (1, 20_000):
        check_shapes(columns)
    check_where_buckets_lie()
    if "one_node" in sys.argv[1:]:
        check_two_models_of_one_name()
        check_a_gradient_for_another_process()
        check_buckets_that_stay_where_they_are()
        check_over_a_goodbye()
    dist.destroy_process_group()
    tw.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
