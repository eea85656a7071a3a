# SPDX-License-Identifier: Apache-2.0
"""What a launcher has told of this process's place, before init()."""

from __future__ import annotations

import os

__all__ = ["get_env_rank_and_size"]

_PAIRS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def get_env_rank_and_size() -> tuple[int, int]:
    """The rank and the number of ranks; 0 and 1 without a launcher.

    RuntimeError where a launcher has told only one of them.
    """
    for pair in _PAIRS:
        given = [name for name in pair if name in os.environ]
        if len(given) == 2:
            return int(os.environ[pair[0]]), int(os.environ[pair[1]])
        if given:
            raise RuntimeError(
                f"{given[0]} is set, and of {pair[0]} and {pair[1]} the other is not: set both or none"
            )
    return 0, 1
