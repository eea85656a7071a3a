# SPDX-License-Identifier: Apache-2.0
"""Lets a rank outlive its agent. docs/elastic.md has the states that it goes through."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from pathlib import Path

from talweg import _call_site, _client
from talweg._client import Client
from talweg._client.agents import connect_again
from talweg._elastic.membership import membership_of
from talweg.errors import Aborted, AgentLost, InvalidArgument, TalwegError

_WAIT_S = 300.0
_WAIT_VARIABLE = "TALWEG_AGENT_WAIT_S"
# It names a file, which tells `talweg run` that this rank goes on if its agent is lost. The file has
# a word when the rank has been in the job.
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


def job_is_over() -> bool:
    """Whether this rank's job has failed, so no call can succeed any more."""
    if not _client.is_connected():
        return False
    try:
        _client.current().connection.check_health()
    except AgentLost:
        return False
    except TalwegError:
        return True
    return False


def is_given_up(error: BaseException) -> bool:
    """Whether `error` says that all ranks gave a round up because one of them is gone."""
    if not _client.is_connected() or not membership_of(_client.current()).is_behind:
        return False
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        # TensorFlow's Python functions keep only the text of an error.
        if isinstance(cause, Aborted) or f"{Aborted.__name__}: " in str(cause):
            return True
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__
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
    """Attaches this rank, whose agent is lost, to the agent that takes its place.

    Waits for that agent, and for the end of the other ranks' step, at most `agent_wait_s` (else
    TALWEG_AGENT_WAIT_S, else 300 s). After that it raises AgentLost. This rank is a joiner then, so
    the program next calls begin() of a State, or enter(). State.run() does all that.
    """
    wait_s = _wait_s(agent_wait_s)
    if not agent_is_lost():
        raise InvalidArgument(
            "rejoin(): this rank's agent is not lost; call it when a call has raised AgentLost"
        )

    def attach_again(lost: Client) -> Client:
        assert lost.agent_socket is not None
        attachment = lost.attachment
        if attachment is not None:
            if not lost.nodes_change and lost.size > lost.local_size:
                raise AgentLost(
                    "this rank's agent is lost, and with it the job: its loss_policy is fail_job. Set "
                    "TALWEG_LOSS_POLICY=continue at all ranks, and init() has the agent started again"
                )
            attachment.ask_for_agent()
        while True:
            connection = connect_again(
                lost.agent_socket,
                lost.local_rank,
                wait_s,
                attachment.check_agent_comes if attachment is not None else lambda: None,
            )
            try:
                client = Client(
                    lost.agent_socket, alone=False, connection=connection, attachment=attachment
                )
            except AgentLost:  # The new agent is lost, too.
                connection.retire()
                continue
            if attachment is not None:
                attachment.tell_attached()
            membership_of(client).follow_on(membership_of(lost))
            return client

    _client.replace(attach_again)
    gc.collect()  # The lost client, whose memory is as much as the next one's, is in cycles.


_has_warned = False


@contextlib.contextmanager
def _going_on() -> Iterator[None]:
    """A context that warns once of a failure to write for `talweg run`. The training goes on."""
    global _has_warned
    try:
        yield
    except OSError as error:
        if not _has_warned:
            _has_warned = True
            _call_site.warn(
                f"`talweg run` cannot be told that this rank outlives its agent: {error}. The "
                "training goes on, but `talweg run` may end this rank if its agent is lost: make "
                "room below TMPDIR, or start the job with another TMPDIR",
                RuntimeWarning,
            )


def note_begun() -> None:
    """Notes that this rank has the state of its job. If its agent is lost when the job has finished,
    it may begin another one with that state.
    """
    mark = os.environ.get(_MARK_VARIABLE)
    with _going_on():
        if mark and Path(mark).exists():
            Path(mark).write_text("begun\n")


@contextlib.contextmanager
def outliving() -> Iterator[None]:
    """A context in which this rank goes on when its agent is lost. `talweg run` does not end it."""
    mark = os.environ.get(_MARK_VARIABLE)
    with _going_on():
        if mark:
            Path(mark).touch()
    try:
        yield
    finally:
        with _going_on():
            if mark:
                Path(mark).unlink(missing_ok=True)
