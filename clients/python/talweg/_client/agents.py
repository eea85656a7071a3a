# SPDX-License-Identifier: Apache-2.0
"""Connects to this node's agent: for the first time, or again."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping

from talweg._library import native
from talweg.errors import AgentLost, InvalidArgument, JobFailed, Timeout

# Launchers give a process its place on the node in variables with names of their own.
_LOCAL_RANK_VARIABLES = (
    "TALWEG_LOCAL_RANK",
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "SLURM_LOCALID",
    "BYTEPS_LOCAL_RANK",
)
_PAUSE_S = 0.05


def local_rank_from_environment(environment: Mapping[str, str]) -> int | None:
    """Returns the local rank that talweg run, torchrun, mpirun or srun gave, or None."""
    for variable in _LOCAL_RANK_VARIABLES:
        text = environment.get(variable)
        if not text:
            continue
        if re.fullmatch("[0-9]{1,9}", text) is None:
            raise InvalidArgument(
                f"{variable} is '{text}', which is not a local rank: unset it or set it to 0, 1, ..."
            )
        return int(text)
    return None


# Whether this process has left a job and knows of no agent that was started after that.
_has_left = False


def note_left() -> None:
    """Notes that this process leaves a job: the node's next agent may not be there yet."""
    global _has_left
    _has_left = True


def note_started() -> None:
    """Notes that the node's agent has been started for this process's next job."""
    global _has_left
    _has_left = False


def connect_to_agent(agent_socket: str | None, timeout_s: float) -> native.Connection:
    """Returns a connection to the node's agent.

    An agent serves one job. A process that has left a job waits for that job's agent to end, which
    needs the goodbyes of the node's other ranks, and then for the next agent. It does not wait if
    it knows that the next agent is there.
    """
    local_rank = local_rank_from_environment(os.environ)
    end = time.monotonic() + timeout_s
    left_s = timeout_s
    while True:
        try:
            return native.Connection(agent_socket, local_rank, left_s, standby=True)
        except (AgentLost, JobFailed):
            left_s = end - time.monotonic() - _PAUSE_S
            if not _has_left or left_s <= 0:
                raise
        time.sleep(_PAUSE_S)


def connect_again(
    agent_socket: str, local_rank: int, wait_s: float, check: Callable[[], None]
) -> native.Connection:
    """Returns a connection to the agent that replaces a lost one.

    The lost agent may still refuse ranks, or accept connections and not answer. `check` raises if
    no agent will replace it.
    """
    end = time.monotonic() + wait_s
    while True:
        check()
        left_s = max(0.0, end - time.monotonic())
        try:
            return native.Connection(agent_socket, local_rank, left_s, standby=True)
        except (AgentLost, JobFailed, Timeout) as failure:
            if time.monotonic() + _PAUSE_S >= end:
                raise AgentLost(
                    f"no agent has taken this rank in again within {wait_s:g} s (agent_wait_s, or "
                    f"TALWEG_AGENT_WAIT_S): {failure}; start the node's agent again, as `talweg "
                    "run --restarts` does, or wait for longer"
                ) from failure
        time.sleep(_PAUSE_S)
