# SPDX-License-Identifier: Apache-2.0
"""hvd.elastic.TorchState, made of talweg.torch.Elastic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import torch

import talweg
from talweg.errors import Unsupported
from talweg.horovod.common import elastic as _elastic
from talweg.horovod.torch.elastic.sampler import ElasticSampler
from talweg.torch._elastic import Elastic

__all__ = ["StateHandler", "TorchState", "get_handler_registry", "set_handler_registry"]


class _Shared(_elastic.Shared, Elastic):
    def __init__(self, owner: _elastic.State, values: Mapping[str, Any]) -> None:
        _elastic.Shared.__init__(self, owner, values)
        self._sampler = None

    def begin(self) -> bool:
        return talweg.State.begin(self)

    def digest(self) -> int:
        return Elastic.digest(self) if "model" in self._values else 0

    def replay(self) -> Any:
        return Elastic.replay(self) if "model" in self._values else None


class TorchState(_elastic.State):
    """The State of a model, an optimizer, samplers and other values."""

    _kind = _Shared

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        named = {"model": model, "optimizer": optimizer}
        given = {name: value for name, value in named.items() if value is not None}
        super().__init__(**given, **kwargs)
        for name in named:
            if name not in given:
                setattr(self, name, None)

    def reset(self) -> None:
        for value in self._shared.values.values():
            if isinstance(value, ElasticSampler):
                value.reset()

    def sync(self) -> None:
        super().sync()
        self.reset()


def _refuse_handlers(what: str) -> NoReturn:
    raise Unsupported(
        f"{what}: handlers of a TorchState's values are not offered by Talweg: give the value's class "
        "state_dict() and load_state_dict(), which carry it"
    )


class StateHandler:
    """Horovod's base of handlers. Talweg has none: a subclass raises Unsupported."""

    def __init_subclass__(cls) -> None:
        _refuse_handlers(f"class {cls.__name__}(StateHandler)")


def get_handler_registry() -> NoReturn:
    _refuse_handlers("get_handler_registry()")


def set_handler_registry(registry: Any) -> NoReturn:
    _refuse_handlers("set_handler_registry()")
