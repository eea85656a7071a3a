# SPDX-License-Identifier: Apache-2.0
"""The parameters of local steps: what the ranks share of each, and how it travels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from talweg._exchange.asynchronous_arrays import BLOCK
from talweg.errors import InvalidArgument, Mismatch
from talweg.torch._checks import TAKEN_OUT_BY, has_memory
from talweg.torch._local_rule import Rule


def require_dense(caller: str, name: str, parameter: torch.Tensor) -> None:
    """Raises InvalidArgument for a parameter whose elements are elsewhere, or nowhere yet."""
    taken_out = next((way for way in TAKEN_OUT_BY if hasattr(parameter, way)), None)
    if taken_out is None and parameter.layout is torch.strided and has_memory(parameter):
        return
    raise InvalidArgument(
        f"{caller}: parameter '{name}' is a {type(parameter).__name__} of layout "
        f"{parameter.layout} on '{parameter.device}', whose elements are not there: give a model "
        "that has its dense parameters in this process"
    )


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor's elements, a complex number as two real ones."""
    tensor = tensor.detach()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


class Part:
    """A parameter, and what all ranks have alike of it: `x0`, and the outer momentum."""

    def __init__(self, name: str, parameter: torch.nn.Parameter) -> None:
        self.name = name
        self.parameter = parameter
        # None until the parameter takes part, or until the first outer step with a momentum.
        self.x0: torch.Tensor | None = None
        self.momentum: torch.Tensor | None = None
        # Whether steps have moved it since its last outer step.
        self.has_moved = False

    def __str__(self) -> str:
        """Returns the text that ranks compare."""
        dtype = str(self.parameter.dtype).replace("torch.", "")
        return f"'{self.name}' ({dtype}{list(self.parameter.shape)})"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of what ranks share."""
        is_double = self.parameter.dtype in (torch.float64, torch.complex128)
        return torch.float64 if is_double else torch.float32

    @property
    def local(self) -> torch.Tensor:
        """What this rank has: the parameter's own memory."""
        return _numbers(self.parameter)

    @property
    def shared(self) -> torch.Tensor:
        assert self.x0 is not None
        return self.x0

    @property
    def kept(self) -> list[torch.Tensor]:
        """What all ranks have alike of it."""
        return [each for each in (self.x0, self.momentum) if each is not None]

    def begin(self) -> None:
        """Takes part from now on: what the parameter is becomes the global value."""
        local = self.local
        self.x0 = torch.empty(local.shape, dtype=self.dtype, device=local.device).copy_(local)

    def difference(self, out: torch.Tensor) -> None:
        """Writes D, which is how far local steps have moved the parameter, negated."""
        x0, local = self.shared, self.local
        start = x0 if local.dtype == x0.dtype else x0.to(local.dtype).to(x0.dtype)
        out.view(x0.shape).copy_(start - local)

    def make_outer_step(self, mean: torch.Tensor, rule: Rule) -> None:
        """Changes the global value by the ranks' mean of D."""
        mean = mean.view(self.shared.shape).to(self.shared.device)
        # No multiplication is fused with an addition, so all kinds of processors have the same bits.
        if rule.outer_momentum == 0:
            self.shared.sub_(mean * rule.outer_lr)
            return
        if self.momentum is None:
            self.momentum = torch.zeros_like(self.shared)
        self.momentum.mul_(rule.outer_momentum).add_(mean)
        if rule.nesterov:
            mean = mean + rule.outer_momentum * self.momentum
        else:
            mean = self.momentum
        self.shared.sub_(mean * rule.outer_lr)

    def put(self, mix: float) -> None:
        """Gives the parameter the global value, and `mix` of what it was."""
        local = self.local
        if mix == 0:
            local.copy_(self.shared)
        else:
            local.copy_((1 - mix) * self.shared + mix * local.to(self.dtype))

    def has(self, values: torch.Tensor) -> bool:
        """Whether the parameter has these values. NaN is NaN."""
        local = self.local
        return bool(((local == values) | (local.isnan() & values.isnan())).all())

    def require_fits(self, x0: torch.Tensor | None, momentum: torch.Tensor | None) -> None:
        """Raises InvalidArgument for values of another shape."""
        for name, value in (("x0", x0), ("momentum", momentum)):
            if value is not None and value.shape != self.local.shape:
                raise InvalidArgument(
                    f"the {name} of {self} has shape {list(value.shape)} in the state that is "
                    "loaded: load the state of the same model"
                )

    def require_count(self, mean: torch.Tensor) -> None:
        """Does the same for a mean that is not applied yet."""
        if mean.numel() != self.local.numel():
            raise InvalidArgument(
                f"the mean of {self} has {mean.numel()} numbers in the state that is loaded: load "
                "the state of the same model"
            )

    def load(self, x0: torch.Tensor | None, momentum: torch.Tensor | None) -> None:
        device, kind = self.local.device, self.dtype
        self.x0, self.momentum = (
            None if value is None else value.detach().to(device, kind, copy=True)
            for value in (x0, momentum)
        )


class Fragment:
    """Parameters that are sent together. `moved`: whether one may differ from its global value."""

    def __init__(self, number: int, parts: Sequence[Part]) -> None:
        self.number = number
        self.parts = list(parts)
        self.moved = False
        self._buffer = torch.empty(0)
        self._buffer_of: list[Part] = []

    def note_step(self) -> None:
        self.moved = True
        for part in self.parts:
            part.has_moved = part.has_moved or part.parameter.requires_grad

    def travelling(self) -> list[Part]:
        """Returns the parameters that take part and are trained. One that is frozen travels once
        more if it has moved. An outer step without a difference would move it by its momentum.
        """
        return [
            part for part in self.taking_part() if part.has_moved or part.parameter.requires_grad
        ]

    def taking_part(self) -> list[Part]:
        """Returns the parameters that have a global value."""
        return [part for part in self.parts if part.x0 is not None]

    def buffer(self, parts: list[Part]) -> torch.Tensor:
        """Returns memory for what travels of `parts`. It is the same from one time to the next."""
        if self._buffer_of != parts:
            self._buffer = zeros_for(parts, parts[0].parameter.device)
            self._buffer_of = list(parts)
        return self._buffer


def zeros_for(parts: Sequence[Part], device: torch.device | str) -> torch.Tensor:
    """Returns memory in which each part has its place: see slices_of()."""
    length = sum(-(-part.local.numel() // BLOCK) * BLOCK for part in parts)
    is_double = any(part.dtype is torch.float64 for part in parts)
    dtype = torch.float64 if is_double else torch.float32
    return torch.zeros(length, dtype=dtype, device=device)


def slices_of(parts: Iterable[Part], buffer: torch.Tensor) -> Iterator[tuple[Part, torch.Tensor]]:
    """Yields each part with its elements in the buffer."""
    begin = 0
    for part in parts:
        length = part.local.numel()
        yield part, buffer[begin : begin + length]
        begin += -(-length // BLOCK) * BLOCK


# ----- What travels as it is, beside the differences -----


def buffers_of(model: torch.nn.Module) -> list[torch.Tensor]:
    """Returns the floating-point buffers of the model's state_dict()."""
    kept = model.state_dict(keep_vars=True)
    return [
        each
        for name, each in model.named_buffers()
        if name in kept and (each.is_floating_point() or each.is_complex()) and each.numel() > 0
    ]


# A tensor of the optimizer's state: the number of its parameter among the parts, and its key.
_Place = tuple[int, str]


def state_of(optimizer: torch.optim.Optimizer, parts: Iterable[Part]) -> dict[_Place, torch.Tensor]:
    """Returns the floating-point tensors, of one or more dimensions, that the optimizer keeps."""
    found: dict[_Place, torch.Tensor] = {}
    for number, part in enumerate(parts):
        kept: dict[str, Any] = optimizer.state.get(part.parameter, {})
        for key in sorted(kept):
            value = kept[key]
            if isinstance(value, torch.Tensor) and value.dim() > 0 and value.numel() > 0:
                if value.is_floating_point() or value.is_complex():
                    found[number, key] = value
    return found


class Others:
    """The tensors that become their means: buffers, and tensors of the optimizer's state.

    A rank may lack some of the state, as of a parameter that it has not used yet. Then a tensor
    becomes the mean of the ranks that have it.
    """

    def __init__(
        self, buffers: Sequence[torch.Tensor], state: dict[_Place, torch.Tensor], parts: list[Part]
    ) -> None:
        self.buffers = list(buffers)
        self._parts = parts
        self._state = state
        self.layout = {place: tuple(_numbers(each).shape) for place, each in state.items()}
        self._is_alike = True  # All ranks have the same of the state.

    def complete(
        self, told: Sequence[tuple[int, dict[_Place, tuple[int, ...]]]], title: str
    ) -> None:
        """Takes what each rank has of the state. Raises Mismatch if shapes differ."""
        self._is_alike = False
        whole: dict[_Place, tuple[int, tuple[int, ...]]] = {}
        for rank, layout in told:
            for place, shape in layout.items():
                first, known = whole.setdefault(place, (rank, shape))
                if known != shape:
                    number, key = place
                    raise Mismatch(
                        f"{title}: the optimizer's '{key}' of {self._parts[number]} has shape "
                        f"{list(known)} at rank {first}, and {list(shape)} at rank {rank}: use the "
                        "same optimizer at all ranks, or leave out average_state"
                    )
        self.layout = {place: whole[place][1] for place in sorted(whole)}

    def numbers(self) -> torch.Tensor:
        """Returns what travels: the numbers, and which tensors this rank has, if ranks differ."""
        missing = {
            place: torch.zeros(shape, dtype=torch.float64)
            for place, shape in self.layout.items()
            if place not in self._state
        }
        tensors = [*self.buffers, *(self._state.get(p, missing.get(p)) for p in self.layout)]
        numbers = gathered(each for each in tensors if each is not None)
        if self._is_alike:
            return numbers
        has = [float(place in self._state) for place in self.layout]
        return torch.cat((numbers, torch.tensor(has, dtype=torch.float64)))

    def put(self, means: torch.Tensor, mix: float) -> None:
        """Gives the tensors the means, and `mix` of what they were."""
        begin = sum(_numbers(each).numel() for each in self.buffers)
        put_back(self.buffers, means[:begin], mix)
        shares = means[means.numel() - len(self.layout) :]
        for number, (place, shape) in enumerate(self.layout.items()):
            end = begin + math.prod(shape)
            mean = means[begin:end]
            begin = end
            if place in self._state:
                put_back(
                    [self._state[place]], mean if self._is_alike else mean / shares[number], mix
                )


def gathered(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Returns the tensors' numbers, one after another, as f64, which no encoding rounds."""
    flat = [_numbers(each).to("cpu", torch.float64).reshape(-1) for each in tensors]
    return torch.cat(flat) if flat else torch.empty(0, dtype=torch.float64)


def put_back(tensors: Iterable[torch.Tensor], means: torch.Tensor, mix: float) -> None:
    """Gives the tensors the means, and `mix` of what they were."""
    begin = 0
    for each in tensors:
        local = _numbers(each)
        mean = means[begin : begin + local.numel()].view(local.shape).to(local.device)
        begin += local.numel()
        local.copy_(mean if mix == 0 else (1 - mix) * mean + mix * local.to(torch.float64))
