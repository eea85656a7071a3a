# SPDX-License-Identifier: Apache-2.0
"""talweg.State for PyTorch: models, optimizers and their companions. See docs/elastic.md."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from talweg import _client
from talweg._collectives import objects
from talweg._digest import Hashing
from talweg._elastic.sampler import ElasticSampler
from talweg._elastic.state import State
from talweg.errors import InvalidArgument, Mismatch, Unsupported
from talweg.torch._asynchronous import is_asynchronous
from talweg.torch._local_sgd import local_steps_of
from talweg.torch._replay import TorchReplay
from talweg.torch._sharded import refuse_sharded
from talweg.torch._step_hooks import is_inner_step

# The key, in an optimizer's captured value, of the names of each parameter group's parameters. A
# rank that lacks groups adds them by these names.
_NAMES = "talweg_names"
# The key of where an optimizer with local steps agrees next. A joiner agrees with the others then.
_AGREES_AT = "talweg_agrees_at"


def _tensor_of(elements: np.ndarray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(elements).view(dtype).reshape(shape)


def _kind_of(state_dict: dict[str, Any], key: str) -> str:
    if key not in state_dict:
        return "is not there"
    value = state_dict[key]
    # A module's extra state may be any object.
    return (
        f"has shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else "is not a tensor"
    )


class _Pickler(pickle.Pickler):
    """Pickles a dense tensor as its elements, without a copy if they lie in host memory."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor or value.layout is not torch.strided:
            return NotImplemented
        if value.requires_grad or value.is_quantized:
            return NotImplemented
        host = value.resolve_conj().resolve_neg().cpu().contiguous()
        elements = host.reshape(-1).view(torch.uint8).numpy()
        return _tensor_of, (elements, value.dtype, tuple(value.shape))


class Elastic(State):
    """The values that a rank of an elastic job needs. A joiner starts with those of the others.

        state = talweg.torch.Elastic(model, optimizer, sampler=sampler, scheduler=scheduler, epoch=0)
        state.begin()

    Each value is an attribute, as `model` and `optimizer` are. A value is an object with
    state_dict() and load_state_dict(), such as a scheduler, a GradScaler or an ElasticSampler, or
    one that can be pickled, such as a number. Ranks compare digests of the model's parameters,
    which must be equal at all ranks. Buffers, such as BatchNorm's, may differ. With local steps
    (LocalSGD, DiLoCo) they compare the global parameters. Without a model ranks compare all values
    that are arrays or tensors.

    `scale="global_batch"` multiplies learning rates during each step of the optimizer. The factor
    is the number of samples in the step, divided by that of a full step of the ranks that the job
    began with. It needs a value that is an ElasticSampler.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        scale: str | None = None,
        **values: Any,
    ) -> None:
        if "apply" in values:
            raise InvalidArgument(
                "Elastic(apply=...): leave it out, because joiners apply steps with their optimizer"
            )
        if "ends_steps" in values:
            raise InvalidArgument(
                "Elastic(ends_steps=...): leave it out, and call end_step() where a step ends: after "
                "the scheduler's step, and all else that changes values of the state. A joiner gets "
                "them as they are there"
            )
        named: dict[str, Any] = dict(values) if model is None else {"model": model, **values}
        if optimizer is not None:
            named["optimizer"] = optimizer
        refuse_sharded(named)
        super().__init__(**named)
        self._sampler: ElasticSampler | None = next(self._samplers(), None)
        # It is a part of the state, so a joiner scales as the others do.
        self._values["full_step"] = 0
        if scale not in (None, "global_batch"):
            raise InvalidArgument(f"scale is {scale!r}; it is None or 'global_batch'")
        if scale and optimizer is None:
            raise InvalidArgument("Elastic(scale='global_batch') needs an optimizer")
        if scale and self._sampler is None:
            raise InvalidArgument(
                "Elastic(scale='global_batch') needs an ElasticSampler as a value"
            )
        self._rates: list[tuple[Any, Any]] = []  # Each group's, and what it is within a step.
        if scale and optimizer is not None:
            optimizer.register_step_pre_hook(lambda *_: self._scale_rates(optimizer))
            optimizer.register_step_post_hook(lambda *_: self._restore_rates(optimizer))

    def begin(self) -> bool:
        refuse_sharded(self._values)  # The program may have sharded a model since.
        if any(is_asynchronous(value) for value in self._values.values()):
            raise Unsupported(
                "an AsynchronousOptimizer in an Elastic state: a joiner would need what other ranks "
                "have under way. Use a DistributedOptimizer, LocalSGD or DiLoCo where nodes join"
            )
        # A rank that begins again, because others were lost, keeps the value of the first begin().
        if self._sampler is not None and not self._values["full_step"]:
            self._values["full_step"] = self._sampler.batch_size * _client.current().size
        return super().begin()

    @property
    def weight(self) -> float:
        """The factor for this rank's loss, which is a mean over its own samples.

        With it the ranks' average is the mean over all samples of the step. It is 1.0 if all ranks
        have the same number of samples.
        """
        return 1.0 if self._sampler is None else self._sampler.weight

    def _scale_rates(self, optimizer: torch.optim.Optimizer) -> None:
        assert self._sampler is not None
        if is_inner_step(optimizer):
            return
        self._restore_rates(optimizer)  # After a step that has raised.
        factor = self._sampler.step_samples / max(self._values["full_step"], 1)
        rates = [group["lr"] for group in optimizer.param_groups]
        self._rates = [(rate, rate * factor) for rate in rates]
        for group, (_, scaled) in zip(optimizer.param_groups, self._rates):
            group["lr"] = scaled

    def _restore_rates(self, optimizer: torch.optim.Optimizer) -> None:
        if is_inner_step(optimizer):
            return
        for group, (rate, scaled) in zip(optimizer.param_groups, self._rates):
            if group["lr"] is scaled:  # The program has not set another one.
                group["lr"] = rate
        self._rates = []

    # ----- talweg._elastic.state_rounds.StateHolder -----

    def replay(self) -> TorchReplay:
        apart = ("model", "optimizer")

        def others() -> dict[str, Any]:
            return {k: self._captured(v) for k, v in self._values.items() if k not in apart}

        def take_others(given: dict[str, Any]) -> None:
            self._take({**given, **{name: None for name in apart if name in self._values}}, apart)

        values = self._values
        return TorchReplay(
            values.get("model"),
            values.get("optimizer"),
            others,
            take_others,
            _Pickler,
            any(isinstance(v, torch.optim.Optimizer) for k, v in values.items() if k not in apart),
        )

    def pack(self) -> Sequence[bytes | memoryview]:
        values = {name: self._captured(value) for name, value in self._values.items()}
        return objects.pieces_of(values, _Pickler)

    def _captured(self, value: Any) -> Any:
        captured = super()._captured(value)
        if isinstance(value, torch.optim.Optimizer):
            names = {id(parameter): key for key, parameter in self._parameters().items()}
            groups = [[names.get(id(p)) for p in group["params"]] for group in value.param_groups]
            captured = {**captured, _NAMES: groups}
            steps = local_steps_of(value)
            return captured if steps is None else {**captured, _AGREES_AT: steps.agrees_at}
        return captured

    def _parameters(self) -> dict[str, torch.nn.Parameter]:
        """Returns the parameters of all models, by name."""
        models = {k: v for k, v in self._values.items() if isinstance(v, torch.nn.Module)}
        return {f"{k}.{name}": p for k, v in models.items() for name, p in v.named_parameters()}

    def _add_groups(
        self, name: str, own: torch.optim.Optimizer, groups: list[list[str | None]]
    ) -> None:
        """Adds the parameter groups that the other ranks have added since they began."""
        here = len(own.param_groups)
        problem = f"Elastic: '{name}' has {here} parameter groups at this rank, and {len(groups)}"
        if here > len(groups):
            raise Mismatch(
                f"{problem} in the values that it is given: call save() after add_param_group(), and "
                "start the same program at every rank"
            )
        parameters = self._parameters()
        for group in groups[here:]:
            missing = [each for each in group if each not in parameters]
            if missing:
                raise Mismatch(
                    f"{problem} in the job, with parameters that no model of the State has here "
                    f"({missing[0] or 'without a name'}): give Elastic(...) all models, and start the "
                    "same program at every rank"
                )
            own.add_param_group({"params": [parameters[each] for each in group if each]})

    def _load(self, name: str, value: Any) -> None:
        own = self._values[name]
        if isinstance(own, torch.optim.Optimizer) and isinstance(value, dict):
            self._load_optimizer(name, own, value)
        elif isinstance(own, torch.nn.Module):
            self._load_model(name, own, value)
        elif isinstance(own, torch.Tensor) and isinstance(value, torch.Tensor):
            if own.shape != value.shape or own.dtype != value.dtype:
                raise Mismatch(
                    f"Elastic: '{name}' is {own.dtype}{list(own.shape)} at this rank, and "
                    f"{value.dtype}{list(value.shape)} in the job: start the same program at "
                    "every rank"
                )
            with torch.no_grad():
                own.copy_(value)
        else:
            super()._load(name, value)

    def _load_optimizer(self, name: str, own: torch.optim.Optimizer, value: dict[str, Any]) -> None:
        value = dict(value)
        if _NAMES in value:
            self._add_groups(name, own, value.pop(_NAMES))
        agrees_at = value.pop(_AGREES_AT, None)
        super()._load(name, value)
        steps = local_steps_of(own)
        if steps is not None:
            steps.agrees_at = agrees_at

    @staticmethod
    def _load_model(name: str, own: torch.nn.Module, value: dict[str, Any]) -> None:
        here = own.state_dict()
        for key in [*here, *value]:
            mine, theirs = (_kind_of(each, key) for each in (here, value))
            if mine != theirs:
                raise Mismatch(
                    f"Elastic: '{name}.{key}' {mine} at this rank, and {theirs} in the job: start "
                    "the same program at every rank"
                )
        own.load_state_dict(value)

    def _compared(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the tensors that must be equal at all ranks, with their names."""
        if "model" in self._values:
            shared = self._shared_of_local_steps()
            for name, parameter in self._values["model"].named_parameters():
                if parameter in shared:
                    yield from ((name, each) for each in shared[parameter])
                else:
                    yield name, parameter
            return
        for name, value in sorted(self._values.items()):
            if isinstance(value, torch.Tensor) and value.layout is torch.strided:
                yield name, value.resolve_conj().resolve_neg()

    def _shared_of_local_steps(self) -> dict[torch.nn.Parameter, list[torch.Tensor]]:
        """Returns what ranks have alike of parameters that are each rank's own for some steps."""
        locals_ = [local_steps_of(value) for value in self._values.values()]
        return {
            parameter: tensors
            for each in locals_
            if each is not None
            for _, parameter, tensors in each.shared()
        }

    def _compared_bytes(self) -> Iterator[Any]:
        for name, tensor in self._compared():
            yield name.encode()
            host = tensor.detach().cpu().contiguous().reshape(-1)
            yield host.view(torch.uint8).numpy().data

    def digest(self) -> int:
        own = Hashing(self._compared_bytes()).finish()
        return own if "model" in self._values else own ^ super().digest()

    def hashing(self) -> Hashing | None:
        """Returns the Hashing of the parameters, if the optimizer's steps can be replayed.

        It ends before the optimizer's next step, because parameters stay as they are until then.
        """
        if "model" not in self._values or self.replay().problem() is not None:
            return None

        def before(*_: Any) -> None:
            hashing.finish()

        hook = self._values["optimizer"].register_step_pre_hook(before)
        hashing = Hashing(self._compared_bytes(), hook.remove)
        return hashing
