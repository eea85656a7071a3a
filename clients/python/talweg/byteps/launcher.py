# SPDX-License-Identifier: Apache-2.0
"""bpslaunch: starts the part of a job that DMLC_ROLE names, with Talweg's daemons.

    bpslaunch COMMAND [ARGUMENTS]   # DMLC_ROLE=worker: this node's agent, and COMMAND as its ranks
    bpslaunch                       # DMLC_ROLE=server or scheduler
    bpslaunch COMMAND [ARGUMENTS]   # DMLC_ROLE=joint: a worker, and a server on its machine

It ends when that part has ended. docs/byteps.md lists the variables.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from talweg import _programs
from talweg._compat.environment import logger
from talweg._node.hosts import interruptible
from talweg.byteps import _cores, _job, _shell, _trace
from talweg.byteps._environment import TABLE, log_levels
from talweg.errors import TalwegError

_ASK_S = 1.0
# The pause between two looks whether the worker or the server has ended.
_LOOK_S = 0.1
_SAY_S = 10.0
# How long the scheduler waits for the servers to leave before it ends.
_LEAVE_S = 10.0
# A scheduler that does not answer for so long counts as gone.
_GONE_S = 15.0
# How long scheduler and servers wait for a job's only worker, which may run without them.
_LONE_WORKER_S = 120.0


def main() -> int:
    environment = dict(os.environ)
    try:
        TABLE.check(environment)
        level, _ = log_levels(environment)
        log = logger("bpslaunch", level, TABLE.switch(environment, "BYTEPS_LOG_HIDE_TIME"))
        TABLE.say(environment, log)
        role = TABLE.value(environment, "DMLC_ROLE")
        _job.say_values(environment, log, is_server=role in ("server", "joint"))
        if role == "worker":
            return _worker(sys.argv[1:], environment, log)
        if role == "joint":
            return _joint(sys.argv[1:], environment)
        if len(sys.argv) > 1:
            log.warning("a %s runs no command; '%s' is not started", role, shlex.join(sys.argv[1:]))
        job = _job.job_of(environment, role, 1)
        if not job.is_distributed and not (job.host and job.port):
            _say(
                f"a job of one worker needs no {role}: nothing is started "
                "(BYTEPS_FORCE_DISTRIBUTED=1 forces one)"
            )
            return 0
        with interruptible():
            return (_scheduler if role == "scheduler" else _server)(job, environment)
    except (TalwegError, TimeoutError) as error:
        print(f"bpslaunch: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _say(text: str) -> None:
    print(f"bpslaunch: {text}", file=sys.stderr, flush=True)


# ----- worker -----


def gpu_count() -> int:
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def rank_count(environment: Mapping[str, str], say: Callable[[str], None] = _say) -> int:
    """Returns the number of ranks: one for each entry of NVIDIA_VISIBLE_DEVICES."""
    told = TABLE.value(environment, "NVIDIA_VISIBLE_DEVICES")
    gpus = gpu_count()
    if told == "all":
        return max(gpus, 1)
    if told in ("", "none", "void"):
        return 1
    entries = [entry for entry in told.split(",") if entry.strip()]
    if gpus == 0:
        ranks = "one rank" if len(entries) == 1 else f"{len(entries)} ranks"
        say(f"there is no GPU: NVIDIA_VISIBLE_DEVICES={told} stands for {ranks} on CPUs")
    return len(entries)


def command_of(arguments: list[str], environment: Mapping[str, str]) -> str:
    """Returns the line for a rank's shell. One argument is a line of shell. Several are quoted."""
    if not TABLE.switch(environment, "BYTEPS_ENABLE_GDB"):
        return _shell.line_of(arguments)
    if shutil.which("gdb") is None:
        raise TalwegError("BYTEPS_ENABLE_GDB is 1, and there is no gdb: install it, or unset it")
    # The shell finds the program, which may be a script, becomes it, and gdb follows it. bash becomes
    # the last command of a line by itself, and dash does not. gdb's exit status is the program's, or
    # 255 after a crash.
    shell = (shutil.which("bash") if len(arguments) == 1 else None) or "/bin/sh"
    gdb = ["gdb", "-q", "-batch", "-return-child-result", "-nx"]
    for command in (
        "handle SIGPIPE SIGUSR1 SIGUSR2 SIGALRM SIGCHLD nostop noprint pass",
        "run",
        "python gdb.selected_thread() and gdb.execute('bt')",
    ):
        gdb += ["-ex", command]
    return "exec " + shlex.join([*gdb, "--args", shell, "-c", _shell.becoming(arguments)])


def plan_cores(
    environment: Mapping[str, str], local_size: int, log: logging.Logger
) -> list[list[int]] | None:
    """Returns the cores of each rank; None if ranks are not bound.

    Binds this process to the daemons' cores.
    """
    if not TABLE.switch(environment, "BYTEPS_NUMA_ON"):
        return None
    usable = os.sched_getaffinity(0)
    visible = TABLE.value(environment, "NVIDIA_VISIBLE_DEVICES")
    machine = _cores.read()
    near_gpus = _cores.of_ranks(machine.near_gpus, visible, local_size)
    cores = _cores.plan(environment, local_size, machine.nodes, usable, near_gpus)
    if cores is None:
        log.info(
            "ranks are not bound to cores: there are fewer cores than the %d ranks", local_size
        )
        return None
    for local_rank, mine in enumerate(cores):
        log.info("rank %d of this node is bound to cores %s", local_rank, _cores.show(mine))
    # Processes that start from here on inherit the daemons' cores. Each rank binds itself later.
    os.sched_setaffinity(0, _cores.of_daemons(environment, cores, usable))
    return cores


def _worker(arguments: list[str], environment: dict[str, str], log: logging.Logger) -> int:
    if not arguments:
        raise TalwegError("a worker needs a command: bpslaunch python train.py")
    if arguments[0].startswith("-"):
        raise TalwegError(
            f"'{arguments[0]}' is not a command, and bpslaunch has no options: variables say all "
            "(docs/byteps.md), as in DMLC_NUM_WORKER=2 bpslaunch python train.py"
        )
    local_size = rank_count(environment)
    # Each rank has its own local rank. Here it is that of the node's first rank.
    job = _job.job_of(dict(environment, BYTEPS_LOCAL_RANK="0"), "worker", local_size)
    cores = plan_cores(environment, local_size, log)
    sections = ":".join(_cores.show(mine) for mine in cores or [])
    line = [_programs.tool(), "run", "--no-prefix", f"--job={job.name}"]
    if job.is_distributed:
        provider = _job.provider(environment)
        _job.require_interface(environment)
        _job.await_servers(job, _say)
        line += [
            f"--scheduler={job.scheduler}",
            f"--nodes={job.workers}",
            f"--node-rank={job.worker}",
            f"--provider={provider}",
        ]
    line.append(f"--ranks-per-node={job.local_size}")
    rank = str(Path(__file__).with_name("_rank.py"))
    line += ["--", sys.executable, rank, sections, command_of(arguments, environment)]
    traced = _trace.prepare_agent(job.worker or 0, environment)
    environment.update(_job.daemon_variables(environment) | traced)
    os.execve(line[0], line, environment)  # `talweg run` passes signals on, and ends all it starts.
    raise AssertionError


# ----- joint -----


def _joint(arguments: list[str], environment: dict[str, str]) -> int:
    """Runs a worker, and a server that ends with the job. Returns the worker's exit status, or
    the server's if that is 0.

    If the server has ended and the worker does not end soon, ends the worker. The status is not 0
    then.
    """
    if not arguments:
        raise TalwegError("a worker and a server need a command: bpslaunch python train.py")
    line = [sys.executable, "-P", "-m", "talweg.byteps.launcher"]
    job = _job.job_of(dict(environment, BYTEPS_LOCAL_RANK="0"), "worker", 1)
    with contextlib.ExitStack() as started, interruptible():

        def start(role: str, command: list[str]) -> subprocess.Popen[bytes]:
            variables = dict(environment, DMLC_ROLE=role)
            return started.enter_context(_Process([*line, *command], variables))

        server = start("server", []) if job.is_distributed else None
        worker = start("worker", arguments)
        while worker.poll() is None:
            if server is not None and server.poll() is not None:
                # If the job is over, both end.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return _programs.shell_status(worker.wait(_LEAVE_S))
                _say(f"the server has ended before the worker, with {server.returncode}")
                return _programs.shell_status(server.returncode) or 1
            time.sleep(_LOOK_S)
        if worker.returncode == 0 and server is not None:
            # The server ends when all workers have left the job.
            return _programs.shell_status(server.wait())
        return _programs.shell_status(worker.returncode)


# ----- scheduler and server -----


class _Process:
    """A process that is asked to end when the `with` block is left."""

    def __init__(self, line: list[str], environment: dict[str, str]) -> None:
        self._line = line
        self._environment = environment

    def __enter__(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            self._line,
            env=self._environment,
            start_new_session=True,  # Ctrl-C reaches this process only, which passes it on.
        )
        return self._process

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _daemon(line: list[str], environment: dict[str, str]) -> _Process:
    return _Process([_programs.tool(), *line], environment)


def scheduler_line(job: _job.Job, environment: Mapping[str, str]) -> list[str]:
    """Returns the scheduler's words after `talweg`."""
    host = "0.0.0.0" if TABLE.switch(environment, "DMLC_USE_KUBERNETES") else job.host
    line = ["scheduler", f"--listen={host}:{job.port}", "--in_memory", *_job.NETWORK_OPTIONS]
    lease_s = TABLE.number(environment, "PS_HEARTBEAT_TIMEOUT")
    if lease_s > 0:
        line.append(f"--lease_ms={lease_s * 1000}")
    return line


def _scheduler(job: _job.Job, environment: dict[str, str]) -> int:
    """Serves until the job is over and its servers have left."""
    lacking = _job.lacking_interface(environment)
    if lacking:
        # dist_launcher.py gives all machines one name.
        _say(f"{lacking}. The scheduler listens on {job.scheduler} in any case")
    line = scheduler_line(job, environment)
    # With NAT this host may not reach itself at DMLC_PS_ROOT_URI.
    binds_all = TABLE.switch(environment, "DMLC_USE_KUBERNETES")
    asked = ([f"127.0.0.1:{job.port}"] if binds_all else []) + [job.scheduler]
    variables = dict(environment, TALWEG_LOG_LEVEL=_job.log_level(environment))
    said = _Saying()
    own, lone = _job.OwnJob(job), _LoneWorker(job)
    with _daemon(line, variables) as daemon:
        while daemon.poll() is None:
            told = _ask(asked)
            if told is None:
                said.say(
                    f"the scheduler does not answer at {' or '.join(asked)}, so nobody knows here "
                    "when the job is over: set DMLC_PS_ROOT_URI to an address that also this host "
                    "reaches"
                )
            else:
                own.look(told)
                if own.is_over:
                    _await_leaving(asked)
                    return _over(own)
                said.say(_waits_for(job, told, own))
                if lone.stays_away(own.state):
                    return 0
            time.sleep(_ASK_S)
        raise TalwegError(f"the scheduler has ended with exit status {daemon.returncode}")


def _ask(addresses: list[str]) -> dict[str, Any] | None:
    """Returns the status by the first address at which the scheduler answers; None if by none."""
    for address in addresses:
        told = _job.status(address)
        if told is not None:
            return told
    return None


def _await_leaving(addresses: list[str]) -> None:
    end = time.monotonic() + _LEAVE_S
    while time.monotonic() < end:
        told = _ask(addresses)
        if told is None or _job.live_servers(told) == 0:
            return
        time.sleep(_ASK_S)


def _over(own: _job.OwnJob) -> int:
    if own.state == "failed":
        _say(own.why)
        return 1
    return 0


def _waits_for(job: _job.Job, told: Mapping[str, object], own: _job.OwnJob) -> str:
    """Returns a text that says whom the job waits for; empty if it waits for nobody."""
    if own.state == "running":
        return ""
    servers = _job.live_servers(told)
    members = own.member_count
    missing = []
    if servers < job.servers:
        missing.append(f"servers ({servers} of {job.servers} are there)")
    if members < job.workers:
        missing.append(f"workers ({members} of {job.workers} are there)")
    if not missing:
        return ""
    text = "waiting for " + " and ".join(missing)
    if own.others and not own.state:
        names = ", ".join(f"'{name}'" for name in own.others)
        text += (
            f"; BYTEPS_JOB_ID is '{job.name}' here, and the scheduler has {names}: set it to the same "
            "at all processes of the job"
        )
    return text


class _Saying:
    """Says what the launcher waits for, every ten seconds."""

    def __init__(self) -> None:
        self._text = ""
        self._at = time.monotonic()

    def say(self, text: str) -> None:
        now = time.monotonic()
        if text and now - self._at >= _SAY_S:
            self._at = now
            _say(text)


class _LoneWorker:
    """Ends the wait for a job's only worker, which comes only if BYTEPS_FORCE_DISTRIBUTED is 1.

    Scheduler and servers may lack that variable. BytePS's own test scripts set it for the worker.
    """

    def __init__(self, job: _job.Job) -> None:
        self._end = None if job.is_distributed else time.monotonic() + _LONE_WORKER_S

    def stays_away(self, state: str) -> bool:
        """Returns whether the worker has not come for too long, and reports that."""
        if state:
            self._end = None
        if self._end is None or time.monotonic() < self._end:
            return False
        _say(
            f"the job's only worker has not come within {_LONE_WORKER_S:.0f} s, and needs nobody: "
            "set BYTEPS_FORCE_DISTRIBUTED=1 for it if it should come here"
        )
        return True


def server_line(job: _job.Job, environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Returns the server's words after `talweg`, and its variables."""
    address = _job.own_address(job, environment)
    binds_all = TABLE.switch(environment, "DMLC_USE_KUBERNETES")
    host = "0.0.0.0" if binds_all else address
    port = TABLE.value(environment, "DMLC_PORT")
    line = [
        "aggregator",
        f"--scheduler={job.scheduler}",
        f"--name={os.uname().nodename}-{os.getpid()}",
        f"--listen={host}:{port}",
        f"--admin_listen={host}:0",
        *_job.NETWORK_OPTIONS,
        f"--provider={_job.provider(environment)}",
    ]
    variables = {**environment, **_job.daemon_variables(environment, is_server=True)}
    variables.pop("TALWEG_SLICE_BYTES_MAX", None)  # Only agents take it.
    if binds_all:
        variables["TALWEG_ADVERTISE"] = address
    return line, variables


def _server(job: _job.Job, environment: dict[str, str]) -> int:
    """Serves until the job is over or the scheduler has left."""
    _job.require_interface(environment)
    line, variables = server_line(job, environment)
    said = _Saying()
    own, lone = _job.OwnJob(job), _LoneWorker(job)
    seen = False
    last_answer = time.monotonic()
    with _daemon(line, variables) as daemon:
        while daemon.poll() is None:
            told = _job.status(job.scheduler)
            if told is not None:
                seen, last_answer = True, time.monotonic()
                own.look(told)
                if own.is_over:
                    return _over(own)
                said.say(_waits_for(job, told, own))
                if lone.stays_away(own.state):
                    return 0
            elif lone.stays_away(""):
                return 0
            elif not seen:
                said.say(f"waiting for the scheduler at {job.scheduler}")
            elif time.monotonic() - last_answer > _GONE_S:
                _say(f"the scheduler at {job.scheduler} has gone")
                return 1
            time.sleep(_ASK_S)
        raise TalwegError(f"the aggregator has ended with exit status {daemon.returncode}")


if __name__ == "__main__":
    sys.exit(main())
