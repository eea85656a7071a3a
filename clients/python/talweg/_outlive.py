# SPDX-License-Identifier: Apache-2.0
"""A rank that outlives its agent: docs/elastic.md says which states it goes through."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from pathlib import Path

from talweg import _client
from talweg._agents import connect_again
from talweg._client import Client
from talweg.errors import AgentLost, InvalidArgument, TalwegError

_WAIT_S = 300.0
_WAIT_VARIABLE = "TALWEG_AGENT_WAIT_S"
# A file that says to `talweg run` that this rank waits for its agent's successor.
_MARK_VARIABLE = "TALWEG_RUN_OUTLIVES"


def agent_is_lost() -> bool:
    """Whether this process is a rank whose agent is gone, or is stopped."""
    if not _client.is_connected():
        return False
    try:
        _client.current().connection.check_health()
    except AgentLost:
        return True
    except TalwegError:
        pass
    return False


def _wait_s(told: float | None) -> float:
    text = os.environ.get(_WAIT_VARIABLE, "")
    name, value = _WAIT_VARIABLE, text or _WAIT_S
    if told is not None:
        name, value = "agent_wait_s", told
    try:
        wait_s = float(value)
    except ValueError:
        wait_s = -1.0
    if not 0 <= wait_s <= 1e8:
        raise InvalidArgument(f"{name} is '{value}'; it is a number of seconds, as 300")
    return wait_s


def rejoin(agent_wait_s: float | None = None) -> None:
    """Attaches this rank again, when its agent is lost: to the one that takes its place.

    Waits for that one, and for the end of the other ranks' step, at most `agent_wait_s` (else
    TALWEG_AGENT_WAIT_S, else 300 s), then raises AgentLost. Then this rank is a joiner: begin() of a
    State, or enter(), comes next. State.run() does all that.
    """
    wait_s = _wait_s(agent_wait_s)
    if not agent_is_lost():
        raise InvalidArgument(
            "rejoin(): this rank's agent is not lost; call it when a call has raised AgentLost"
        )

    def attach_again(lost: Client) -> Client:
        if lost.agent_socket is None:
            raise AgentLost(
                "this rank's agent is lost, and init() started it, so nobody starts it again: start "
                "the program by `talweg run`, or give it the socket of an agent that a service "
                "manager keeps"
            )
        while True:
            connection = connect_again(lost.agent_socket, lost.local_rank, wait_s)
            try:
                client = Client(lost.agent_socket, alone=False, connection=connection)
            except AgentLost:  # That one as well.
                connection.retire()
                continue
            client.membership.follow_on(lost.membership)
            return client

    _client.replace(attach_again)
    gc.collect()  # The lost client, whose memory is as much as the next one's, is in cycles.


@contextlib.contextmanager
def outliving() -> Iterator[None]:
    """Within it this rank goes on when its agent is lost: `talweg run` does not end it then."""
    mark = os.environ.get(_MARK_VARIABLE)
    if mark:
        Path(mark).touch()
    try:
        yield
    finally:
        if mark:
            Path(mark).unlink(missing_ok=True)
