# SPDX-License-Identifier: Apache-2.0
"""Tells the daemons what another system's variables say, where init() starts the daemons."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping

# Launchers' names for a rank's number on its host.
_LOCAL_RANKS = (
    *("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"),
    "SLURM_LOCALID",
)
# What give() has set. A later job of this process may have other values.
_given: dict[str, str] = {}


def is_first_here(environment: Mapping[str, str], own: str) -> bool:
    """Whether this process reports the variables: the node's first rank, or one without others.

    `own` is the system's own name for a rank's number on its host.
    """
    names = (own, *_LOCAL_RANKS)
    return next((environment[name] for name in names if environment.get(name)), "0") == "0"


def take_back() -> None:
    """Removes what give() has set, unless the program has changed it since."""
    for name, value in _given.items():
        if os.environ.get(name) == value:
            del os.environ[name]
    _given.clear()


def give(told: Mapping[str, str]) -> None:
    """Sets these variables for the daemons that init() starts. Variables that are set win.

    They stay set: an init() that was interrupted may start the daemons later.
    """
    for name, value in told.items():
        if name not in os.environ:
            os.environ[name] = _given[name] = value


def warn_of_running_agent(
    log: logging.Logger, names: Iterable[str], told: Mapping[str, str], launcher: str
) -> None:
    """Warns that an agent that runs already does not know the system's variables `names`, which
    stand for the agent's variables `told`. An agent's variable that is set counts as known.
    """
    lacking = [f"{name}={value}" for name, value in told.items() if name not in os.environ]
    if lacking:
        known = list(names)
        log.warning(
            "%s %s not known to this node's agent, which runs already: start the job by %s, or with "
            "%s",
            ", ".join(known),
            "is" if len(known) == 1 else "are",
            launcher,
            " ".join(lacking),
        )
