# SPDX-License-Identifier: Apache-2.0
"""Makes torch.distributed know the backend "talweg", and how its ranks meet under mpirun and srun.

torch calls register() when it is imported, by the wheel's entry point `torch.backends`. So a
program that never imports Talweg can name the backend. Talweg itself is imported when the program
does so.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any


def register() -> None:
    """A second call does nothing."""
    import torch
    import torch.distributed as dist

    if not dist.is_available() or hasattr(dist.Backend, "TALWEG"):
        return
    # torch takes any device of the list but the CPU for one that is there.
    devices = ["cpu", "cuda"] if torch.backends.cuda.is_built() else ["cpu"]
    dist.Backend.register_backend("talweg", _create, extended_api=True, devices=devices)
    _add_launchers()


def _create(options: Any, backend_options: Any) -> Any:
    from talweg.torch._group_creation import create

    return create(options, backend_options)


# ----- Ranks whose launcher sets none of torch's variables -----


def _add_launchers() -> None:
    """Has `env://`, torch's default, ask Talweg where the launcher tells torch nothing.

    torch has no public way to do this: a program names no other method than the default.
    """
    # The package has a function of the module's name.
    module = importlib.import_module("torch.distributed.rendezvous")
    handlers = getattr(module, "_rendezvous_handlers", {})
    if "env" in handlers:
        handlers["env"] = _EnvOrLauncher(handlers["env"])


class _EnvOrLauncher:
    """torch's handler of `env://`. Talweg's takes its place if all of this is so: the group has the
    backend talweg, the program and the environment tell no rank and no size, and mpirun or srun has
    started the process.
    """

    def __init__(self, torchs: Callable[..., Iterator[Any]]) -> None:
        self._torchs = torchs

    def __call__(self, url: str, **kwargs: Any) -> Iterator[Any]:
        told = any(os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        if told or "rank=" in url or "world_size=" in url or not _is_for_talweg():
            return self._torchs(url, **kwargs)
        from talweg._node import launchers

        if launchers.find(os.environ) is None:
            return self._torchs(url, **kwargs)
        from talweg.torch._rendezvous import meet

        return meet(self._torchs, url, **kwargs)


def _is_for_talweg() -> bool:
    """Whether init_process_group() has been called with the backend. torch does not tell handlers,
    so this reads its local variable in the stack.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "init_process_group" and "backend" in frame.f_locals:
            return "talweg" in str(frame.f_locals["backend"])
        frame = frame.f_back
    return False
