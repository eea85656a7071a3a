# SPDX-License-Identifier: Apache-2.0
"""Runs cases with Gloo and with Talweg in the same ranks, and compares their results."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

_TIMEOUT = timedelta(seconds=120)


def _compare(case: str, found: Any, expected: Any, tolerance: float) -> None:
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype, case
        torch.testing.assert_close(
            found,
            expected,
            rtol=tolerance,
            atol=tolerance,
            equal_nan=True,
            msg=lambda text: f"{case}: {text}",
        )
    elif isinstance(expected, Mapping):
        assert found.keys() == expected.keys(), (case, found.keys(), expected.keys())
        for key in expected:
            _compare(f"{case}[{key!r}]", found[key], expected[key], tolerance)
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), (case, found, expected)
        for at, (one, other) in enumerate(zip(found, expected)):
            _compare(f"{case}[{at}]", one, other, tolerance)
    else:
        assert found == expected, (case, found, expected)


def each_backend(
    cases: Mapping[str, Callable[[int, int], Any]],
    tolerance: float = 1e-6,
    tolerances: Mapping[str, float] | None = None,
) -> None:
    """Runs each case with both backends.

    Raises AssertionError with the case's name if results differ. `tolerances` has the tolerances of
    cases that need their own.
    """
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, size, rank == 0, _TIMEOUT)
    found: dict[str, dict[str, Any]] = {}
    for backend in ("gloo", "talweg"):
        if backend == "talweg":
            import talweg.torch  # noqa: F401 - It makes the backend known.
        own = dist.PrefixStore(backend, store)
        dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=_TIMEOUT)
        assert dist.get_backend() == backend
        for name, run in cases.items():
            torch.manual_seed(7)
            print(f"{name} over {backend}", flush=True)
            found.setdefault(backend, {})[name] = run(rank, size)
        dist.destroy_process_group()
    for name in cases:
        _compare(
            name,
            found["talweg"][name],
            found["gloo"][name],
            (tolerances or {}).get(name, tolerance),
        )
    # Rank 0 has the store, so no rank leaves before all have finished.
    store.set(f"done.{rank}", "")
    if rank == 0:
        store.wait([f"done.{other}" for other in range(size)], _TIMEOUT)
    print(f"rank {rank}: {len(cases)} cases alike")
