# SPDX-License-Identifier: Apache-2.0
"""A job as BytePS's variables describe it, and the daemons' options for it."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from talweg import _programs
from talweg._compat.environment import VariableError
from talweg._counted import counted
from talweg._node import places
from talweg.byteps._environment import PROVIDERS, TABLE, log_levels

# How long ranks wait for the others. It is the default of the agent's join_timeout_ms.
WAIT_S = 600.0
_SLICE_BYTES = 1 << 20
_SLICE_BYTES_MAX = 1 << 30
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_CREDIT_BYTES = (64 << 10, 64 << 30)
_LANES_MAX = 64
# The largest renew_ms that a daemon accepts, in seconds.
_RENEW_MAX_S = 3600
# The longest path that Linux takes for a socket.
_SOCKET_BYTES_MAX = 107
_RDMA_DEVICES = Path("/sys/class/infiniband")


@dataclass(frozen=True)
class Job:
    """A job as BytePS's variables describe it. `worker` is None if the role does not need it."""

    workers: int
    servers: int
    worker: int | None
    local_size: int
    host: str
    port: str
    name: str
    is_named: bool  # BYTEPS_JOB_ID says the name.
    forced: bool

    @property
    def scheduler(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def is_distributed(self) -> bool:
        """Whether scheduler and servers are needed."""
        return self.workers > 1 or self.forced


def _needed(environment: Mapping[str, str], names: list[str], why: str) -> None:
    missing = [name for name in names if not environment.get(name)]
    if missing:
        raise VariableError(f"{' and '.join(missing)} must be set: {why}")


def job_of(environment: Mapping[str, str], role: str, local_size: int) -> Job:
    """Returns the job. Raises VariableError if variables are missing or do not fit together."""
    workers = TABLE.number(environment, "DMLC_NUM_WORKER")
    forced = TABLE.switch(environment, "BYTEPS_FORCE_DISTRIBUTED")
    if workers > 1 or forced:
        needed = ["DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT"]
        _needed(environment, needed, f"a {role} needs it, unless its job has only one worker")
    worker = worker_of(environment, local_size) if role == "worker" else None
    if role == "worker" and worker is None and (workers > 1 or forced):
        _needed(environment, ["DMLC_WORKER_ID"], f"it says which of {workers} workers this is")
    if worker is not None and worker >= workers:
        ranks = workers * local_size
        told = TABLE.value(environment, "BYTEPS_GLOBAL_RANK")
        raise VariableError(
            f"BYTEPS_GLOBAL_RANK, the global_rank of resume(), is {told}; with DMLC_NUM_WORKER="
            f"{workers} and {counted(local_size, 'rank')} a node it must be 0 to {ranks - 1}"
            if told
            else f"DMLC_WORKER_ID is {worker}; with DMLC_NUM_WORKER={workers} it must be 0 to "
            f"{workers - 1}"
        )
    told_name = TABLE.value(environment, "BYTEPS_JOB_ID")
    return Job(
        workers,
        TABLE.number(environment, "DMLC_NUM_SERVER"),
        worker,
        local_size,
        TABLE.value(environment, "DMLC_PS_ROOT_URI"),
        TABLE.value(environment, "DMLC_PS_ROOT_PORT"),
        told_name or "byteps",
        bool(told_name),
        forced,
    )


def worker_of(environment: Mapping[str, str], local_size: int) -> int | None:
    """Returns the number of this node, from BYTEPS_GLOBAL_RANK or else from DMLC_WORKER_ID."""
    told = TABLE.value(environment, "BYTEPS_GLOBAL_RANK")
    if told:
        local_rank = TABLE.number(environment, "BYTEPS_LOCAL_RANK")
        node, rest = divmod(int(told) - local_rank, local_size)
        if rest != 0 or node < 0:
            raise VariableError(
                f"BYTEPS_GLOBAL_RANK is {told}; with BYTEPS_LOCAL_RANK={local_rank} and "
                f"{counted(local_size, 'rank')} a node it must be {local_rank}, {local_rank + local_size}, ..."
            )
        return node
    text = TABLE.value(environment, "DMLC_WORKER_ID")
    return int(text) if text else None


def slice_bytes(environment: Mapping[str, str]) -> int:
    text = TABLE.value(environment, "BYTEPS_PARTITION_BYTES")
    return min((int(text) + 63) // 64 * 64, _SLICE_BYTES_MAX) if text else _SLICE_BYTES


def slice_bytes_of_agent(environment: Mapping[str, str]) -> int:
    """Returns how long this node's agent cuts slices, from the variable that it has got."""
    told = re.fullmatch(r"(\d{1,10})([KMG]iB)?", environment.get("TALWEG_SLICE_BYTES_MAX", ""))
    return int(told[1]) * _UNITS[told[2] or ""] if told else _SLICE_BYTES


def _credit_bytes(environment: Mapping[str, str]) -> int:
    """Returns the agent's option `credit_bytes`; 0 for its default."""
    credit = TABLE.number(environment, "BYTEPS_SCHEDULING_CREDIT")
    if credit == 0:
        return 0
    lowest, highest = _CREDIT_BYTES
    return min(max(credit * slice_bytes(environment), lowest), highest)


def _renew_s(environment: Mapping[str, str]) -> int:
    return min(TABLE.number(environment, "PS_HEARTBEAT_INTERVAL"), _RENEW_MAX_S)


def _lanes(environment: Mapping[str, str]) -> int:
    wanted = TABLE.number(environment, "BYTEPS_SERVER_ENGINE_THREAD")
    return min(max(wanted, 1), _LANES_MAX)


def say_values(
    environment: Mapping[str, str], log: logging.Logger, is_server: bool = False
) -> None:
    """Logs which values are used in place of those that variables have."""

    def say(name: str, used: int, unit: str, why: str) -> None:
        log.info("%s is %s; %d%s are used, as %s", name, environment[name], used, unit, why)

    told = environment.get("BYTEPS_PARTITION_BYTES")
    if told and int(told) != slice_bytes(environment):
        why = f"a slice has a multiple of 64, and at most {_SLICE_BYTES_MAX}"
        say("BYTEPS_PARTITION_BYTES", slice_bytes(environment), " bytes", why)
    credit = TABLE.number(environment, "BYTEPS_SCHEDULING_CREDIT")
    if credit and credit * slice_bytes(environment) != _credit_bytes(environment):
        why = "it is so many slices, and {} to {} bytes".format(*_CREDIT_BYTES)
        say("BYTEPS_SCHEDULING_CREDIT", _credit_bytes(environment), " bytes", why)
    if TABLE.number(environment, "PS_HEARTBEAT_INTERVAL") != _renew_s(environment):
        say("PS_HEARTBEAT_INTERVAL", _renew_s(environment), " s", "it is an hour at most")
    told = environment.get("BYTEPS_SERVER_ENGINE_THREAD")
    if is_server and told and int(told) != _lanes(environment):
        why = f"a server has 1 to {_LANES_MAX} threads that sum"
        say("BYTEPS_SERVER_ENGINE_THREAD", _lanes(environment), "", why)
    if environment.get("BYTEPS_DEBUG_SAMPLE_TENSOR") and log_levels(environment)[0] != "DEBUG":
        log.warning(
            "BYTEPS_DEBUG_SAMPLE_TENSOR logs at level DEBUG alone: set BYTEPS_LOG_LEVEL=DEBUG"
        )


def dealing(environment: Mapping[str, str]) -> str:
    """Returns the value of the agent's option `dealing`; empty for its default.

    Raises VariableError if variables contradict each other.
    """
    told = TABLE.value(environment, "BYTEPS_KEY_HASH_FN")
    if TABLE.switch(environment, "BYTEPS_ENABLE_MIXED_MODE"):
        bound = TABLE.number(environment, "BYTEPS_MIXED_MODE_BOUND")
        servers = TABLE.number(environment, "DMLC_NUM_SERVER")
        if bound < servers:
            raise VariableError(
                f"BYTEPS_MIXED_MODE_BOUND is {bound}; with DMLC_NUM_SERVER={servers} it must be at "
                f"least {servers}, so that each server can get slices"
            )
        return f"weighted:{bound}"
    if told == "mixed":
        raise VariableError(
            "BYTEPS_KEY_HASH_FN is mixed, which needs BYTEPS_ENABLE_MIXED_MODE=1: set it at all "
            "workers, or choose naive, built_in, djb2 or sdbm"
        )
    if told == "built_in":
        return f"fingerprint:{TABLE.number(environment, 'BYTEPS_BUILT_IN_HASH_COEF')}"
    return told


def log_level(environment: Mapping[str, str], is_server: bool = False) -> str:
    """Returns the daemons' log level."""
    verbose = TABLE.number(environment, "PS_VERBOSE")
    if verbose >= 2 or (is_server and TABLE.switch(environment, "BYTEPS_SERVER_DEBUG")):
        return "debug"
    _, level = log_levels(environment)
    return "info" if verbose == 1 and level != "debug" else level


def daemon_variables(environment: Mapping[str, str], is_server: bool = False) -> dict[str, str]:
    """Returns the daemons' variables that BytePS's variables stand for."""
    found = {"TALWEG_LOG_LEVEL": log_level(environment, is_server)}
    if environment.get("BYTEPS_PARTITION_BYTES"):
        found["TALWEG_SLICE_BYTES_MAX"] = str(slice_bytes(environment))
    if environment.get("BYTEPS_MIN_COMPRESS_BYTES") and not is_server:
        least = TABLE.number(environment, "BYTEPS_MIN_COMPRESS_BYTES")
        found["TALWEG_ENCODING_BYTES_MIN"] = str(least)
    dealt = "" if is_server else dealing(environment)
    if dealt:
        found["TALWEG_DEALING"] = dealt
    credit = _credit_bytes(environment)
    if credit > 0:
        found["TALWEG_CREDIT_BYTES"] = str(credit)
    if _renew_s(environment) > 0:
        found["TALWEG_RENEW_MS"] = str(_renew_s(environment) * 1000)
    if is_server and environment.get("BYTEPS_SERVER_ENGINE_THREAD"):
        found["TALWEG_LANES"] = str(_lanes(environment))
    if is_server and TABLE.switch(environment, "BYTEPS_SERVER_ENABLE_SCHEDULE"):
        found["TALWEG_RESULTS_BY_PRIORITY"] = "true"
    for variable, option in (("DMLC_INTERFACE", "INTERFACE"), ("DMLC_NODE_HOST", "ADVERTISE")):
        if environment.get(variable):
            found[f"TALWEG_{option}"] = TABLE.value(environment, variable)
    if environment.get("DMLC_INTERFACE") and not environment.get("TALWEG_TLS_DIR"):
        found["TALWEG_INSECURE"] = "true"  # An agent answers admin calls on the interface, too.
    return found


def provider(environment: Mapping[str, str], devices: Path = _RDMA_DEVICES) -> str:
    """Returns libfabric's provider. Raises VariableError if this machine has no device for it."""
    told = TABLE.value(environment, "DMLC_ENABLE_RDMA")
    found = PROVIDERS[told]
    if found != "tcp" and not (devices.is_dir() and any(devices.iterdir())):
        raise VariableError(
            f"DMLC_ENABLE_RDMA is {told}, which chooses libfabric's provider '{found}', and this "
            f"machine has no RDMA device ({devices} has none): set it to 0 for TCP, everywhere in the "
            "job, or load the device's driver"
        )
    return found


def lacking_interface(environment: Mapping[str, str]) -> str:
    """Returns a text if this machine lacks DMLC_INTERFACE, else an empty one."""
    told = TABLE.value(environment, "DMLC_INTERFACE")
    own = [name for _, name in socket.if_nameindex()]
    # A label such as eth0:1 names another address of an interface.
    if not told or told.partition(":")[0] in own:
        return ""
    return (
        f"DMLC_INTERFACE is '{told}', and this machine has {', '.join(own)}: set it to one of these, or "
        "unset it"
    )


def require_interface(environment: Mapping[str, str]) -> None:
    """Raises VariableError if this machine lacks DMLC_INTERFACE."""
    lacking = lacking_interface(environment)
    if lacking:
        raise VariableError(lacking)


# The documented commands have no certificates. The daemons warn of that at each start.
NETWORK_OPTIONS = ("--insecure",)


def own_address(job: Job, environment: Mapping[str, str]) -> str:
    """Returns the address of this machine that the job's other machines reach."""
    told = TABLE.value(environment, "DMLC_NODE_HOST")
    if told:
        return told
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            job.host.strip("[]"), int(job.port), type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # It sends nothing. The kernel only chooses the way.
            host = str(probe.getsockname()[0])
    except OSError as error:
        raise VariableError(
            f"DMLC_PS_ROOT_URI is '{job.host}', which cannot be reached from here ({error}): set "
            "DMLC_NODE_HOST to an address of this machine, or correct it"
        ) from None
    return f"[{host}]" if ":" in host else host


def agent_line(job: Job, environment: Mapping[str, str], socket_path: str) -> list[str]:
    """Returns the command line of this node's agent."""
    line = [
        _programs.tool(),
        "agent",
        f"--job={job.name}",
        f"--node_rank={job.worker or 0}",
        f"--rank_count={job.local_size}",
        f"--socket_path={socket_path}",
        "--admin_listen=127.0.0.1:0",
    ]
    if not job.is_distributed:
        return [*line, "--standalone"]
    return [
        *line,
        f"--scheduler={job.scheduler}",
        f"--provider={provider(environment)}",
        f"--min_members={job.workers}",
        f"--max_members={job.workers}",
    ]


def status(scheduler: str) -> dict[str, Any] | None:
    """Returns what the scheduler tells of its jobs and servers; None if it does not answer."""
    line = [_programs.tool(), "status", f"--scheduler={scheduler}", "--all", "--brief", "--json"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def await_servers(job: Job, say: Callable[[str], None], timeout_s: float = WAIT_S) -> None:
    """Returns when the scheduler is there and has as many servers as the job wants.

    Raises TimeoutError after `timeout_s`.
    """
    begin = last = time.monotonic()
    while True:
        told = status(job.scheduler)
        count = live_servers(told) if told is not None else 0
        if told is not None and count >= job.servers:
            return
        waits_for = (
            f"the scheduler at {job.scheduler}"
            if told is None
            else f"servers: {count} of DMLC_NUM_SERVER={job.servers} are there"
        )
        now = time.monotonic()
        if now - begin > timeout_s:
            raise TimeoutError(f"after {timeout_s:.0f} s still waiting for {waits_for}")
        if now - last > 10:
            last = now
            say(f"waiting for {waits_for}")
        time.sleep(0.2)


def live_servers(told: Mapping[str, Any]) -> int:
    """Returns how many servers live. The lanes of a server are called NAME, NAME/1 and so on."""
    live = [each["aggregator"]["name"] for each in told["pool"] if each["state"] == "STATE_LIVE"]
    return len({name.partition("/")[0] for name in live})


class OwnJob:
    """The job that a launcher's scheduler and servers serve.

    It is the first job of its name, or the first of any name if BYTEPS_JOB_ID says none. A rank
    that leaves the job and stays has its agent join a later one. A scheduler that others have
    started may also know older jobs, which are over.
    """

    def __init__(self, job: Job) -> None:
        self._name = job.name if job.is_named else ""
        self._id: Any = None
        self._has_looked = False
        # The state is forming, running, failed or finished; empty before the job is there.
        self.state = self.why = ""
        self.member_count = 0
        # Living jobs of other names.
        self.others: list[str] = []

    def look(self, told: Mapping[str, Any]) -> None:
        """Takes an answer of status()."""
        over = ("JOB_STATE_FINISHED", "JOB_STATE_FAILED")
        summaries = [each["job"]["summary"] for each in told["jobs"]]
        mine = [each for each in summaries if self._name in ("", each["name"])]
        if self._id is None and mine:
            live = [each for each in mine if each["state"] not in over]
            own = mine[0] if self._has_looked else (live or mine[-1:])[0]
            self._id = own["job_id"]
        self._has_looked = True
        self.others = [
            each["name"] for each in summaries if each not in mine and each["state"] not in over
        ]
        for each in mine:
            if each["job_id"] == self._id:
                self.state = each["state"][len("JOB_STATE_") :].lower()
                self.why = each["state_text"]
                self.member_count = int(each["member_count"])

    @property
    def is_over(self) -> bool:
        return self.state in ("finished", "failed")


def socket_path(job: Job, environment: Mapping[str, str], jobs_before: int) -> str:
    """Returns the agent's socket for the ranks of this node, which no launcher has started.

    Each job that a process joins has a socket of its own, because an agent of the `jobs_before`
    earlier jobs may still be ending. Raises VariableError if the directory cannot be used.
    """
    told = TABLE.value(environment, "BYTEPS_SOCKET_PATH")
    directory = os.path.join(told, f"talweg-{os.getuid()}")
    name = places.name_of(job.name, job.port, job.worker or 0, jobs_before)
    path = os.path.join(directory, f"byteps-{name}.sock")
    over = len(os.fsencode(path)) - _SOCKET_BYTES_MAX
    if over > 0:
        length = len(os.fsencode(told))
        raise VariableError(
            f"BYTEPS_SOCKET_PATH has {length} bytes, and may have {length - over} here, since a "
            f"socket's whole path has at most {_SOCKET_BYTES_MAX}: set it to a directory with a "
            "shorter path"
        )
    try:
        places.make_private(Path(directory))
    except OSError as error:
        raise VariableError(
            f"BYTEPS_SOCKET_PATH is '{told}', where the node's ranks cannot meet ({error}): set it to a "
            "directory that you may write to"
        ) from None
    return path
