# SPDX-License-Identifier: Apache-2.0
"""The calls that all modules of BytePS have: init, shutdown, ranks, suspend, resume and speed."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import talweg
from talweg import _at_exit, _client, errors
from talweg._client import agents, session
from talweg._compat import daemons, timeline
from talweg._compat.environment import VariableError, logger
from talweg.byteps import _job, _others, _remedies, _samples, _trace, _waiting
from talweg.byteps._environment import TABLE, log_levels

# How long a rank waits for the whole job: as long as its agent waits.
_WAIT_S = _job.WAIT_S
# How many seconds the node's first rank, which has started the agent, waits for the others to end.
_LEAVE_S = 60

# If an agent was found missing so long ago or less, this rank waits for it.
_RECENTLY_S = 5.0

_agent: subprocess.Popen[bytes] | None = None
_no_agent_at = 0.0  # When this process last found no agent at its path.
# How many jobs this process has joined. All ranks of a node have joined equally many.
_jobs = 0
_speed: timeline.Speed | None = None


def init(lazy: bool = True) -> None:
    """Joins the job that BytePS's variables, or a launcher's, describe. Without any, it is alone.

    Returns when this rank is in the job, whether `lazy` or not: all nodes of the job are there
    then. Other ranks of a node may still come, and the first operation waits for them. A second
    call does nothing.
    """
    global _jobs, _speed
    if talweg.is_initialized():
        return
    daemons.take_back()
    environment = dict(os.environ)
    TABLE.check(environment)
    level, _ = log_levels(environment)
    log = logger("byteps", level, TABLE.switch(environment, "BYTEPS_LOG_HIDE_TIME"))
    if _says(environment):
        TABLE.say(environment, log)
        TABLE.say_without_launcher(environment, log, also="launcher/launch.py")
        _job.say_values(environment, log)
    if environment.get("BYTEPS_DEBUG_SAMPLE_TENSOR") or TABLE.switch(
        environment, "BYTEPS_TRACE_ON"
    ):
        # TensorFlow's kernel pushes by itself, where this module cannot see the pushes.
        os.environ.setdefault("TALWEG_TENSORFLOW_OPS", "python")
    session.forget()
    slice_bytes = _join(environment, log)
    _jobs += 1
    _at_exit.register(shutdown)
    client = _client.current()
    if TABLE.switch(environment, "BYTEPS_TELEMETRY_ON"):
        _speed = timeline.Speed(client)
    if TABLE.switch(environment, "BYTEPS_TRACE_ON"):
        _trace.Trace(environment, client, slice_bytes)
    key = TABLE.value(environment, "BYTEPS_DEBUG_SAMPLE_TENSOR")
    if key and log.isEnabledFor(logging.DEBUG):
        _samples.Samples(client, _samples.parse_key(key), slice_bytes, log)


def _says(environment: Mapping[str, str]) -> bool:
    """Whether this process reports the variables: the node's first rank, unless bpslaunch has."""
    return "TALWEG_BYTEPS_LAUNCHED" not in environment and daemons.is_first_here(
        environment, "BYTEPS_LOCAL_RANK"
    )


def _join(environment: Mapping[str, str], log: logging.Logger) -> int:
    """Joins by the agent that a launcher has started, or by one that local rank 0 starts. Returns
    the largest slice of the agent, in bytes.
    """
    role = TABLE.value(environment, "DMLC_ROLE")
    if role != "worker":
        raise VariableError(
            f"DMLC_ROLE is '{role}'; a process that calls init() is a worker: unset it, or have "
            "bpslaunch start what it names"
        )
    has_agent = bool(environment.get("TALWEG_AGENT_SOCKET"))
    place = None if has_agent else _others.place_of(environment)
    if has_agent or place is not None:
        if "TALWEG_BYTEPS_LAUNCHED" not in environment:
            _others.tell_daemons(environment, place, log, _says(environment))
            talweg.init(timeout_s=_WAIT_S)
        else:
            _join_launched(environment, log)
        return _job.slice_bytes_of_agent(os.environ)
    _join_own(environment, log)
    return _job.slice_bytes(environment)


def _join_launched(environment: Mapping[str, str], log: logging.Logger) -> None:
    """Joins by the agent that bpslaunch has started."""
    local_size = TABLE.number(environment, "BYTEPS_LOCAL_SIZE")
    # BYTEPS_GLOBAL_RANK is that of the node's first rank.
    job = _job.job_of({**environment, "BYTEPS_LOCAL_RANK": "0"}, "worker", local_size)
    says = job.is_distributed and TABLE.number(environment, "BYTEPS_LOCAL_RANK") == 0
    for_whom = partial(_waiting.text_of_workers, job)
    with _remedies.named(), _waiting.waiting(for_whom, log) if says else contextlib.nullcontext():
        talweg.init(timeout_s=_WAIT_S)


def _join_own(environment: Mapping[str, str], log: logging.Logger) -> None:
    """Joins by the agent that the node's local rank 0 starts. A job of one rank needs none."""
    local_size = TABLE.number(environment, "BYTEPS_LOCAL_SIZE")
    local_rank = TABLE.number(environment, "BYTEPS_LOCAL_RANK")
    if local_rank >= local_size:
        is_told = bool(environment.get("BYTEPS_LOCAL_SIZE"))
        raise VariableError(
            f"BYTEPS_LOCAL_RANK is {local_rank}; with BYTEPS_LOCAL_SIZE={local_size} it must be 0 to "
            f"{local_size - 1}"
            if is_told
            else f"BYTEPS_LOCAL_RANK is {local_rank}, and BYTEPS_LOCAL_SIZE is not set: set it to the "
            "number of the node's ranks, at all of them"
        )
    job = _job.job_of(environment, "worker", local_size)
    if not job.is_distributed and local_size == 1:
        _others.check_lone_rank(environment, log)
        _client.connect(None, _WAIT_S, alone=True)
        return
    path = _job.socket_path(job, environment, _jobs)
    agents.note_started()  # No other job's agent has that path.
    starts_agent = local_rank == 0
    if starts_agent:
        _start_agent(job, environment, path)

    def for_whom() -> str:
        if starts_agent:
            return _waiting.text_of_workers(job) if job.is_distributed else ""
        if time.monotonic() - _no_agent_at > _RECENTLY_S:
            return ""  # The agent is there, and says for whom it waits.
        return f"local rank 0 of this node, whose init() starts the agent at {path}"

    try:
        with _remedies.named(), _waiting.waiting(for_whom, log):
            _attach(job, environment, path, starts_agent)
    except BaseException:
        if _agent is not None:
            _agent.terminate()  # Else the end of this process would wait for it.
        raise


def _attach(job: _job.Job, environment: Mapping[str, str], path: str, starts_agent: bool) -> None:
    """Joins by the agent at that path. Starts the agent again where it has met an older job."""
    global _no_agent_at
    end = time.monotonic() + _WAIT_S
    while True:
        try:
            talweg.init(path, timeout_s=_WAIT_S)
            return
        except errors.JobFailed:
            # The agent of a program that was killed may be ending here, and lets no rank in. After
            # resume() an agent may have met the previous job's scheduler as that ended.
            if (starts_agent and _jobs == 0) or time.monotonic() > end - _WAIT_S + _LEAVE_S:
                raise
            if starts_agent:
                _start_agent(job, environment, path)
            time.sleep(0.05)
        except errors.AgentLost as error:  # It is not there yet, or the previous agent is ending.
            _no_agent_at = time.monotonic()
            if _agent is not None and _agent.poll() is not None:
                raise errors.NoAgent(
                    f"this node's agent has ended with exit status {_agent.returncode}: see above why"
                ) from None
            if time.monotonic() > end:
                raise errors.Timeout(f"{error} ({_WAIT_S:g} s)") from None
            time.sleep(0.05)


def _start_agent(job: _job.Job, environment: Mapping[str, str], path: str) -> None:
    global _agent
    line = [*_job.agent_line(job, environment, path), f"--drain_timeout_ms={_LEAVE_S * 1000}"]
    if job.is_distributed:
        _job.await_servers(job, lambda text: print(f"byteps: {text}", file=sys.stderr, flush=True))
    if _agent is not None:
        _agent.terminate()  # The agent serves nobody any more.
    _end_agent()
    variables = {
        **environment,
        **_job.daemon_variables(environment),
        **_trace.prepare_agent(job.worker or 0, environment),
    }
    _agent = subprocess.Popen(
        line,
        env=variables,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def _end_agent() -> None:
    """Ends the agent. In a job with a scheduler it ends by itself when its ranks have left."""
    global _agent
    agent, _agent = _agent, None
    if agent is None:
        return
    if "--standalone" in agent.args:  # type: ignore[operator]
        agent.terminate()  # The agent waits for the node's other ranks.
    try:
        agent.wait(_LEAVE_S)
    except subprocess.TimeoutExpired:
        agent.terminate()
        agent.wait()


def shutdown() -> None:
    """Leaves the job cleanly; also called when the interpreter ends."""
    global _speed
    _speed = None
    talweg.shutdown()
    session.forget()
    _end_agent()


def suspend() -> None:
    """Leaves the job, as shutdown() does, until resume()."""
    shutdown()
    # A launcher's agent ends when its ranks leave the job. resume() starts another agent itself. It
    # does not ask the launcher, whose next agent would be the same node.
    for name in ("TALWEG_AGENT_SOCKET", "TALWEG_RUN_NEEDS"):
        os.environ.pop(name, None)


def resume(num_workers: int, num_servers: int, global_rank: int, context: Any = None) -> None:
    """Joins a job with other numbers. Its scheduler and servers must be running."""
    os.environ["DMLC_NUM_WORKER"] = str(num_workers)
    os.environ["DMLC_NUM_SERVER"] = str(num_servers)
    os.environ["BYTEPS_GLOBAL_RANK"] = str(global_rank)
    init(lazy=False)


def rank() -> int:
    """This process's rank in the job; 0 before init()."""
    return talweg.rank() if _client.has_numbers() else 0


def size() -> int:
    """The number of ranks in the job; 1 before init()."""
    return talweg.size() if _client.has_numbers() else 1


def local_rank() -> int:
    """This process's rank on its node. Before init() it is the launcher's value."""
    if _client.has_numbers():
        return talweg.local_rank()
    return TABLE.number(os.environ, "BYTEPS_LOCAL_RANK")


def local_size() -> int:
    """The number of ranks on this node. Before init() it is the launcher's value."""
    if _client.has_numbers():
        return talweg.local_size()
    return TABLE.number(os.environ, "BYTEPS_LOCAL_SIZE")


def get_pushpull_speed() -> tuple[int, float]:
    """Returns the time (ms) and MB/s of the oldest of at most 1024 samples, or (0, -5.0)."""
    sample = _speed.take() if _speed is not None else None
    return sample if sample is not None else (0, -5.0)
