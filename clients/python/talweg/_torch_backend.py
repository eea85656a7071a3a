# SPDX-License-Identifier: Apache-2.0
"""Makes torch.distributed know the backend "talweg".

torch calls register() when it is imported, by the wheel's entry point `torch.backends`. So a
program that never imports Talweg can name the backend. Talweg itself is imported when the program
does so.
"""

from __future__ import annotations

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


def _create(options: Any, backend_options: Any) -> Any:
    from talweg.torch._group_creation import create

    return create(options, backend_options)
