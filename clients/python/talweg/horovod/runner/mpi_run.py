# SPDX-License-Identifier: Apache-2.0
"""Horovod's launch by mpirun. Talweg runs without MPI, and mpirun can start its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from talweg.horovod._absent import not_offered

__all__ = ["mpi_available", "mpi_run"]

# Horovod's names for implementations of MPI.
_OMPI_IMPL = "OpenMPI"
_SMPI_IMPL = "SpectrumMPI"
_MPICH_IMPL = "MPICH"
_IMPI_IMPL = "IntelMPI"
_UNKNOWN_IMPL = "Unknown"
_MISSING_IMPL = "Missing"
# With so many hosts Horovod passes other options to mpirun.
_LARGE_CLUSTER_THRESHOLD = 64


def mpi_available(env: Mapping[str, str] | None = None) -> bool:
    """Returns False: no job needs MPI."""
    return False


def is_open_mpi(env: Mapping[str, str] | None = None) -> bool:
    return False


def is_spectrum_mpi(env: Mapping[str, str] | None = None) -> bool:
    return False


def is_mpich(env: Mapping[str, str] | None = None) -> bool:
    return False


def is_intel_mpi(env: Mapping[str, str] | None = None) -> bool:
    return False


def _get_mpi_implementation(env: Mapping[str, str] | None = None) -> str:
    """Returns that none is used."""
    return _MISSING_IMPL


def _get_mpi_implementation_flags(
    tcp_flag: bool | None, env: Mapping[str, str] | None = None
) -> tuple[None, None, None]:
    return None, None, None


def mpi_run(*_: Any, **__: Any) -> NoReturn:
    raise not_offered(
        "horovod.runner.mpi_run.mpi_run()",
        "let horovodrun or gloo_run.gloo_run() start the ranks, or mpirun itself, whose variables "
        "init() reads",
    )
