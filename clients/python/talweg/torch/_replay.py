# SPDX-License-Identifier: Apache-2.0
"""Records an optimizer's steps at one rank, and makes them again at another: a replay.Replay.

The recorder is the last of the optimizer's hooks before step(). So it sees the gradients that the
step sees (averaged, unscaled and clipped), and the current learning rates. The other rank gives its
optimizer the same gradients and rates, and calls its step without any hook.
"""

from __future__ import annotations

import contextlib
import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from talweg._collectives import objects
from talweg._elastic import stripes
from talweg._elastic.replay import Call, Snapshot
from talweg.errors import Mismatch
from talweg.torch._local_sgd import local_steps_of
from talweg.torch._optimizer import _OverlappedMethods, decides_by_loss


def _bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """Returns the bytes of a dense tensor; they are not copied if the tensor is contiguous."""
    flat = tensor.detach().contiguous().reshape(-1)
    elements: np.ndarray = flat.view(torch.uint8).numpy()
    return elements


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.is_cpu and tensor.layout is torch.strided and not tensor.is_quantized


def _hyperparameters(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]


def _set_hyperparameters(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> None:
    if len(groups) != len(optimizer.param_groups):
        raise Mismatch(
            f"Elastic: the optimizer has {len(optimizer.param_groups)} parameter groups at this rank, "
            f"and {len(groups)} in the job: start the same program at every rank"
        )
    for own, given in zip(optimizer.param_groups, groups):
        own.update(given)


@contextlib.contextmanager
def _without_hooks(optimizer: Any) -> Iterator[None]:
    names = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    hooks = {name: getattr(optimizer, name) for name in names}
    for name in names:
        setattr(optimizer, name, OrderedDict())
    try:
        yield
    finally:
        for name, each in hooks.items():
            setattr(optimizer, name, each)


class Recorder:
    """The replay.Recording of one optimizer."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        place: int,
        count: int,
        before: Callable[[], None],
    ) -> None:
        self.problem: str | None = None
        self._before = before
        self._place, self._count = place, count
        self._calls: list[Call] = []
        self._hook = optimizer.register_step_pre_hook(self._record)

    def take(self) -> list[Call]:
        calls, self._calls = self._calls, []
        return calls

    def close(self) -> None:
        self._hook.remove()
        self._calls = []

    def _record(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._before()
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [parameter.grad for parameter in parameters]
        given = [each for each in gradients if each is not None]
        if (args[1] if len(args) > 1 else kwargs.get("closure")) is not None:
            self.problem = "the optimizer's step() is given a closure"
        elif getattr(optimizer, "found_inf", None) is not None:
            self.problem = "the optimizer's step() unscales gradients itself"
        elif not all(_is_plain(each) for each in given):
            self.problem = "gradients are sparse, or on a GPU"
        elif any(g is not None and g.dtype != p.dtype for g, p in zip(gradients, parameters)):
            self.problem = "gradients have another dtype than their parameters"
        if self.problem is not None:
            return
        buffers = [_bytes_of(each) for each in given]
        total = sum(buffer.size for buffer in buffers)
        begin, end = stripes.stripe_of(total, self._place, self._count)
        header = b""
        if self._place == 0:
            has_gradient = [each is not None for each in gradients]
            header = pickle.dumps((has_gradient, _hyperparameters(optimizer)))
        self._calls.append(Call(header, total, stripes.copy_out(buffers, begin, end)))


class TorchReplay:
    """The replay.Replay of a model and its optimizer. `others` returns the State's other values."""

    def __init__(
        self,
        model: torch.nn.Module | None,
        optimizer: torch.optim.Optimizer | None,
        others: Callable[[], dict[str, Any]],
        take_others: Callable[[dict[str, Any]], None],
        pickler: type[pickle.Pickler],
        has_other_optimizers: bool = False,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._others = others
        self._take_others = take_others
        self._pickler = pickler
        self._has_other_optimizers = has_other_optimizers

    @property
    def _module(self) -> torch.nn.Module:
        assert self._model is not None
        return self._model

    @property
    def _steps(self) -> torch.optim.Optimizer:
        assert self._optimizer is not None
        return self._optimizer

    def problem(self) -> str | None:
        if self._model is None:
            return "the State has no model"
        if self._optimizer is None:
            return "the State has no optimizer"
        if decides_by_loss(self._optimizer):
            return f"{type(self._optimizer).__name__} evaluates the loss in its step()"
        if isinstance(self._optimizer, _OverlappedMethods):
            return "the optimizer's updates are made by the next forward pass (overlap_forward)"
        if local_steps_of(self._optimizer) is not None:
            return "each rank makes steps of its own (LocalSGD, DiLoCo)"
        if self._has_other_optimizers:
            return "the State has several optimizers"
        parameters = list(self._module.parameters())
        if not all(_is_plain(parameter) for parameter in parameters):
            return "parameters are on a GPU, or sparse"
        known = {id(parameter) for parameter in parameters}
        stepped = [p for group in self._optimizer.param_groups for p in group["params"]]
        if any(id(parameter) not in known for parameter in stepped):
            return "the optimizer has parameters that the model has not"
        return None

    def snapshot(self) -> Snapshot:
        parameters = {name: p.detach() for name, p in self._module.named_parameters()}
        stream, *buffers = objects.pickled(
            {"parameters": parameters, "optimizer": self._steps.state_dict()}, self._pickler
        )
        found = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
        return Snapshot(bytes(stream), found, len(found))

    def nbytes(self) -> int:
        return sum(buffer.size for buffer in TorchReplay.snapshot(self).buffers)

    def record(self, place: int, count: int, before: Callable[[], None]) -> Recorder:
        return Recorder(self._steps, place, count, before)

    def rest(self) -> Sequence[bytes | memoryview]:
        names = {name for name, _ in self._module.named_parameters(remove_duplicate=False)}
        kept = {key: each for key, each in self._module.state_dict().items() if key not in names}
        value = {"model": kept, "groups": _hyperparameters(self._steps), "others": self._others()}
        return objects.pieces_of(value, self._pickler)

    def load(self, header: bytes, buffers: list[np.ndarray]) -> None:
        given = objects.unpickled([header, *buffers])
        parameters = given["parameters"]
        own = dict(self._module.named_parameters())
        for name in [*own, *parameters]:
            mine, theirs = (
                each[name].shape if name in each else None for each in (own, parameters)
            )
            if mine != theirs:
                raise Mismatch(
                    f"Elastic: 'model.{name}' has shape {mine} at this rank, and {theirs} in the "
                    "job: start the same program at every rank"
                )
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(parameters[name])
        self._steps.load_state_dict(given["optimizer"])

    def apply(self, header: bytes, data: np.ndarray) -> None:
        has_gradient, groups = pickle.loads(header)
        optimizer = self._steps
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if len(has_gradient) != len(parameters):
            raise Mismatch(
                f"Elastic: the optimizer has {len(parameters)} parameters at this rank, and "
                f"{len(has_gradient)} in the job: start the same program at every rank"
            )
        _set_hyperparameters(optimizer, groups)
        position = 0
        for parameter, has in zip(parameters, has_gradient):
            parameter.grad = None
            if has:
                gradient = torch.empty_like(parameter, memory_format=torch.contiguous_format)
                elements = _bytes_of(gradient)
                elements[:] = data[position : position + elements.size]
                position += elements.size
                parameter.grad = gradient
        with _without_hooks(optimizer):
            type(optimizer).step(optimizer)
        for parameter in parameters:
            parameter.grad = None

    def load_rest(self, payload: memoryview) -> None:
        given = objects.from_pieces(payload)
        self._module.load_state_dict(given["model"], strict=False)
        _set_hyperparameters(self._steps, given["groups"])
        self._take_others(given["others"])
