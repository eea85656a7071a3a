# SPDX-License-Identifier: Apache-2.0
"""Reads from the launcher's variables which rank this process is, before init()."""

from __future__ import annotations

import os

__all__ = ["get_env_rank_and_size"]

_PAIRS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def get_env_rank_and_size() -> tuple[int, int]:
    """Returns the rank and the number of ranks; (0, 1) without a launcher.

    Raises RuntimeError if only one of them is set.
    """
    for pair in _PAIRS:
        given = [name for name in pair if name in os.environ]
        if len(given) == 2:
            return int(os.environ[pair[0]]), int(os.environ[pair[1]])
        if given:
            raise RuntimeError(
                f"only {given[0]} of {pair[0]} and {pair[1]} is set: set both, or neither"
            )
    return 0, 1
